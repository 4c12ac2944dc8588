"""Recompute, swap and optimizer memory of a plan in launch flags.

The public releases count layers the same on every stage. Where a plan chooses per stage, the largest count of any stage
is written: memory is then at most the plan's, and some time is lost, which a note says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.exporters.arguments import LaunchArguments
    from autodeploy.exporters.layer_placement import Placement
    from autodeploy.specs.strategy import Strategy

BLOCK = "RECOMPUTE_ARGS"
MEGATRON_MODULES = {
    "core_attn": "core_attn",
    "mla_up_proj": "mla_up_proj",
    "norm": "layernorm",
    "activation": "moe_act",
    "mlp": "mlp",
    "moe": "moe",
    "shared_experts": "shared_experts",
}
SAME_IN_MINDSPEED = frozenset({"core_attn", "mlp", "moe", "shared_experts"})


def recomputed_layers(strategy: Strategy, most: int) -> dict[str, tuple[int, bool]]:
    """Module ("full": whole layers) -> layers a stage that recompute it, at most `most`; whether all stages agree."""
    recompute = strategy.recompute
    if recompute.granularity == "none":
        return {}
    if recompute.per_stage is not None:
        counts = by_stage(recompute.per_stage)
        return {name: (min(most, max(given)), len(set(given)) == 1) for name, given in counts.items() if max(given) > 0}
    layers = recompute.num_layers if recompute.num_layers is not None else most
    agree = True
    if recompute.num_layers_per_stage is not None:
        layers, agree = max(recompute.num_layers_per_stage), len(set(recompute.num_layers_per_stage)) == 1
    names_chosen = ("full",) if recompute.granularity == "full" else recompute.modules
    return {name: (min(most, layers), agree) for name in names_chosen if layers > 0}


def by_stage(stages: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """Choice -> layers of each stage. A plan counts layers of each class ("full@moe"); the flags know only layers."""
    names = dict.fromkeys(key.partition("@")[0] for stage in stages for key in stage)
    return {
        name: [sum(count for key, count in stage.items() if key.partition("@")[0] == name) for stage in stages]
        for name in names
    }


def add_recompute(arguments: LaunchArguments, strategy: Strategy, placed: Placement) -> None:
    """RECOMPUTE_ARGS."""
    most = max(placed.layers_of_stage(stage) for stage in range(len(placed.chunks[0])))
    chosen = recomputed_layers(strategy, most)
    if not all(agree for _, agree in chosen.values()):
        arguments.note(
            "the plan recomputes a different number of layers on each stage; the flags give every stage the largest"
        )
    if "full" in chosen:
        _add_full(arguments, strategy, chosen["full"][0], most)
    modules = {name: layers for name, (layers, _) in chosen.items() if name != "full"}
    if arguments.target == "megatron":
        _add_megatron_modules(arguments, modules, most, with_full="full" in chosen)
    else:
        _add_mindspeed_modules(arguments, strategy, modules, most)


def _add_full(arguments: LaunchArguments, strategy: Strategy, layers: int, most: int) -> None:
    arguments.add(BLOCK, "--recompute-granularity", "full")
    if layers == most:
        arguments.add(BLOCK, "--recompute-method", "uniform")
        arguments.add(BLOCK, "--recompute-num-layers", 1)
        return
    arguments.add(BLOCK, "--recompute-method", "block")
    arguments.add(
        BLOCK, "--recompute-num-layers", layers if _per_stage(arguments, strategy) else _per_chunk(strategy, layers)
    )


def _per_stage(arguments: LaunchArguments, strategy: Strategy) -> bool:
    """Counts are per stage; with virtual stages MindSpeed needs to be told so, and Megatron can't be."""
    if strategy.vpp == 1:
        return True
    if arguments.target == "mindspeed-llm":
        arguments.add(BLOCK, "--enable-recompute-layers-per-pp-rank")
        return True
    return False


