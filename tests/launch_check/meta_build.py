"""Builds every stage of launch scripts' models with real torch, from the frameworks' own model code, and counts.

    python -m tests.launch_check.meta_build --megatron GITDIR [--mindspeed GITDIR] [--mindspeed-llm GITDIR]
        [--release NAME] [--names] SCRIPT...

One level beyond the parser: the framework patches itself, parses and validates the script's command line, sets up its
groups among as many fake ranks as the script starts, and makes the model chunks of one rank of every pipeline stage
with its `get_model` and the model provider of `pretrain_gpt.py`. Weights are on torch's meta device, so nothing is
computed or held. Prints a JSON line a chunk: layers, parameters, and how many of them are routed experts' (`--names`:
each parameter's shape too). Exit 0: all were built.

It needs what no other part of the project does: torch with its fake process group (2.7 or newer, without a device),
numpy, einops, six, tqdm, psutil, packaging and pyyaml beside ruamel.yaml. torch_npu and what tokenizers, datasets and
kernels need are stubs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import inspect
import json
import logging
import os
import pathlib
import re
import runpy
import sys
import tempfile
import traceback
import typing
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
import torch.utils.cpp_extension  # MindSpeed asks for its build folder
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._device import _device_constructors

from autodeploy.stack.releases import releases
from tests.launch_check import stand_ins
from tests.launch_check.checkouts import FOLDERS, checkout
from tests.launch_check.scripts import Started, started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Files beside the folders that a parser needs.
ENTRY: dict[str, tuple[str, ...]] = {"mindspeed-llm": ("pretrain_gpt.py",), "mindspeed": (), "megatron": ("*.py",)}
TOKENIZER = {"tokenizer_type": "GPT2BPETokenizer"}  # the default that pretrain_gpt.py gives
# Not apex, Transformer Engine and flash attention: a framework that finds none stands in for them itself.
_ABSENT = (
    "accelerate acl bs4 cann_ops_transformer datasets fla jsonargparse jsonlines mindio_acp mindio_ttp "
    "mindspore nltk pandas peft ray safetensors scipy sentencepiece sklearn sqlalchemy tensordict "
    "tiktoken tokenizers torch_npu torchair torchvision transformers triton trl vllm waas_sdk "
)
ABSENT = frozenset(_ABSENT.split())
NEEDS_A_CHECKPOINT = "--enable-hf2mg-convert"  # in MindSpeed-LLM's examples: left out
EXPERTS = re.compile(r"\.experts\.")


class OnMeta(TorchFunctionMode):
    """Whatever makes a tensor makes it on the meta device, also where a device is named that is not here.

    What is made of numbers keeps them, on the host: frequencies of rotary positions are looked at as they are made.
    """

    makers = _device_constructors()
    of_numbers = frozenset({torch.arange, torch.linspace, torch.tensor})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.makers:
            kwargs = {**(kwargs or {}), "device": "cpu" if func in self.of_numbers else "meta"}
        return func(*args, **(kwargs or {}))


class _AbsentFinder(stand_ins.StubFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        found = name.split(".")[0] in ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None


def stand_in_for_devices(devices: int) -> None:
    """torch_npu's modules and torch's questions to a device, answered as a node with that many cards would."""
    sys.meta_path.insert(0, _AbsentFinder())
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "current_device": lambda: "meta",
        "device_count": lambda: devices,
        "set_device": lambda *_: None,
        "get_device_capability": lambda *_: (8, 0),
        "get_device_properties": lambda *_: SimpleNamespace(major=8, minor=0, multi_processor_count=108),
        "get_device_name": lambda *_: "Ascend910B",
        "synchronize": lambda *_: None,
        "current_stream": lambda *_, **__: stand_ins.Anything(),
        "Stream": stand_ins.Anything,
        "Event": stand_ins.Anything,
    }
    torch.npu = stand_ins.put_stub("torch.npu", **answers)
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    importlib.import_module("torch_npu").npu = sys.modules["torch_npu.npu"] = torch.npu  # type: ignore[attr-defined]
    for holder in (torch.Tensor, torch.nn.Module):
        holder.cuda = holder.npu = lambda self, *_, **__: self


class Framework:
    """A framework's training program, loaded with the arguments of one script; once a process."""

    def __init__(self, trees: Mapping[str, pathlib.Path], launch: Started):
        self.launch = launch
        if not hasattr(typing, "override"):  # of Python 3.12, in newer Megatron-LM
            typing.override = lambda method: method  # type: ignore[attr-defined]
        sys.argv = ["pretrain_gpt.py", *(word for word in launch.argv if word != NEEDS_A_CHECKPOINT)]
        sys.path[:0] = [str(tree) for tree in trees.values()]
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(launch.world)}
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # unless the launch exports another
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        stand_in_for_devices(launch.devices)
        if "mindspeed" in trees and "mindspeed-llm" not in trees:
            importlib.import_module("mindspeed.megatron_adaptor")
        entry = trees.get("mindspeed-llm", trees["megatron"]) / "pretrain_gpt.py"
        program = runpy.run_path(str(entry), run_name="pretrain_gpt")
        self.provider = program["model_provider"]
        if "gpt_builder" in program:  # newer Megatron-LM
            self.provider = functools.partial(self.provider, program["gpt_builder"])
        arguments = importlib.import_module("megatron.training.arguments")
        # Looked up now: the framework has put its own functions there.
        self.args = arguments.parse_args(None, False)
        arguments.validate_args(self.args, TOKENIZER)
        importlib.import_module("megatron.training.global_vars").set_global_variables(self.args, build_tokenizer=False)
        if getattr(self.args, "padded_vocab_size", None) is None:
            self.args.padded_vocab_size = _padding_of_the_vocabulary()(self.args.vocab_size, self.args)
        if getattr(self.args, "schedules_method", None) == "dualpipev" and self.args.mtp_num_layers:
            # As `pretrain` does: mindspeed_llm/training/training.py, mindspeed/.../dualpipev_chunks.py.
            modules = importlib.import_module("mindspeed.core.pipeline_parallel.dualpipev.mtp_utils")
            self.provider = modules.model_provider_mtp

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return int(self.args.pipeline_model_parallel_size)

    def set_up(self, stage: int = 0) -> None:
        """Process groups as the launch makes them, seen from the first rank of the stage; once a process."""
        args, world = self.args, self.launch.world
        args.rank = stage * (world // self.stages)
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=args.rank, world_size=world)
        make = torch.distributed.new_group

        def new_group(ranks: list[int] | None = None, *_: object, **__: object) -> Any:
            mine = ranks is None or args.rank in ranks
            return make(ranks, backend="fake") if mine else torch.distributed.GroupMember.NON_GROUP_MEMBER

        torch.distributed.new_group = new_group
        initialize = importlib.import_module("megatron.training.initialize")._initialize_distributed
        initialize(*(None for _ in inspect.signature(initialize).parameters))  # stores, and ranks with embeddings

    def chunks(self, stage: int) -> list[torch.nn.Module]:
        """Model chunks of the first rank of the stage; once a process."""
        self.set_up(stage)
        state = importlib.import_module("megatron.core.parallel_state")
        assert state.get_pipeline_model_parallel_rank() == stage, "ranks of a stage are not next to each other"
        random = importlib.import_module("megatron.core.tensor_parallel.random")
        random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
        training = importlib.import_module("megatron.training.training")
        with OnMeta():
            return list(training.get_model(self.provider, wrap_with_ddp=False))


