"""Recompute, swap and optimizer memory that a launch's flags describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.exporters.memory_arguments import MEGATRON_MODULES
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.importers.flag_reader import FlagReader

FIELD = "/strategy/recompute"
SWAPS = {
    "--swap-attention": "attention",
    "--mla-swap-core-attn-out": "core_attn_out",
    "--moe-unperm2-mem-optim-swap": "unpermute",
    "--swap-layer-input": "layer_input",
}
COUNTED = {
    "--recompute-activation-function": "activation",
    "--recompute-norm": "norm",
}


def read_memory(reader: FlagReader, strategy: dict[str, Any], layers: int) -> dict[str, Any]:
    """The strategy's `recompute`, `swap` and optimizer switches."""
    stages = _layers_of_stages(strategy, layers)
    counts = _modules(reader, stages) | _full(reader, strategy, stages)
    swap = sorted({name for flag, name in SWAPS.items() if reader.switch(flag, "/strategy/swap")})
    reader.ignore(["--swap-modules"], Message("importers.predicted_as", what="--swap-attention"))
    offloads = [
        reader.switch(flag, "/strategy/swap_optimizer") for flag in ("--swap-optimizer", "--optimizer-cpu-offload")
    ]
    return {
        "recompute": _document(counts, stages),
        "swap": swap,
        "swap_optimizer": any(offloads),
        "reuse_fp32_param": reader.switch("--reuse-fp32-param", "/strategy/reuse_fp32_param"),
    }


def _layers_of_stages(strategy: dict[str, Any], layers: int) -> list[int]:
    placed = strategy.get("layers_per_stage")
    pp = strategy["pp"]
    if placed is None:
        return [layers // pp + (stage < layers % pp) for stage in range(pp)]
    return [sum(row) if isinstance(row, list) else row for row in placed]


def _full(reader: FlagReader, strategy: dict[str, Any], stages: Sequence[int]) -> dict[str, list[int]]:
    """Whole layers: `uniform` keeps the input of each group, so that all are recomputed; `block` only the first N."""
    granularity = reader.text("--recompute-granularity", f"{FIELD}/granularity")
    method = reader.text("--recompute-method", f"{FIELD}/num_layers")
    number = reader.number("--recompute-num-layers", f"{FIELD}/num_layers")
    per_stage = reader.switch("--enable-recompute-layers-per-pp-rank", f"{FIELD}/num_layers")
    if granularity is None and number is not None and reader.has("--swap-attention"):
        return _beside_swap(reader, strategy, stages, number, per_stage=per_stage)
    if granularity != "full":
        return {}
    if method != "block" or number is None:
        return {"full": list(stages)}
    if strategy["vpp"] > 1 and not per_stage:
        number *= strategy["vpp"]
    return {"full": [min(number, stage) for stage in stages]}


def _beside_swap(
    reader: FlagReader, strategy: dict[str, Any], stages: Sequence[int], number: int, *, per_stage: bool
) -> dict[str, list[int]]:
    """Layers whose `mlp` module, dense or with experts, is recomputed: with `--swap-attention` and no granularity.

    After MindSpeed's `solve_prefetch_policy` (adaptive_recompute.py).
    """
    if strategy["vpp"] > 1 and not per_stage:
        number *= strategy["vpp"]
    method = reader.text("--recompute-method", f"{FIELD}/modules")
    if method == "uniform":
        number = max(stages)
    counts = [min(number, stage) for stage in stages]
    if method == "block" and number < max(stages):
        given = reader.script.flags["--recompute-method"]
        reason = Message("importers.attention_swapped_everywhere")
        reader.log.unmodelled(given.place, method, reason)
    return {"moe" if reader.has("--num-experts") else "mlp": counts}


def _modules(reader: FlagReader, stages: Sequence[int]) -> dict[str, list[int]]:
    """Modules recomputed alone -> layers of each stage."""
    modules: dict[str, list[int]] = {}
    by_flag = {flag: name for name, flag in MEGATRON_MODULES.items()}
    given = reader.words("--recompute-modules", f"{FIELD}/modules")
    selective = (
        reader.script.flags["--recompute-granularity"].text == "selective" if _has_granularity(reader) else False
    )
    if selective or reader.has("--recompute-activations"):
        for word in given or ("core_attn",):
            if word in by_flag:
                modules[by_flag[word]] = list(stages)
            else:
                reader.log.ignore("--recompute-modules", word, Message("common.is_not_modelled_yet", what=word))
    for flag, name in COUNTED.items():
        number = reader.number(f"{flag}-num-layers", f"{FIELD}/modules")
        if reader.switch(flag, f"{FIELD}/modules"):
            modules[name] = [stage if number is None else min(number, stage) for stage in stages]
    if reader.switch("--recompute-mla-up-proj", f"{FIELD}/modules"):
        modules["mla_up_proj"] = list(stages)
        reader.ignore(["--mla-up-proj-tp-overlap", "--mla-mm-split"], Message("importers.no_field_of_spec"))
    number = reader.number("--moe-zero-memory-num-layers", f"{FIELD}/modules")
    if (level := reader.text("--moe-zero-memory", f"{FIELD}/modules")) in {"level0", "level1"}:
        modules[f"moe_zero_memory_{level}"] = [stage if number is None else min(number, stage) for stage in stages]
    return modules


def _has_granularity(reader: FlagReader) -> bool:
    return reader.has("--recompute-granularity")


def _document(counts: dict[str, list[int]], stages: Sequence[int]) -> dict[str, Any]:
    """The strategy's `recompute`: short where every layer of every stage does the same, by stage otherwise."""
    counts = {name: layers for name, layers in counts.items() if any(layers)}
    if not counts:
        return {"granularity": "none"}
    modules = sorted(name for name in counts if name != "full")
    granularity = "selective" if modules else "full"
    document: dict[str, Any] = {"granularity": granularity, "modules": modules}
    if all(layers == list(stages) for layers in counts.values()) and not ("full" in counts and modules):
        return document
    rows = [{name: layers[stage] for name, layers in counts.items() if layers[stage]} for stage in range(len(stages))]
    return document | {"per_stage": rows}
