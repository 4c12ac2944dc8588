"""One rank of a framework's own training entry, run for some steps, and its counts as JSON.

The request is a JSON file: trees (component -> folder), argv, environment, rank, world, devices, steps, ascend, out.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
import types
import typing
import warnings
from pathlib import Path
from typing import Any

import torch

from . import balanced, group, host, kept, operators, passes, samples, sizes
from .absent import module, stand_in_for
from .record import BETWEEN, NOTES, nbytes

ABSENT = (
    "accelerate acl bs4 cann_ops_transformer datasets fla jsonargparse jsonlines megatron_energon mindio_acp "
    "mindio_ttp mindspore nltk pandas peft ray safetensors scipy sentencepiece sklearn sqlalchemy tensorboard "
    "te_npu tensordict tiktoken tokenizers torchair torchvision transformers triton trl vllm waas_sdk wandb"
)
TRAINER = "mindspeed_llm"  # its package
TOKENS = 128  # made up; below any toy vocabulary
HOLDERS = ("megatron.training.training", "mindspeed_llm.training.training")


def main(request_file: Path) -> int:
    """Runs the request; the exit code. 0: the steps were run."""
    request = json.loads(request_file.read_text())
    answer = _run(request)
    Path(request["out"]).write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(1 if answer["error"] else 0)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    trees = {name: Path(tree) for name, tree in request["trees"].items()}
    answer: dict[str, Any] = {"rank": request["rank"], "torch": torch.__version__, "error": None, "where": None}
    model: dict[str, Any] = {}
    try:
        _prepare(request, trees)
        _watch(model)
        runpy.run_path(str((_trainer(trees) or trees["megatron"]) / request["entry"]), run_name="__main__")
    except SystemExit as stop:
        answer["error"] = f"SystemExit: {stop.code}" if stop.code else None
    except BaseException as fault:  # a framework may raise anything
        answer["error"] = f"{type(fault).__name__}: {str(fault)[:600]}"
        answer["where"] = _place(fault, trees)
        answer["trace"] = "".join(traceback.format_exception(fault))[-6000:]
    return {**answer, **_states(model), **NOTES.answer()}


def _place(fault: BaseException, trees: dict[str, Path]) -> str | None:
    """The line of a framework that an error came from."""
    for frame in reversed(traceback.extract_tb(fault.__traceback__)):
        for name, tree in trees.items():
            if frame.filename.startswith(f"{tree}/"):
                return f"{name} {frame.filename.removeprefix(f'{tree}/')}:{frame.lineno}"
    return None


def _trainer(trees: dict[str, Path]) -> Path | None:
    """The tree that has a training program of its own over MindSpeed."""
    return next((tree for tree in trees.values() if (tree / TRAINER).is_dir()), None)


def _prepare(request: dict[str, Any], trees: dict[str, Path]) -> None:
    """The process as that rank finds it, with stand-ins for what the host lacks."""
    rank, world, devices = request["rank"], request["world"], request["devices"]
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", **request["environment"]}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"LOCAL_RANK": str(rank % devices), "LOCAL_WORLD_SIZE": str(devices)}
    host.answer_for_cards(devices, rank % devices, "Ascend910B2" if request["ascend"] else "NVIDIA H100")
    group.become_one_rank(rank, world)
    if not hasattr(typing, "override"):  # of Python 3.12, in newer Megatron-LM
        typing.override = lambda method: method
    sys.argv = [request["entry"], *request["argv"]]
    sys.path[:0] = [str(tree) for tree in trees.values()]
    if request["ascend"]:
        from . import npu

        npu.install()
        stand_in_for(f"{ABSENT} torch_npu")
        sys.modules["triton"] = None  # type: ignore[assignment] # as a node without triton-ascend
        npu.import_adaptor(_trainer(trees) is not None)
    else:
        from . import transformer_engine

        stand_in_for(ABSENT)
        transformer_engine.install()
    _data_helpers()
    if "--stage" in request["argv"]:
        samples.feed_samples(TOKENS)
    kept.lift_hooks_around_functions()
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    balanced.balance_routing()
    if request["ascend"] and not request.get("real_widths"):
        operators.install()
    if request.get("real_widths"):
        importlib.import_module("megatron.core.timers").Timers.get_all_timers_string = lambda *_, **__: None
        sizes.install()


def _data_helpers() -> None:
    """The data sets' helpers in C++, in Python."""
    import numpy

    def build_sample_idx(sizes: Any, documents: Any, length: int, epochs: int, tokens: int, *_: Any) -> Any:
        total = (epochs * tokens - 1) // length
        ends = numpy.cumsum([sizes[number] for number in documents])
        places = numpy.arange(total + 1, dtype=numpy.int64) * length
        found = numpy.searchsorted(ends, places, "right")
        begins = numpy.concatenate([[0], ends])[found]
        rows = numpy.stack([found, places - begins], axis=1)
        return rows.astype(numpy.int32)

    name = "megatron.core.datasets.helpers_cpp"
    functions = {f"build_sample_idx_{kind}": build_sample_idx for kind in ("int32", "int64")}
    made = module(name, types.ModuleType, **functions)
    sys.modules[name] = made
    importlib.import_module("megatron.core.datasets.utils").compile_helpers = lambda *_, **__: None
    mock = importlib.import_module("megatron.core.datasets.gpt_dataset").MockGPTLowLevelDataset
    read = mock.__getitem__
    mock.__getitem__ = lambda self, place: read(self, place) % TOKENS


