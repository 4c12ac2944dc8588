"""The update of a verl launch: Megatron's degrees and overrides read as Megatron's flags, or FSDP2's few keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.errors import UnsupportedError
from autodeploy.importers.diagnostics import not_modelled
from autodeploy.importers.flag_reader import FlagReader
from autodeploy.importers.launch_script import GivenFlag, LaunchScript
from autodeploy.importers.megatron_strategy import read_strategy
from autodeploy.importers.override_reader import plain
from autodeploy.importers.shell_values import Run, Value
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.importers.override_reader import OverrideReader

ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
FSDP = f"{ACTOR}.fsdp_config"
SHARDED = ("fsdp", "fsdp2")
DEGREES = {
    "tensor_model_parallel_size": "--tensor-model-parallel-size",
    "pipeline_model_parallel_size": "--pipeline-model-parallel-size",
    "context_parallel_size": "--context-parallel-size",
    "expert_model_parallel_size": "--expert-model-parallel-size",
    "expert_tensor_parallel_size": "--expert-tensor-parallel-size",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
}
OPEN = (
    f"{MEGATRON}.override_transformer_config.",
    f"{MEGATRON}.override_ddp_config.",
    f"{ACTOR}.optim.override_optimizer_config.",
)
ENDS = {
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
}
OFFLOADS = {"optimizer": "optimizer_offload", "gradients": "grad_offload", "parameters": "param_offload"}


def read_update(
    reader: OverrideReader, model: dict[str, Any], program: str, config: str
) -> tuple[dict[str, Any], FlagReader | None]:
    """The `strategy` of a spec, with `offload` for its part of post-training; and the reader of Megatron's flags.

    Raises
    ------
    UnsupportedError
        for backends that are not planned.
    """
    engine = reader.text("model_engine", "/strategy/fsdp")
    by_config = (
        "megatron" if "megatron" in config or engine == "megatron" else engine if engine not in {None, "dp"} else ""
    )
    backend = reader.text(f"{ACTOR}.strategy", "/strategy/fsdp") or by_config or "fsdp"
    if by_config == "megatron":
        backend = "megatron"
    if backend == "megatron":
        return _megatron(reader, model)
    if backend in SHARDED:
        return _sharded(reader), None
    raise UnsupportedError(
        not_modelled(backend[:40], program[:60]),
        path="/strategy",
        hint=Message("common.one_of", names="megatron, fsdp2"),
    )


def _offload(reader: OverrideReader, section: str, names: dict[str, str]) -> list[str]:
    field = "/strategy/rl/offload"
    return [name for name, key in names.items() if reader.switch(f"{section}.{key}", field, default=False)]


def _sharded(reader: OverrideReader) -> dict[str, Any]:
    keys = (f"{FSDP}.ulysses_sequence_parallel_size", f"{ACTOR}.ulysses_sequence_parallel_size")
    cp = max(reader.number(key, "/strategy/cp") or 1 for key in keys)
    full = reader.switch("actor_rollout_ref.model.enable_gradient_checkpointing", "/strategy/recompute", default=True)
    offload = _offload(reader, FSDP, {name: OFFLOADS[name] for name in ("optimizer", "parameters")})
    return {
        "fsdp": True,
        "cp": cp,
        **({"cp_algo": "ulysses"} if cp > 1 else {}),
        "micro_batch_size": _micro_batch(reader),
        "recompute": {"granularity": "full" if full else "none"},
        "features": [],
        "offload": [*offload, *(["gradients"] if "parameters" in offload else [])],
    }


def _micro_batch(reader: OverrideReader) -> int:
    return reader.number(f"{ACTOR}.ppo_micro_batch_size_per_gpu", "/strategy/micro_batch_size") or 1


def _megatron(reader: OverrideReader, model: dict[str, Any]) -> tuple[dict[str, Any], FlagReader | None]:
    """verl builds the model from its Hugging Face configuration: of the shape only layers and experts are flags."""
    shape: dict[str, Any] = {"--num-layers": model["num_hidden_layers"]}
    if model.get("n_routed_experts"):
        # Its converters' own choices (verl/models/mcore/config_converter.py).
        shape |= {"--num-experts": model["n_routed_experts"], "--moe-token-dispatcher-type": "alltoall"}
        shape |= {"--moe-grouped-gemm": True}
    flags = {flag: _flag(flag, value, 1) for flag, value in shape.items()}
    flags["--micro-batch-size"] = _flag("--micro-batch-size", _micro_batch(reader), 1)
    for name, flag in DEGREES.items():
        if (value := reader.number(f"{MEGATRON}.{name}", "/strategy")) is not None:
            flags[flag] = _flag(flag, value, reader.given[f"{MEGATRON}.{name}"].line)
    for key, flag in (
        ("sequence_parallel", "--sequence-parallel"),
        ("use_distributed_optimizer", "--use-distributed-optimizer"),
    ):
        if reader.switch(f"{MEGATRON}.{key}", "/strategy", default=True):
            flags[flag] = _flag(flag, True, 1)
    for prefix in OPEN:
        for name, given in reader.under(prefix).items():
            _take_override(reader, flags, prefix, name, given)
    reader.under("actor_rollout_ref.ref.megatron.")
    inner = FlagReader(LaunchScript("verl", flags))
    strategy, _ = read_strategy(inner)
    if strategy["tp"] == 1:
        strategy["sequence_parallel"] = False
    strategy["offload"] = _offload(reader, MEGATRON, OFFLOADS)
    return strategy, inner


def _take_override(
    reader: OverrideReader, flags: dict[str, GivenFlag], prefix: str, name: str, given: GivenFlag
) -> None:
    """One key of an open mapping as the flag that says the same; what is false or null is none."""
    value = plain(given.text)
    if value.lower() in {"false", "null", "none"}:
        return
    if given.unknown:
        reader.text(prefix + name, "/strategy")
    flag = ENDS.get(name, f"--{name.replace('_', '-')}")
    if value.startswith("[") and value.endswith("]"):
        words: Any = [each.strip(" '\"") for each in value[1:-1].split(",")]
    else:
        words = True if value.lower() == "true" else value
    flags[flag] = _flag(flag, words, given.line)


def _flag(name: str, value: Any, line: int) -> GivenFlag:
    words = [] if value is True else value if isinstance(value, list) else [value]
    return GivenFlag(name, tuple(Value((Run(str(word), 0),)) for word in words), line, 1)
