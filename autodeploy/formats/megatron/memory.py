"""Recompute, swap and optimizer memory that a launch's flags describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.messages import Message
from autodeploy.specs.strategy import ChoiceKey
from autodeploy.stack.memory_choices import MEMORY_CHOICES, RECOMPUTED, SWAPPED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.formats.megatron.arguments import LaunchArguments
    from autodeploy.formats.megatron.layers import Placement
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.strategy import Strategy


# Recompute, swap and optimizer memory of a plan in launch flags.
BLOCK = "RECOMPUTE_ARGS"
# What only layers with experts hold, as strategies name it.
OF_EXPERTS = frozenset(each.swap or each.name for each in MEMORY_CHOICES.values() if each.experts)


def recomputed_layers(strategy: Strategy, stages: int, most: int) -> dict[str, list[int]]:
    """Module ("full": whole layers) -> layers of each stage that recompute it, at most `most`."""
    recompute = strategy.recompute
    if recompute.granularity == "none":
        return {}
    if recompute.per_stage is not None:
        counts = by_stage(recompute.per_stage)
        return {name: [min(most, count) for count in given] for name, given in counts.items() if max(given) > 0}
    names_chosen = ("full",) if recompute.granularity == "full" else recompute.modules
    layers = [recompute.num_layers if recompute.num_layers is not None else most] * stages
    if recompute.num_layers_per_stage is not None:
        layers = list(recompute.num_layers_per_stage)
    return {name: [min(most, count) for count in layers] for name in names_chosen if max(layers) > 0}


def treats_as_planned(name: str, given: Sequence[int], present: Sequence[int], full: Sequence[int]) -> bool:
    """Whether the largest count, given to every stage, treats as many layers as the plan on each.

    present : layers of each stage that have what is treated. full : those recomputed whole, where it is no difference.
    """
    most = max(given)
    each = zip(given, present, full, strict=True)
    if name == "full":
        return all(count == min(most, layers) for count, layers, _ in each)
    return all(
        min(most, layers - whole) <= count <= min(most, layers) or count >= layers for count, layers, whole in each
    )


def by_stage(stages: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """Choice -> layers of each stage. A plan counts layers of each class ("full@moe"); the flags know only layers."""
    names = dict.fromkeys(ChoiceKey.of(key).name for stage in stages for key in stage)
    return {
        name: [sum(count for key, count in stage.items() if ChoiceKey.of(key).name == name) for stage in stages]
        for name in names
    }


def held_layers(name: str, placed: Placement, model: ModelSpec) -> list[int]:
    """Layers of each stage that have what a choice treats."""
    stages = placed.stages()
    if name not in OF_EXPERTS:
        return [len(layers) for layers in stages]
    return [sum(model.is_moe_layer(layer) for layer in layers) for layers in stages]


def add_recompute(arguments: LaunchArguments, strategy: Strategy, placed: Placement, model: ModelSpec) -> None:
    """RECOMPUTE_ARGS."""
    stages = len(placed.chunks[0])
    most = max(placed.layers_of_stage(stage) for stage in range(stages))
    chosen = recomputed_layers(strategy, stages, most)
    full = chosen.get("full", [0] * stages)
    present = {name: held_layers(name, placed, model) for name in chosen}
    if not all(treats_as_planned(name, given, present[name], full) for name, given in chosen.items()):
        arguments.note(Message("exporters.applied_to_more_layers", what="recompute"))
    if "full" in chosen:
        _add_full(arguments, strategy, max(full), most)
    some = {
        name for name, given in chosen.items() if any(n < all_ for n, all_ in zip(given, present[name], strict=True))
    }
    modules = {name: max(given) for name, given in chosen.items() if name != "full"}
    if not arguments.release.has("mindspeed"):
        _add_megatron_modules(arguments, modules, some, with_full="full" in chosen)
    else:
        _add_mindspeed_modules(arguments, strategy, modules, some, model.num_hidden_layers // stages)


def _add_full(arguments: LaunchArguments, strategy: Strategy, layers: int, most: int) -> None:
    arguments.add(BLOCK, "--recompute-granularity", "full")
    if layers == most:
        arguments.add(BLOCK, "--recompute-method", "uniform")
        arguments.add(BLOCK, "--recompute-num-layers", 1)
        return
    arguments.add(BLOCK, "--recompute-method", "block")
    number = layers if _per_stage(arguments, strategy) else -(-layers // strategy.vpp)
    arguments.add(BLOCK, "--recompute-num-layers", number)


def _per_stage(arguments: LaunchArguments, strategy: Strategy) -> bool:
    """Counts are per stage; with virtual stages MindSpeed needs to be told so, and Megatron can't be."""
    if strategy.vpp == 1:
        return True
    if arguments.knows("--enable-recompute-layers-per-pp-rank"):
        arguments.add(BLOCK, "--enable-recompute-layers-per-pp-rank")
        return True
    return False