def _per_chunk(strategy: Strategy, layers: int) -> int:
    return -(-layers // strategy.vpp)


def _add_megatron_modules(arguments: LaunchArguments, modules: dict[str, int], most: int, *, with_full: bool) -> None:
    known = [MEGATRON_MODULES[name] for name in modules if name in MEGATRON_MODULES]
    for name in modules:
        if name not in MEGATRON_MODULES:
            arguments.note(f"Megatron-LM can't recompute {name} alone")
    if not known:
        return
    if with_full:
        arguments.note(f"full recompute leaves no room for {'+'.join(known)} on the other layers")
        return
    arguments.add(BLOCK, "--recompute-granularity", "selective")
    arguments.add(BLOCK, "--recompute-modules", *known)
    if any(layers < most for layers in modules.values()):
        arguments.note("Megatron-LM recomputes a module on all layers, the plan on some")


def _add_mindspeed_modules(arguments: LaunchArguments, strategy: Strategy, modules: dict[str, int], most: int) -> None:
    for name, layers in modules.items():
        if name in {"activation", "norm"}:
            flag = "--recompute-activation-function" if name == "activation" else "--recompute-norm"
            arguments.add(BLOCK, flag)
            if layers < most:
                arguments.add(BLOCK, f"{flag}-num-layers", layers)
                _per_stage(arguments, strategy)
        elif name == "mla_up_proj":
            arguments.add(BLOCK, "--recompute-mla-up-proj")
            if strategy.tp > 1:
                arguments.add("MLA_ARGS", "--mla-mm-split")
                arguments.add("MLA_ARGS", "--mla-up-proj-tp-overlap")
        elif name in {"moe_zero_memory_level0", "moe_zero_memory_level1"}:
            arguments.add("MOE_ARGS", "--moe-zero-memory", name.removeprefix("moe_zero_memory_"))
            if layers < most and not arguments.has("--moe-fb-overlap"):
                arguments.add("MOE_ARGS", "--moe-zero-memory-num-layers", layers)
        elif name not in SAME_IN_MINDSPEED:
            arguments.note(f"no public flag recomputes {name} alone")
    same = [name for name in modules if name in SAME_IN_MINDSPEED]
    if same and arguments.has("--recompute-granularity"):
        arguments.note(f"full recompute leaves no room for {'+'.join(same)} on the other layers")
    elif same:
        arguments.add(BLOCK, "--recompute-granularity", "selective")
        arguments.add(BLOCK, "--recompute-modules", *same)
    if same and any(name in modules for name in ("activation", "norm")):
        arguments.note(f"selective recompute of {'+'.join(same)} excludes activation and norm recompute in MindSpeed")


def add_swap(arguments: LaunchArguments, strategy: Strategy) -> None:
    """Swapped activations and where the optimizer's states are."""
    counts = by_stage(strategy.swap_per_stage or ())
    swapped = dict.fromkeys([*strategy.swap, *counts])
    if "swap_attention" in strategy.features:
        swapped["attention"] = None
    optimizer = "OPTIMIZE_ARGS"
    if arguments.target == "megatron":
        if swapped or strategy.reuse_fp32_param:
            arguments.note("swap and reuse-fp32-param are MindSpeed's; Megatron-LM has other means of offloading")
        if strategy.swap_optimizer:
            arguments.add(optimizer, "--optimizer-cpu-offload")
        return
    for name in swapped:
        if name == "attention":
            _add_attention_swap(arguments, strategy)
        elif name == "core_attn_out" and strategy.schedule == "dualpipev" and arguments.has("--multi-latent-attention"):
            arguments.add("SWAP_ARGS", "--mla-swap-core-attn-out")
        elif name == "unpermute":
            arguments.add("SWAP_ARGS", "--moe-unperm2-mem-optim-swap")
        elif name == "layer_input":
            arguments.add("SWAP_ARGS", "--swap-layer-input")
        else:
            arguments.note(f"no public flag swaps {name}")
    if any(len(set(found)) > 1 for found in counts.values()):
        arguments.note("the plan swaps a different number of layers on each stage; the flags swap on every layer")
    if strategy.swap_optimizer:
        arguments.add(optimizer, "--swap-optimizer")
    if strategy.reuse_fp32_param:
        arguments.add(optimizer, "--reuse-fp32-param")


def _add_attention_swap(arguments: LaunchArguments, strategy: Strategy) -> None:
    overlapped = arguments.has("--moe-fb-overlap")
    if overlapped and strategy.schedule == "dualpipev" and arguments.has("--multi-latent-attention"):
        arguments.add("SWAP_ARGS", "--mla-swap-core-attn-out")
    elif overlapped:
        arguments.note("MindSpeed's --swap-attention excludes --moe-fb-overlap: the attention swap is left out")
    else:
        arguments.add("SWAP_ARGS", "--swap-attention")
