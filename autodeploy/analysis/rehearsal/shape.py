"""The shape of a rehearsal: the spec and strategy of a plan on few cards, with a rank's work as in the plan.

Kept are the framework, its flags and features, tensor and context parallelism, micro batch and micro batches of a
replica, sequence length, layers of a chunk, chunks of a stage, schedule, dispatcher, experts of a rank, top-k and
memory choices. Fewer are stages, layers, replicas, and with them the sequences of a step; and ranks of an expert
group, and with them experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from autodeploy.kit.errors import SpecError
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.model import ModelSpec
from autodeploy.stack.features import FEATURES
from cost_models.schedule import kinds, model_parts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy


# Which layers of a plan a rehearsal keeps.
@dataclass(frozen=True, slots=True)
class KeptLayers:
    """Layers by their index in the plan's model, in model order, and where they stand.

    stages : the plan's stage that each stage of the rehearsal copies. per_stage [pp, vpp] : layers of every chunk.
    """

    layers: tuple[int, ...]
    stages: tuple[int, ...]
    per_stage: tuple[tuple[int, ...], ...]


def says_every_chunk(plan: Plan) -> bool:
    """Whether its stages have the layers of every chunk that its schedule runs."""
    stages = plan.stages
    if len(stages) != plan.strategy.pp:
        return False
    places = model_parts(plan.strategy.schedule, len(stages), len(stages[0].layers))
    return all(chunk < len(stages[device].layers) for part in places for device, chunk in part)


def kept_layers(plan: Plan, pp: int, dropped: int) -> KeptLayers:
    """The layers of a rehearsal with `pp` stages: half of them the plan's first stages, the others its last ones.

    dropped : layers that every chunk has fewer, the last ones of it; each keeps one.
    """
    strategy = plan.strategy
    full = strategy.pp
    first = -(-pp // 2)
    stages = (*range(first), *range(full - (pp - first), full))
    place_of = {stage: number for number, stage in enumerate(stages)}
    per_stage = [[0] * len(plan.stages[stage].layers) for stage in stages]
    kept: list[int] = []
    start = 0
    for places in model_parts(strategy.schedule, full, len(plan.stages[0].layers)):
        device, chunk = places[0]
        size = plan.stages[device].layers[chunk]
        if device in place_of:
            count = max(min(size, 1), size - dropped)
            kept += range(start, start + count)
        start += size
        for stage, part in places:
            if stage in place_of:
                own = plan.stages[stage].layers[part]
                per_stage[place_of[stage]][part] = max(min(own, 1), own - dropped)
    return KeptLayers(tuple(kept), stages, tuple(map(tuple, per_stage)))


def model_of_layers(model: ModelSpec, layers: tuple[int, ...]) -> dict[str, object]:
    """The fields of a model that has these layers of another one and no more."""
    dense = [place for place, layer in enumerate(layers) if not model.is_moe_layer(layer)]
    fields: dict[str, object] = {"num_hidden_layers": len(layers)}
    if model.is_moe:
        first = next((place for place in range(len(layers)) if place not in dense), len(layers))
        fields |= {"first_k_dense_replace": first, "mlp_only_layers": tuple(place for place in dense if place > first)}
    if model.layer_types is not None:
        fields["layer_types"] = tuple(model.layer_types[layer] for layer in layers)
    return fields


SUFFIX = " (rehearsal)"


@dataclass(frozen=True, slots=True)
class Shape:
    """A rehearsal before it is predicted. `changed`: axis or field -> its value in the plan and here."""

    spec: Spec
    strategy: Strategy
    micro_batches: int
    changed: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Degrees:
    """Reductions of a rehearsal: stages, ranks of an expert group, layers that a chunk has fewer."""

    pp: int
    ep: int
    dropped: int = 0


def degrees_of(plan: Plan, model: ModelSpec, ranks: int) -> list[Degrees]:
    """Stages and expert groups that so many ranks allow, the most alike first: those that keep the schedule, then large
    groups, then two stages before more.

    No rehearsal has more replicas than its plan. One stage stands for several where no two can be had; it shows nothing
    of the pipeline, and where the schedule has chunks or pairs they follow each other on it without.

    ranks : of the rehearsal.
    """
    strategy = plan.strategy
    ranks_of_stage = strategy.tp * strategy.cp
    stages = [pp for pp in range(2, strategy.pp + 1) if strategy.pp % pp == 0 or pp == 2]
    stages.append(1)
    degrees = []
    for pp in stages:
        if ranks % (ranks_of_stage * pp) or ranks // (ranks_of_stage * pp) > (strategy.dp or ranks):
            continue
        group = ranks // pp // (strategy.etp or 1)
        sizes = [ep for ep in range(min(strategy.ep, group), 0, -1) if not group % ep and not strategy.ep % ep]
        degrees += [Degrees(pp, ep) for ep in (sizes if model.is_moe else [1])]
    return sorted(degrees, key=lambda each: (loses_schedule(strategy, each.pp), -each.ep))


def loses_schedule(strategy: Strategy, pp: int) -> bool:
    """True where so many stages cannot run a strategy's schedule."""
    return pp == 1 < strategy.pp and not (kinds.schedule(strategy.schedule).one_stage and strategy.vpp == 1)