def _padding_of_the_vocabulary() -> Callable[[int, argparse.Namespace], int]:
    try:
        module = importlib.import_module("megatron.training.tokenizer.tokenizer")
        return module._vocab_size_with_padding  # type: ignore[no-any-return]
    except ModuleNotFoundError:  # newer Megatron-LM
        module = importlib.import_module("megatron.core.tokenizers.utils.build_tokenizer")
        return module.vocab_size_with_padding  # type: ignore[no-any-return]


def counted(chunks: list[torch.nn.Module], *, names: bool = False) -> Iterator[dict[str, Any]]:
    """Layers and parameters of each chunk of a rank; a parameter that two chunks share counts in the first."""
    seen: set[int] = set()
    for number, chunk in enumerate(chunks):
        own = {name: p for name, p in chunk.named_parameters() if id(p) not in seen}
        seen.update(id(p) for p in own.values())
        assert all(p.is_meta for p in own.values())
        layers = {name.partition("decoder.layers.")[2].partition(".")[0] for name in own if "decoder.layers." in name}
        yield {
            "chunk": number,
            "layers": len(layers),
            "parameters": sum(p.numel() for p in own.values()),
            "expert_parameters": sum(p.numel() for name, p in own.items() if EXPERTS.search(name)),
            **({"names": {name: list(p.shape) for name, p in own.items()}} if names else {}),
        }


