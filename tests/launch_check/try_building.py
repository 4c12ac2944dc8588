"""Do the frameworks hold the rules that only building or running shows? Pairs of rule_pairs.yaml, on the real code.

    python -m tests.launch_check.try_building --release NAME --megatron GITDIR [--mindspeed GITDIR]
        [--mindspeed-llm GITDIR] [--only RULE]

Pairs name in `built` how far a launch has to go before it is refused: `groups` (process groups among fake ranks),
`configuration` (TransformerConfig of the arguments), `model` (the chunks of the last stage), `buckets` (replicas of one
parameter), `replicas` (their configuration), `dispatcher` (of a layer of experts), `optimizer` (its shards), or a place
of the first step: `experts` (MoELayer.forward), `latents` (MoELayer.preprocess), `schedule` (the interleaved passes),
`chunks` (the products of --use-ascend-coc). Each is called with the arguments of the launch; what comes behind the
place is not run. Needs torch as `tests.launch_check.meta_build` does. Prints each pair that is not judged as it says.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import logging
import os
import pathlib
import sys
import tempfile
import typing
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version

from autodeploy.stack.releases import release_named
from tests.launch_check.checkouts import FOLDERS, checkout
from tests.launch_check.meta_build import ENTRY, Framework, OnMeta, in_child, stand_in_for_devices
from tests.launch_check.rule_pairs import DEVICES, EVERY, TRIED, document, environment_of, is_for, ranks_of, words_of
from tests.launch_check.scripts import Started

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Reached(Exception):
    """Raised behind the place that a rule is about: the launch got past it."""


class Behind:
    """Stands for what a function goes on with."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        raise Reached(name)


def behind(*_: object, **__: object) -> None:
    """Stands for a function that is called behind the place."""
    raise Reached


def configuration(framework: Framework) -> Any:
    """The configuration that the model is built with."""
    arguments = importlib.import_module("megatron.training.arguments")
    return arguments.core_transformer_config_from_args(framework.args)


def build_model(framework: Framework) -> None:
    """The chunks of the last stage, which holds the loss and the prediction layers."""
    framework.chunks(framework.stages - 1)


def wrap_model(framework: Framework) -> None:
    """The replicas' buckets over a model of one parameter."""
    framework.set_up()
    config = configuration(framework)
    distributed = importlib.import_module("megatron.core.distributed")
    given = {name: getattr(framework.args, name, None) for name in ("num_distributed_optimizer_instances",)}
    settings = distributed.DistributedDataParallelConfig(
        use_distributed_optimizer=framework.args.use_distributed_optimizer,
        average_in_collective=framework.args.ddp_average_in_collective,
        **given,
    )
    with OnMeta():
        distributed.DistributedDataParallel(config, settings, torch.nn.Linear(64, 64, bias=False))


def call_experts(framework: Framework) -> None:
    """The first lines of the layer of experts, in training."""
    framework.set_up()
    config = configuration(framework)
    tp = framework.args.tensor_model_parallel_size
    layer = importlib.import_module("megatron.core.transformer.moe.moe_layer").MoELayer
    hidden = torch.zeros(4, 1, config.hidden_size)
    layer.forward(Behind(training=True, config=config, attn_tp_group=SimpleNamespace(size=lambda: tp)), hidden)


def call_latents(framework: Framework) -> None:
    """The projection of tokens before they are dispatched, in training."""
    framework.set_up()
    config = configuration(framework)
    layer = importlib.import_module("megatron.core.transformer.moe.moe_layer").MoELayer
    built = Behind(training=True, config=config, shared_expert_overlap=config.moe_shared_expert_overlap)
    built.token_dispatcher = None
    inspect.unwrap(layer.preprocess)(built, None, None, None)


def make_dispatcher(framework: Framework) -> None:
    """The dispatcher of a layer of experts, without the backend's library."""
    framework.set_up()
    config = configuration(framework)
    module = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    module._DeepepManager = behind
    module.nccl_ep_dispatch = behind
    local = config.num_moe_experts // framework.args.expert_model_parallel_size
    groups = {}
    with contextlib.suppress(ImportError, AttributeError):  # core_v0.12.1 looks its groups up itself
        groups["pg_collection"] = importlib.import_module(
            "megatron.core.transformer.moe.moe_utils"
        ).get_default_pg_collection()
    module.MoEFlexTokenDispatcher(local, list(range(local)), config, **groups)


def configure_replicas(framework: Framework) -> None:
    """What the replicas of the model are configured with."""
    importlib.import_module("megatron.training.training").get_megatron_ddp_config(framework.args)


def shard_optimizer(framework: Framework) -> None:
    """The sharded optimizer over the one that the arguments name; it asks for buckets once it has taken it."""
    args = framework.args
    if not args.use_distributed_optimizer:
        return
    kinds = importlib.import_module("megatron.core.optimizer")
    sharded = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
    chosen = getattr(kinds, {"adam": "Adam", "sgd": "SGD"}[args.optimizer])
    config = kinds.OptimizerConfig(optimizer=args.optimizer, bf16=args.bf16, lr=args.lr)
    shards = sharded.DistributedOptimizer.__new__(sharded.DistributedOptimizer)
    weight = torch.nn.Parameter(torch.zeros(4))
    given = {name: None for name in inspect.signature(sharded.DistributedOptimizer.__init__).parameters}
    given |= {"optimizer": chosen([weight], lr=args.lr), "config": config}
    given |= {"model_chunks": [SimpleNamespace(ddp_config=Behind())]}
    del given["self"]
    try:
        with OnMeta():
            sharded.DistributedOptimizer.__init__(shards, **given)
    except AssertionError as error:
        if "per_model_buffers" not in str(error) and str(error):
            raise