def most_dropped(plan: Plan) -> int:
    """Layers that the largest chunk can have fewer and still have one."""
    return max(max(stage.layers) for stage in plan.stages) - 1


def rehearsal_of(
    spec: Spec,
    plan: Plan,
    num_npus: int,
    ranks: int,
    degrees: Degrees,
    launchable: frozenset[str] | None = None,
) -> Shape:
    """The rehearsal of a plan on so many cards.

    spec : the plan's. num_npus, ranks : of the rehearsal; ranks are devices, of which a card may have two. launchable :
        memory choices that its target has without the plan's schedule, where that is lost; None: all.

    Raises SpecError where a model with these layers or experts contradicts itself.
    """
    strategy = plan.strategy
    kept = kept_layers(plan, degrees.pp, degrees.dropped)
    model = _model(spec.model, kept, strategy.ep, degrees.ep)
    dp = ranks // (strategy.tp * strategy.cp * degrees.pp)
    if loses_schedule(strategy, degrees.pp):
        strategy = _on_one_stage(strategy, launchable)
    micro_batches = -(-plan.micro_batches // degrees.pp) * degrees.pp if strategy.vpp > 1 else plan.micro_batches
    smaller = _strategy(strategy, kept, dp, degrees)
    batch = micro_batches * strategy.micro_batch_size * dp
    training = spec.training.model_copy(
        update={
            "global_batch_size": spec.training.global_batch_size.model_copy(
                update={"value": batch, "tolerance_pct": 0.0}
            ),
            "tokens": None,
            "expert_load_file": None,
            "expert_load_sha256": None,
        }
    )
    cluster = spec.cluster.model_copy(update={"num_npus": num_npus, "blocks": None, "spare_npus": 0, "use": "exactly"})
    spec_of_rehearsal = spec.model_copy(
        update={
            "model": model,
            "cluster": cluster,
            "training": training,
            "strategy": smaller,
            "run": None,
        }
    )
    old = plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1)
    values = {
        "num_npus": (plan.num_npus_used, num_npus),
        "num_hidden_layers": (spec.model.num_hidden_layers, model.num_hidden_layers),
        "layers_of_a_chunk": (most_dropped(plan) + 1, max(map(max, kept.per_stage))),
        "pp": (strategy.pp, degrees.pp),
        "dp": (strategy.dp or 1, dp),
        "ep": (strategy.ep, degrees.ep),
        "n_routed_experts": (spec.model.n_routed_experts or 0, model.n_routed_experts or 0),
        "num_experts_per_tok": (spec.model.num_experts_per_tok or 0, model.num_experts_per_tok or 0),
        "n_group": (spec.model.n_group or 1, model.n_group or 1),
        "topk_group": (spec.model.topk_group or 1, model.topk_group or 1),
        "vpp": (plan.strategy.vpp, strategy.vpp),
        "micro_batches": (plan.micro_batches, micro_batches),
        "global_batch_size": (old, batch),
    }
    return Shape(
        spec_of_rehearsal, smaller, micro_batches, {k: pair for k, pair in values.items() if pair[0] != pair[1]}
    )


