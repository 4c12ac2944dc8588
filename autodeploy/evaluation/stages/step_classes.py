"""Layer classes of one step: layers that a stage counts alike, with everything they add to a step.

Layers that differ only in their attention are one class: their cost is the mean over the model's layers, as every stage
holds about the same share of them. Where dense layers lie between those with experts, all layers are one class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.inputs.expert_balance import peak_over_layers
from autodeploy.evaluation.layers.layer_cost import LayerCost, over_layers
from autodeploy.evaluation.layers.unit_costs import MODULE, chosen, each_array, mean_of
from autodeploy.evaluation.stages.pair_shares import tight_shares
from autodeploy.evaluation.stages.stage_memory import communication_bytes
from autodeploy.evaluation.stages.step_parts import (
    ParameterGroups,
    Static,
    Tail,
    migration_of,
    state_rates,
    static_of,
    tail_of,
)
from autodeploy.strategies.candidates import of_schedules
from autodeploy.workload.attention_types import class_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.pair_windows import PairCost
    from autodeploy.evaluation.layers.unit_costs import UnitCosts
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class StepClass:
    """One class of layers, or a fixed piece: cost of a micro batch, static bytes and share of the tail [n]."""

    name: str
    count: int
    cost: LayerCost
    static: Static
    tail: Tail


@dataclass(frozen=True)
class StepClasses:
    """All classes in model order, and the pieces."""

    layers: tuple[StepClass, ...]
    embedding: StepClass
    head: StepClass
    mtp: StepClass | None
    groups: ParameterGroups
    pairs: tuple[tuple[PairCost, ...], ...]  # of a forward of one class beside a backward of another
    most_hidden: tuple[Floats, ...]  # of every class: what a layer hides in both passes, at most
    communication_bytes: Floats  # of all communicators' buffers [n]

    @property
    def pieces(self) -> tuple[StepClass, ...]:
        """Embedding, head and multi-token prediction modules."""
        return (self.embedding, self.head, *(() if self.mtp is None else (self.mtp,)))


def step_classes(costs: UnitCosts, candidates: Candidates, context: Context) -> StepClasses:
    """Classes of a batch of candidates; `costs` holds one entry per candidate."""
    groups = ParameterGroups.of(candidates, context)
    rates = state_rates(candidates, context, groups)
    costs = _with_migration(costs, candidates, context, groups)
    per_stage = np.maximum(1.0, context.model.num_hidden_layers / candidates.pp)

    def step_class(cost: LayerCost, name: str, count: int) -> StepClass:
        return StepClass(
            name,
            count,
            cost,
            static_of(cost, rates),
            tail_of(cost, candidates, context, groups, rates, per_stage),
        )

    shares = merged_kinds(costs, interleaved=bool(context.model.mlp_only_layers))
    peak = peak_over_layers(context.loads, context.expert_ranks(candidates), expert_layers(context, candidates))
    layers = [
        step_class(
            over_layers(mean_of([(with_every_choice(costs, n, members), share) for n, share in members]), peak),
            class_of(costs.layers[members[-1][0]].name),
            sum(costs.counts[n] for n, _ in members),
        )
        for members in shares
    ]
    pairs = tuple(tuple(_mean_pair(costs, forward, backward) for backward in shares) for forward in shares)
    modules = context.model.num_nextn_predict_layers
    return StepClasses(
        tuple(layers),
        step_class(costs.embedding, "embedding", 1),
        step_class(_with_copy(costs.head, context.model.tie_word_embeddings, candidates, context), "head", 1),
        None
        if costs.mtp is None
        else step_class(_with_copy(mean_of([(costs.mtp, float(modules))]), True, candidates, context), "mtp", 1),
        groups,
        pairs,
        tight_shares([[pair.hidden_s for pair in row] for row in pairs], [layer.count for layer in layers]).both_s,
        communication_bytes(candidates, context),
    )


def expert_layers(context: Context, candidates: Candidates) -> Floats:
    """Mixture-of-experts layers of a stage [n], in the mean."""
    return np.asarray(context.model.num_moe_layers / candidates.pp)


def _mean_pair(costs: UnitCosts, forward: list[tuple[int, float]], backward: list[tuple[int, float]]) -> PairCost:
    """Of two classes: the mean over the kinds of layers that they hold."""
    return mean_of([(costs.pairs[i][j], a * b) for i, a in forward for j, b in backward])


def with_every_choice(costs: UnitCosts, number: int, members: list[tuple[int, float]]) -> LayerCost:
    """A kind's cost with the memory choices of all kinds of its class: those that it lacks free and cost nothing."""
    cost = costs.layers[number]
    others = {name: choice for n, _ in members for name, choice in costs.layers[n].choices.items()}
    if others.keys() == cost.choices.keys():
        return cost
    none = {name: each_array(choice, np.zeros_like) for name, choice in others.items() if name not in cost.choices}
    return replace(cost, choices=cost.choices | none)


