"""Which layers of a plan a rehearsal keeps: those of the first and the last stages, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.schedule import model_parts

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.planset import Plan


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

    Parameters
    ----------
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