def _model(model: ModelSpec, kept: KeptLayers, full_ep: int, ep: int) -> ModelSpec:
    """The model with the kept layers and so many experts that a rank has as many as before."""
    fields = {"name": model.name[: 200 - len(SUFFIX)] + SUFFIX} | model_of_layers(model, kept.layers)
    if model.n_routed_experts is not None:
        experts = model.n_routed_experts // full_ep * ep
        without = model.n_zero_experts // full_ep * ep
        top_k = min(model.num_experts_per_tok or 1, experts + without)
        fields |= {"n_zero_experts": without} if model.n_zero_experts else {}
        fields |= {"n_routed_experts": experts, "num_experts_per_tok": top_k}
        if model.n_group is not None and model.topk_group is not None:
            fields |= _groups(model.n_routed_experts // model.n_group, model.topk_group, experts, top_k)
    written = {name: value for name, value in model.model_dump().items() if name not in fields and value is not None}
    fields = {name: value for name, value in fields.items() if value is not None}
    unset = {name for name in ("head_dim", "num_key_value_heads") if name not in model.model_fields_set}
    try:
        return ModelSpec.model_validate({name: value for name, value in written.items() if name not in unset} | fields)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, model=ModelSpec)) from error


def _groups(group_size: int, reach: int, experts: int, top_k: int) -> dict[str, object]:
    """Expert groups of the size that they had, of which a token reaches as many as there are up to `reach`.

    Fewer experts than a group, or groups that hold fewer experts than a token is sent to: one group of all, which
    limits nothing.
    """
    if experts % group_size == 0 and min(reach, experts // group_size) * group_size >= top_k:
        groups = experts // group_size
        return {"n_group": groups, "topk_group": min(reach, groups)}
    return {"n_group": 1, "topk_group": 1}


def _strategy(strategy: Strategy, kept: KeptLayers, dp: int, degrees: Degrees) -> Strategy:
    """The strategy with fewer stages: every stage has the memory choices of the stage that it copies."""
    stages = kept.stages
    recompute, swaps = strategy.recompute, strategy.swap_per_stage
    if recompute.per_stage is not None:
        recompute = recompute.model_copy(update={"per_stage": tuple(recompute.per_stage[s] for s in stages)})
    if recompute.num_layers_per_stage is not None:
        counts = tuple(recompute.num_layers_per_stage[s] for s in stages)
        recompute = recompute.model_copy(update={"num_layers_per_stage": counts})
    several = len(kept.per_stage[0]) > 1 and strategy.vpp > 1
    return strategy.model_copy(
        update={
            "pp": degrees.pp,
            "dp": dp,
            "ep": degrees.ep,
            "layers_per_stage": kept.per_stage if several else tuple(map(sum, kept.per_stage)),
            "recompute": recompute,
            "swap_per_stage": None if swaps is None else tuple(swaps[s] for s in stages),
        }
    )


def _on_one_stage(strategy: Strategy, launchable: frozenset[str] | None) -> Strategy:
    """The strategy with the schedule of one stage, without features and memory choices that need its own."""

    def kept(names: Iterable[str], prefix: str = "") -> list[str]:
        return [name for name in names if launchable is None or prefix + name in launchable]

    def counts(rows: tuple[dict[str, int], ...] | None, prefix: str = "") -> tuple[dict[str, int], ...] | None:
        return None if rows is None else tuple({name: row[name] for name in kept(row, prefix)} for row in rows)

    recompute = strategy.recompute
    modules = tuple(kept(recompute.modules))
    granularity = "none" if recompute.granularity == "selective" and not modules else recompute.granularity
    changed = {"granularity": granularity, "modules": modules, "per_stage": counts(recompute.per_stage)}
    return strategy.model_copy(
        update={
            "schedule": kinds.plain(1).name,
            "vpp": 1,
            "features": tuple(
                name for name in strategy.features if name not in FEATURES or FEATURES[name].axis != "schedule"
            ),
            "recompute": recompute.model_copy(update=changed),
            "swap": tuple(kept(strategy.swap, "swap_")),
            "swap_per_stage": counts(strategy.swap_per_stage, "swap_"),
        }
    )