def call_schedule(framework: Framework) -> None:
    """The first lines of the interleaved passes over chunks that hold nothing."""
    framework.set_up()
    args, config = framework.args, configuration(framework)
    schedules = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    for name in ("get_model_type", "get_pp_rank_microbatches"):
        setattr(schedules, name, behind)
    chunks = [torch.nn.Module() for _ in range(args.virtual_pipeline_model_parallel_size)]
    for chunk in chunks:
        chunk.config = config
        chunk.model_type = None
    calculator = importlib.import_module("megatron.core.num_microbatches_calculator")
    with OnMeta():
        schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=None,
            data_iterator=[None for _ in chunks],
            model=chunks,
            num_microbatches=calculator.get_num_microbatches(),
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
        )


def call_chunks(framework: Framework) -> None:
    """The choice of how products are cut that hide their communication."""
    args = framework.args
    feature = importlib.import_module("mindspeed.core.tensor_parallel.coc_feature.min_comm_cfg")
    chosen = feature.MinCommConfig()
    chosen.register_coc_get_param(args.coc_mode, args.coc_parallel_num, args.coc_fused_kernel)
    chosen.register_sequence_parallel_switch(args.sequence_parallel)
    chosen.acquire_module_type(args.tensor_model_parallel_size)


def call_configuration(framework: Framework) -> None:
    """The configuration after the groups."""
    framework.set_up()
    configuration(framework)


INSTALLED = "2.20.0"  # Transformer Engine that configurations ask for; no kernel of it is called
WITHOUT_KERNELS = ["--no-rope-fusion"]  # Transformer Engine's, which MindSpeed stands in for
STEPS: dict[str, Callable[[Framework], None]] = {
    "groups": Framework.set_up,
    "configuration": call_configuration,
    "model": build_model,
    "buckets": wrap_model,
    "experts": call_experts,
    "latents": call_latents,
    "dispatcher": make_dispatcher,
    "replicas": configure_replicas,
    "optimizer": shard_optimizer,
    "schedule": call_schedule,
    "chunks": call_chunks,
}


def load_early(trees: Mapping[str, pathlib.Path]) -> None:
    """Imports plain Megatron-LM once for all launches; MindSpeed's patches follow the arguments of each."""
    sys.path[:0] = [str(tree) for tree in trees.values()]
    typing.override = getattr(typing, "override", lambda method: method)  # type: ignore[attr-defined]
    stand_in_for_devices(DEVICES)
    importlib.import_module("megatron.core.utils")._te_version = Version(INSTALLED)
    with contextlib.suppress(ModuleNotFoundError):  # releases before 0.18 have none
        importlib.import_module("megatron.core.tensor_parallel.gtp_api").HAVE_GTP = True
    importlib.import_module("megatron.training.training")


def verdict(pair: dict[str, Any], changes: tuple[str, ...], trees: Mapping[str, pathlib.Path], answer: str) -> bool:
    """Writes "OK" or the framework's words to a file; the process can do nothing else afterwards."""
    said = "OK"
    with contextlib.redirect_stdout(open(os.devnull, "w")), contextlib.redirect_stderr(sys.stdout):
        try:
            words = words_of(pair, *changes)
            if "mindspeed" not in trees and "--multi-latent-attention" not in words:
                words += WITHOUT_KERNELS
            os.environ |= environment_of(pair, *changes)
            launch = Started(words, ranks_of(pair), DEVICES)
            STEPS[pair["built"]](Framework(trees, launch))
        except Reached:
            pass
        except BaseException as error:  # a framework may raise anything, SystemExit too
            said = f"{type(error).__name__}: {str(error)[:400]}"
    pathlib.Path(answer).write_text(json.dumps(said), encoding="utf-8")
    return True


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=TRIED, default=EVERY[0])
    for name in FOLDERS:
        parser.add_argument(f"--{name}", metavar="GITDIR")
    parser.add_argument("--only", default="", metavar="RULE", help="pairs of rules whose names have this in them")
    given = vars(parser.parse_args(argv))
    components = release_named(given["release"]).components
    git_dirs = {name: given[name.replace("-", "_")] for name in components}
    if missing := [name for name, path in git_dirs.items() if path is None]:
        parser.error(f"{given['release']} needs --" + " and --".join(missing))
    pairs = [
        pair
        for pair in document()["pairs"]
        if "built" in pair and given["only"] in pair["rule"] and is_for(pair, given["release"])
    ]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        trees = {
            name: checkout(git_dirs[name], part.commit, (*FOLDERS[name], *ENTRY[name]), work / "trees" / name)
            for name, part in components.items()
        }
        os.chdir(work)
        answer = str(work / "answer.json")
        if "mindspeed" not in trees:
            load_early(trees)
        bad = 0
        for pair in pairs:
            words = []
            for changes in (("obey",), ("obey", "break")):
                in_child(lambda changes=changes, pair=pair: verdict(pair, changes, trees, answer))
                words.append(json.loads(pathlib.Path(answer).read_text(encoding="utf-8")))
            if words[0] != "OK" or pair["says"] not in words[1]:
                bad += 1
                print(f"{pair['rule']}\n  obeys it: {words[0]}\n  breaks it: {words[1]}", flush=True)
    print(f"{len(pairs) - bad} of {len(pairs)} pairs are judged as they say by {given['release']}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