def _watch(model: dict[str, Any]) -> None:
    """Notes the model as it is made, and every step."""
    for name in HOLDERS:
        try:
            holder = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(holder, "setup_model_and_optimizer"):
            holder.setup_model_and_optimizer = _after_setup(holder.setup_model_and_optimizer, model)
        if hasattr(holder, "train_step"):
            holder.train_step = _in_step(holder.train_step, model)


def _after_setup(setup: Any, model: dict[str, Any]) -> Any:
    def noted(*args: Any, **named: Any) -> Any:
        out = setup(*args, **named)
        if model:
            return out
        model["chunks"], model["optimizer"] = list(out[0]), out[1]
        group.name_groups()
        passes.watch_passes(model["chunks"])
        return out

    return noted


def _in_step(step: Any, model: dict[str, Any]) -> Any:
    def noted(*args: Any, **named: Any) -> Any:
        NOTES.step += 1
        NOTES.phase = BETWEEN
        for chunk in model["chunks"]:
            parameters = list(chunk.parameters())
            NOTES.make_permanent(parameters)
            NOTES.make_permanent(p.main_grad for p in parameters if getattr(p, "main_grad", None) is not None)
            NOTES.make_permanent(torch.nn.Module.buffers(chunk))
        out = step(*args, **named)
        NOTES.close_step()
        NOTES.phase = "after"
        return out

    return noted


def _states(model: dict[str, Any]) -> dict[str, Any]:
    """Bytes of weights, gradients and optimizer states."""
    if not model:
        return {}
    chunks, seen = [], set()
    for number, chunk in enumerate(model["chunks"]):
        own = {name: p for name, p in chunk.named_parameters() if id(p) not in seen}
        seen |= {id(p) for p in own.values()}
        experts = [p for name, p in own.items() if ".experts." in name and ".shared_experts." not in name]
        chunks.append(
            {
                "chunk": number,
                "parameters": sum(p.numel() for p in own.values()),
                "expert_parameters": sum(p.numel() for p in experts),
                "bytes": sum(nbytes(p) for p in own.values()),
                "names": {name: list(p.shape) for name, p in own.items()},
            }
        )
    state = 0
    buffers = {
        id(buffer): buffer
        for chunk in model["chunks"]
        for buffer in (*_buffers(chunk, "buffers"), *_buffers(chunk, "expert_parallel_buffers"))
    }
    gradients = sum(nbytes(buffer.grad_data) for buffer in buffers.values())
    own = {id(p): p for chunk in model["chunks"] for p in chunk.parameters() if hasattr(p, "main_grad")}
    used = sum(nbytes(p.main_grad) for p in own.values())
    optimizer = model["optimizer"]
    for one in getattr(optimizer, "chained_optimizers", None) or [optimizer]:
        inner = getattr(one, "optimizer", None)
        for settings in getattr(inner, "param_groups", ()):
            for parameter in settings["params"]:
                state += nbytes(parameter)
                values = inner.state.get(parameter, {}) if inner is not None else {}
                state += sum(nbytes(v) for v in values.values() if torch.is_tensor(v) and v.numel() > 1)
    return {"chunks": chunks, "gradient_bytes": used, "padding_bytes": gradients - used, "optimizer_bytes": state}


def _buffers(chunk: Any, name: str) -> list[Any]:
    found = getattr(chunk, name, None)
    return found if isinstance(found, list) else []