def build(script: pathlib.Path, trees: Mapping[str, pathlib.Path], work: pathlib.Path, *, names: bool) -> bool:
    """Prints the stages of a script's model; whether all were built. The process can do nothing else afterwards."""
    out = sys.stdout
    launch = started(script, work)
    if isinstance(launch, str):
        print(json.dumps({"script": script.name, "error": launch}), flush=True)
        return False
    os.chdir(work)

    def guarded(task: Callable[[], None]) -> bool:
        said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - with a descriptor, which some framework asks for
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                task()
        except BaseException as error:  # a framework may raise anything, SystemExit too
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = at.filename.removeprefix(f"{work}/trees/")
            told = f"{type(error).__name__}: {str(error)[:300]} ({place}:{at.lineno})"
            if isinstance(error, SystemExit):
                said.seek(0)
                told = said.read().strip().rpartition("\n")[2]
            print(json.dumps({"script": script.name, "error": told}), file=out, flush=True)
            return False
        return True

    loaded: list[Framework] = []
    if not guarded(lambda: loaded.append(Framework(trees, launch))):
        return False

    def stage_of(number: int) -> None:
        for row in counted(loaded[0].chunks(number), names=names):
            print(json.dumps({"script": script.name, "stage": number, **row}), file=out, flush=True)

    return all([in_child(lambda stage=stage: guarded(lambda: stage_of(stage))) for stage in range(loaded[0].stages)])


def in_child(task: Callable[[], bool]) -> bool:
    """Runs it in a copy of this process: what it patches and sets up goes with it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        done = False
        try:
            done = task()
        finally:
            sys.stdout.flush()
            os._exit(0 if done else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    by_name = {release.name: release for release in releases() if release.flags and not release.keys}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=by_name, default="mindspeed-llm-master")
    for name in FOLDERS:
        parser.add_argument(f"--{name}", metavar="GITDIR")
    parser.add_argument("--names", action="store_true", help="the shape of every parameter too")
    parser.add_argument("--self-test", action="store_true", help="MindSpeed-LLM's own examples/mcore/*/pretrain_*.sh")
    parser.add_argument("scripts", nargs="*", type=pathlib.Path)
    given = vars(parser.parse_args(argv))
    components = by_name[given["release"]].components
    git_dirs = {name: given[name.replace("-", "_")] for name in components}
    if missing := [name for name, path in git_dirs.items() if path is None]:
        parser.error(f"{given['release']} needs --" + " and --".join(missing))
    scripts = [script.resolve() for script in given["scripts"]]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        trees = {
            name: checkout(git_dirs[name], part.commit, (*FOLDERS[name], *ENTRY[name]), work / "trees" / name)
            for name, part in components.items()
        }
        if given["self_test"]:
            scripts += sorted(trees["mindspeed-llm"].glob("examples/mcore/*/pretrain_*.sh"))
        built = [in_child(lambda script=script: build(script, trees, work, names=given["names"])) for script in scripts]
    return 0 if all(built) else 1


if __name__ == "__main__":
    sys.exit(main())