def _add_megatron_modules(
    arguments: LaunchArguments, modules: dict[str, int], some: set[str], *, with_full: bool
) -> None:
    megatron_names = [word for name in modules if (word := RECOMPUTED[name].megatron)]
    for name in modules:
        if not RECOMPUTED[name].megatron:
            arguments.lacks(f"recompute: {name}", "Megatron-LM")
    if not megatron_names:
        return
    if with_full:
        arguments.note(Message("exporters.not_recomputed_together", one="full", other="+".join(megatron_names)))
        return
    arguments.add(BLOCK, "--recompute-granularity", "selective")
    arguments.add(BLOCK, "--recompute-modules", *megatron_names)
    if some & modules.keys():
        arguments.note(Message("exporters.applied_to_more_layers", what="--recompute-modules"))


def _add_mindspeed_modules(
    arguments: LaunchArguments, strategy: Strategy, modules: dict[str, int], some: set[str], even: int
) -> None:
    same = [name for name in modules if RECOMPUTED[name].megatron and not RECOMPUTED[name].flag]
    if "mla_up_proj" in modules and not arguments.knows(RECOMPUTED["mla_up_proj"].flag):
        same.append("mla_up_proj")  # Megatron-LM's own, of all layers
    for name, layers in modules.items():
        flag = RECOMPUTED[name].flag
        if RECOMPUTED[name].counted:
            arguments.add(BLOCK, flag)
            if name in some:
                arguments.add(BLOCK, f"{flag}-num-layers", layers)
                _per_stage(arguments, strategy)
        elif name == "mla_up_proj" and arguments.knows(flag):
            arguments.add(BLOCK, flag)
            if strategy.tp > 1:
                arguments.add("MLA_ARGS", "--mla-mm-split")
                arguments.add("MLA_ARGS", "--mla-up-proj-tp-overlap")
        elif name in ZERO_MEMORY:
            arguments.add("MOE_ARGS", flag, ZERO_MEMORY[name])
            # MindSpeed moe_zero_memory.py refuses the count beside --moe-fb-overlap and above the layers of an even
            # stage, which a list of layers makes one: all layers then save memory.
            counts = not arguments.has("--moe-fb-overlap") and not arguments.has("--num-layer-list")
            if name in some and counts and layers <= even:
                arguments.add("MOE_ARGS", "--moe-zero-memory-num-layers", layers)
        elif name not in same:
            arguments.lacks(f"recompute: {name}", "MindSpeed")
    if same and arguments.has("--recompute-granularity"):
        arguments.note(Message("exporters.not_recomputed_together", one="full", other="+".join(same)))
    elif same:
        arguments.add(BLOCK, "--recompute-granularity", "selective")
        arguments.add(BLOCK, "--recompute-modules", *same)
    if same and any(RECOMPUTED[name].counted for name in modules):
        arguments.note(Message("exporters.not_recomputed_together", one="activation, norm", other="+".join(same)))


def add_swap(arguments: LaunchArguments, strategy: Strategy, placed: Placement, model: ModelSpec) -> None:
    """Swapped activations and where the optimizer's states are."""
    counts = by_stage(strategy.swap_per_stage or ())
    swapped = dict.fromkeys([*strategy.swap, *counts])
    if "swap_attention" in strategy.features:
        swapped["attention"] = None
    optimizer = "OPTIMIZE_ARGS"
    if not arguments.release.has("mindspeed"):
        if swapped or strategy.reuse_fp32_param:
            arguments.lacks("swap, reuse_fp32_param", "Megatron-LM")
        if strategy.swap_optimizer or strategy.optimizer_offload_fraction is not None:
            _add_host_optimizer(arguments, strategy)
        return
    for name in swapped:
        if name == "attention":
            _add_attention_swap(arguments, strategy)
        elif _has_swap(arguments, strategy, name):
            arguments.add("SWAP_ARGS", SWAPPED[name].flag)
        else:
            arguments.lacks(f"swap: {name}", "MindSpeed")
    if any(
        counts_of_stages != held_layers(name, placed, model)
        for name, counts_of_stages in counts.items()
        if any(counts_of_stages)
    ):
        arguments.note(Message("exporters.applied_to_more_layers", what="swap"))
    if strategy.optimizer_offload_fraction is not None:
        _add_host_optimizer(arguments, strategy)
    elif strategy.swap_optimizer:
        arguments.add(optimizer, "--swap-optimizer")
    if strategy.reuse_fp32_param:
        arguments.add(optimizer, "--reuse-fp32-param")