def merged_kinds(costs: UnitCosts, *, interleaved: bool) -> list[list[tuple[int, float]]]:
    """Kinds of layers that are one class, each with its share of the class's layers."""
    merged: dict[str, list[int]] = {}
    for number, cost in enumerate(costs.layers):
        merged.setdefault("" if interleaved else class_of(cost.name), []).append(number)
    totals = [sum(costs.counts[n] for n in members) for members in merged.values()]
    return [
        [(n, costs.counts[n] / total) for n in members] for members, total in zip(merged.values(), totals, strict=True)
    ]


@dataclass(frozen=True)
class Migration:
    """Where the experts of a layer migrate, and the seconds a step that it takes there, 0 elsewhere [n]."""

    where: Bools
    seconds: Floats


def migrations(
    costs: UnitCosts, candidates: Candidates, seconds: Mapping[int, Floats], cut_of: Ints | None = None
) -> dict[int, Migration]:
    """Migration by place of the layer: where what it saves a step is more than what it costs.

    seconds : a step that migration costs, by place [n]. cut_of : row of `costs` of each candidate; None: its own.
    """
    paired = candidates.paired
    found = {}

    def of_cut(values: Floats) -> Floats:
        return values if cut_of is None or values.shape[:1] == (1,) else values[cut_of]

    for place, moved in costs.moved.items():
        plain = costs.mtp if place == MODULE else costs.layers[place]
        assert plain is not None
        saved = of_cut(plain.alone_s - moved.alone_s)
        if place != MODULE:
            hidden = of_cut(costs.pairs[place][place].hidden_s - costs.moved_pairs[place][place].hidden_s)
            saved = np.where(paired, np.minimum(saved, saved - hidden), saved)
        better = candidates.micro_batches * saved > seconds[place]
        found[place] = Migration(better, np.where(better, seconds[place], 0.0))
    return found


def _with_migration(costs: UnitCosts, candidates: Candidates, context: Context, groups: ParameterGroups) -> UnitCosts:
    """Experts migrate where the time they save in a step is more than their migration costs a step."""
    if not costs.moved:
        return costs
    seconds = {n: migration_of(moved.moved_params, candidates, context, groups) for n, moved in costs.moved.items()}
    moves = {place: each.where for place, each in migrations(costs, candidates, seconds).items()}
    layers = tuple(
        chosen(moves[n], costs.moved[n], layer) if n in moves else layer for n, layer in enumerate(costs.layers)
    )
    module = costs.mtp
    if MODULE in moves and module is not None:
        module = chosen(moves[MODULE], costs.moved[MODULE], module)
    every = np.ones(len(candidates), dtype=np.bool_)
    # A pair of a layer that migrates with one that does not is priced as neither does.
    pairs = tuple(
        tuple(
            chosen(moves.get(i, every) & moves.get(j, every), moved_pair, pair)
            for j, (moved_pair, pair) in enumerate(zip(moved_row, row, strict=True))
        )
        for i, (moved_row, row) in enumerate(zip(costs.moved_pairs, costs.pairs, strict=True))
    )
    return replace(costs, layers=layers, mtp=module, pairs=pairs)


def _with_copy(cost: LayerCost, needed: bool, candidates: Candidates, context: Context) -> LayerCost:
    """A piece that needs the embedding's weights holds a copy of them where a pipeline keeps it from stage 0.

    Schedules under which the model's ends meet keep the two together.
    """
    if not needed:
        return cost
    together = of_schedules("ends_meet", candidates.schedule)
    copied = np.where(together, 0.0, embedding_copy_params(candidates, context))
    return replace(cost, dense_params=np.asarray(cost.dense_params + copied))


def embedding_copy_params(candidates: Candidates, context: Context) -> Floats:
    """Parameters of a copy of the embedding on another stage than the first [n]; 0 without a pipeline."""
    cut = 1 if context.operators.whole_vocabulary else candidates.tp
    return np.where(candidates.pp > 1, context.model.vocab_size * context.model.hidden_size / cut, 0.0)