def _add_host_optimizer(arguments: LaunchArguments, strategy: Strategy) -> None:
    arguments.add("OPTIMIZE_ARGS", "--optimizer-cpu-offload")
    if strategy.optimizer_offload_fraction is not None:
        arguments.add("OPTIMIZE_ARGS", "--optimizer-offload-fraction", strategy.optimizer_offload_fraction)


def _has_swap(arguments: LaunchArguments, strategy: Strategy, name: str) -> bool:
    if name == "core_attn_out":
        return _swaps_latent_attention(arguments, strategy)
    return bool(SWAPPED[name].flag) and arguments.knows(SWAPPED[name].flag)


def _swaps_latent_attention(arguments: LaunchArguments, strategy: Strategy) -> bool:
    latent = arguments.has("--multi-latent-attention") and arguments.knows(SWAPPED["core_attn_out"].flag)
    return latent and strategy.schedule == "dualpipev"


def _add_attention_swap(arguments: LaunchArguments, strategy: Strategy) -> None:
    overlapped = arguments.has("--moe-fb-overlap")
    if overlapped and _swaps_latent_attention(arguments, strategy):
        arguments.add("SWAP_ARGS", SWAPPED["core_attn_out"].flag)
    elif overlapped:
        arguments.note(Message("exporters.overlap_excludes_flag", flag="--swap-attention"))
    else:
        arguments.add("SWAP_ARGS", "--swap-attention")


FIELD = "/strategy/recompute"
# Levels of --moe-zero-memory.
ZERO_MEMORY = {"moe_zero_memory_level0": "level0", "moe_zero_memory_level1": "level1"}


def read_memory(reader: FlagReader, strategy: dict[str, Any], layers: int) -> dict[str, Any]:
    """The strategy's `recompute`, `swap` and optimizer switches."""
    stages = _layers_of_stages(strategy, layers)
    counts = _modules(reader, stages) | _full(reader, strategy, stages)
    swap = sorted(n for n, each in SWAPPED.items() if each.flag and reader.switch(each.flag, "/strategy/swap"))
    reader.ignore(["--swap-modules"], Message("importers.predicted_as", what="--swap-attention"))
    swapped = reader.switch("--swap-optimizer", "/strategy/swap_optimizer")
    updated = reader.switch("--optimizer-cpu-offload", "/strategy/optimizer_offload_fraction")
    share = reader.decimal("--optimizer-offload-fraction", "/strategy/optimizer_offload_fraction")
    told = {"optimizer_offload_fraction": 1.0 if share is None else share} if updated and share != 0.0 else {}
    return {
        **told,
        "recompute": _document(counts, stages),
        "swap": swap,
        "swap_optimizer": swapped,
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
    by_flag = {each.megatron: name for name, each in RECOMPUTED.items() if each.megatron}
    given = reader.words("--recompute-modules", f"{FIELD}/modules")
    granularity = reader.script.flags.get("--recompute-granularity")
    if (granularity is not None and granularity.text == "selective") or reader.has("--recompute-activations"):
        for word in given or ("core_attn",):
            if word in by_flag:
                modules[by_flag[word]] = list(stages)
            else:
                reader.log.ignore("--recompute-modules", word, Message("common.is_not_modelled_yet", what=word))
    for name in ("activation", "norm"):
        flag = RECOMPUTED[name].flag
        number = reader.number(f"{flag}-num-layers", f"{FIELD}/modules")
        if reader.switch(flag, f"{FIELD}/modules"):
            modules[name] = [stage if number is None else min(number, stage) for stage in stages]
    if reader.switch("--recompute-mla-up-proj", f"{FIELD}/modules"):
        modules["mla_up_proj"] = list(stages)
        reader.ignore(["--mla-up-proj-tp-overlap", "--mla-mm-split"], Message("importers.no_field_of_spec"))
    number = reader.number("--moe-zero-memory-num-layers", f"{FIELD}/modules")
    level = reader.text("--moe-zero-memory", f"{FIELD}/modules")
    for name in (name for name, each in ZERO_MEMORY.items() if each == level):
        modules[name] = [stage if number is None else min(number, stage) for stage in stages]
    return modules


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
