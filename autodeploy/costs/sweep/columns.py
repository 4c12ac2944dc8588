"""Columns of layers and pieces, one entry a placement: the classes of a step, their mode still open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.costs.inputs.expert_balance import peak_over_layers
from autodeploy.costs.layers.unit_costs import at_rows, each_array, mean_of
from autodeploy.costs.stages.stage_memory import gathered_bytes
from autodeploy.costs.stages.step_classes import (
    Placing,
    embedding_copy_params,
    expert_layers,
    migrations,
    of_candidates,
)
from autodeploy.costs.stages.step_parts import ParameterGroups, migration_of, state_rates
from autodeploy.space.tree import distinct, with_mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.layer_cost import LayerCost
    from autodeploy.costs.layers.unit_costs import UnitCosts
    from autodeploy.costs.stages.inner_problem import LayerPairs
    from autodeploy.costs.stages.step_classes import StepClass, StepClasses
    from autodeploy.costs.stages.step_parts import Rates
    from autodeploy.space.tree import CandidateTree
    from cost_models.arrays import Bools, Floats, Ints

RECOMPUTED_MODULES = ("norm", "activation", "mla_up_proj", "full")
"""Choices of memory that stand for all in the order of candidates, from the cheapest second a byte on; whole layers."""
UNREAD_COSTS = (
    *("ep_shown_forward_s", "ep_shown_backward_s", "ep_total_s", "tp_total_s", "cp_total_s"),
    "expert_activation_bytes",
)


@dataclass(frozen=True)
class UnitColumns:
    """Amounts that a layer of a class, or pieces of one end of the model, add to a stage [n]; [1] where all are alike.

    frozen_bytes : and states beyond the rates of parameters; update_s : of the update, beyond those rates.
    parts : seconds of both passes by part, without those that take none. choices : bytes saved and seconds added by
    each of RECOMPUTED_MODULES.
    """

    forward_s: Floats
    backward_s: Floats
    parts: dict[str, Floats]
    activation_bytes: Floats
    workspace_bytes: Floats
    passing_bytes: Floats
    dense_params: Floats
    expert_params: Floats
    frozen_bytes: Floats
    exposed_dp_s: Floats
    migration_s: Floats
    update_s: Floats
    choices: dict[str, tuple[Floats, Floats]]

    @classmethod
    def of(cls, steps: Sequence[StepClass]) -> UnitColumns:
        """Of some classes together, each once."""
        total = mean_of([(cls._of_one(step), 1.0) for step in steps])
        total = each_array(total, lambda values: values if values[0] or values.any() else np.zeros(1))
        parts = {name: seconds for name, seconds in total.parts.items() if len(seconds) > 1 or seconds[0]}
        return replace(total, parts=parts)

    @classmethod
    def _of_one(cls, step: StepClass) -> UnitColumns:
        cost, none = step.cost, (np.zeros(1), np.zeros(1))
        choices = [cost.choices.get(name) for name in RECOMPUTED_MODULES]
        saved = (none if each is None else (each.saved_bytes, each.recompute_s) for each in choices)
        return cls(
            forward_s=step.pass_s("forward"),
            backward_s=step.pass_s("backward"),
            parts=step.parts(),
            activation_bytes=cost.activation_bytes,
            workspace_bytes=cost.workspace_bytes,
            passing_bytes=cost.passing_bytes,
            dense_params=cost.dense_params,
            expert_params=cost.expert_params,
            frozen_bytes=step.unsharded_bytes,
            exposed_dp_s=step.exposed_dp_s,
            migration_s=step.migration_s,
            update_s=step.owned.update_s,
            choices=dict(zip(RECOMPUTED_MODULES, saved, strict=True)),
        )


@dataclass(frozen=True)
class ModelColumns:
    """Sums and extremes over the whole model [n].

    work_s, hidden_s : of a micro batch in all layers and pieces, and what its layers hide in pairs at most. smallest_s,
    heaviest_s : the shortest layer and the longest piece; embedding_s : the embedding. widest_bytes : activations of
    the layer that keeps most. first_layers, last_layers : time of the pieces on both ends, in layers.
    """

    work_s: Floats
    hidden_s: Floats
    smallest_s: Floats
    heaviest_s: Floats
    embedding_s: Floats
    widest_bytes: Floats
    gathered_bytes: Floats
    first_layers: Floats
    last_layers: Floats


@dataclass(frozen=True)
class PairColumns:
    """Seconds that pairs of classes hide, covering_s of the class that has most, and split_s of each [n]."""

    tables: LayerPairs
    covering_s: Floats
    split_s: tuple[Floats, ...]


@dataclass(frozen=True)
class ModeColumns:
    """Under one mode of the optimizer's states [n], of what they take an even share over the stages.

    rates : what a dense and an expert parameter take, for each of RATES in turn. tail_s : of the whole model after the
    pipeline. total_bytes, folded_bytes : of its states, and where its ends meet.
    """

    rates: tuple[Floats, ...]
    tail_s: Floats
    total_bytes: Floats
    folded_bytes: Floats


RATES = ("update_s", "swap_s", "total_bytes")


@dataclass(frozen=True)
class PlacedCosts:
    """Costs of placements [n], or [1] where all are alike.

    counts : layers of each class. first, last : the embedding; head and prediction modules together. folded : these
    where the model's ends meet and one embedding serves both. communication_bytes : of all communicators' buffers.
    """

    counts: tuple[int, ...]
    layers: tuple[UnitColumns, ...]
    first: UnitColumns
    last: UnitColumns
    folded: UnitColumns
    model: ModelColumns
    pairs: PairColumns | None
    modes: tuple[ModeColumns, ...]
    communication_bytes: Floats

    def rows(self, rows: Ints) -> PlacedCosts:
        """Of some placements; views where the rows follow each other."""
        consecutive = len(rows) and rows[-1] - rows[0] == len(rows) - 1
        return at_rows(self, slice(int(rows[0]), int(rows[-1]) + 1) if consecutive else rows)


def placed_costs(costs: UnitCosts, tree: CandidateTree, context: Context) -> PlacedCosts:
    """Look up and weigh what `costs` of the tree's cuts say, for every placement."""
    placed = tree.placed
    first, holders = _holders(tree)
    few = placed.take(first)
    groups = ParameterGroups.of(few, context)
    moves = migrations(costs, placed, _moving_s(costs, tree, context, groups, holders), tree.cut_of)
    placing = Placing(placed, context, groups.take(holders), _peak(tree, context), moves)
    looked_up = of_candidates(_read_costs(costs), moves, tree.cut_of)
    classes = placing.classes(looked_up, embedding_copy_params(placed, context))
    none, tied = np.zeros(1), context.model.tie_word_embeddings
    folded = [placing.head(looked_up, none) if tied else classes.head, *placing.modules(looked_up, none)]
    last = UnitColumns.of(classes.pieces[1:])
    of_all_modes = PlacedCosts(
        counts=tuple(step.count for step in classes.layers),
        layers=tuple(UnitColumns.of([step]) for step in classes.layers),
        first=UnitColumns.of([classes.embedding]),
        last=last,
        folded=replace(
            last,
            dense_params=np.asarray(sum(piece.cost.dense_params for piece in folded)),
            frozen_bytes=np.asarray(sum(piece.unsharded_bytes for piece in folded)),
            exposed_dp_s=np.asarray(sum(piece.exposed_dp_s for piece in folded)),
            update_s=np.asarray(sum(piece.owned.update_s for piece in folded)),
        ),
        model=_of_model(classes, context, placed.keep_gathered | context.whole_through_step(placed)),
        pairs=_of_pairs(classes) if placed.paired.any() else None,
        modes=(),
        communication_bytes=np.broadcast_to(classes.communication_bytes, (len(placed),)),
    )
    rates = [state_rates(with_mode(few, mode), context, groups) for mode in tree.modes]
    return replace(of_all_modes, modes=_of_modes(of_all_modes, rates, holders, placed.pp.astype(np.float64)))


def _read_costs(costs: UnitCosts) -> UnitCosts:
    """With one entry for what is the same in all cuts, or is read by no sweep: nothing of it is looked up."""
    zero = np.zeros(1)
    unread: dict[str, Any] = dict.fromkeys(UNREAD_COSTS, zero)

    def read(cost: LayerCost) -> LayerCost:
        choices = {
            name: cost.choices[name]._replace(swap_bytes=zero, host_s=zero)
            for name in RECOMPUTED_MODULES
            if name in cost.choices
        }
        some = replace(cost, choices=choices, **unread)
        return each_array(some, lambda values: values[:1] if (values[1:] == values[:-1]).all() else values)

    return replace(
        costs,
        layers=tuple(map(read, costs.layers)),
        embedding=read(costs.embedding),
        head=read(costs.head),
        mtp=None if costs.mtp is None else read(costs.mtp),
        moved={place: read(cost) for place, cost in costs.moved.items()},
    )


def _peak(tree: CandidateTree, context: Context) -> Floats:
    """`peak_over_layers` of every placement, found once for all with the same groups and as many layers a stage."""
    cuts = tree.cuts
    _, group = distinct([cuts.tp, cuts.cp, cuts.ep, cuts.etp, cuts.micro_batch_size])
    rows, which = distinct([group[tree.cut_of], tree.placed.pp])
    few = tree.placed.take(rows)
    return peak_over_layers(context.loads, context.expert_ranks(few), expert_layers(context, few)).take(which)


def _moving_s(
    costs: UnitCosts, tree: CandidateTree, context: Context, groups: ParameterGroups, holders: Ints
) -> dict[int, Floats]:
    """Seconds of migration in a step by place, priced once for all that move as much between the same holders."""
    seconds = {}
    for place, moved in costs.moved.items():
        amounts, amount = np.unique(moved.moved_params, return_inverse=True)
        amount = np.broadcast_to(amount, (len(tree.cuts),))[tree.cut_of]
        rows, which = distinct([amount, holders])
        few = tree.placed.take(rows)
        seconds[place] = migration_of(amounts[amount[rows]], few, context, groups.take(holders[rows]))[which]
    return seconds


def _holders(tree: CandidateTree) -> tuple[Ints, Ints]:
    """Placements that differ in who holds parameters: one of each, and which of them each placement is."""
    cuts, placed = tree.cuts, tree.placed
    _, cut = distinct([cuts.tp, cuts.cp, cuts.ep, cuts.etp, cuts.keep_gathered, cuts.dp_replicate])
    return distinct([cut[tree.cut_of], placed.pp, placed.dp])


def _of_pairs(classes: StepClasses) -> PairColumns:
    covering = _extreme(np.maximum, [step.cost.covering_s for step in classes.layers])
    return PairColumns(classes.pair_tables, covering, tuple(step.cost.split_s for step in classes.layers))


def _of_model(classes: StepClasses, context: Context, keeps_gathered: Bools) -> ModelColumns:
    layers, pieces = [step.cost for step in classes.layers], [step.cost.alone_s for step in classes.pieces]
    params = [step.cost.unit_params for step in (*classes.layers, *classes.pieces)]
    alone = sum(step.count * step.cost.alone_s for step in classes.layers)
    layer = alone / sum(step.count for step in classes.layers)
    hidden = zip(classes.layers, classes.most_hidden_s.both_s, strict=True)
    return ModelColumns(
        work_s=np.asarray(alone + sum(pieces)),
        hidden_s=np.asarray(sum(step.count * most for step, most in hidden)),
        smallest_s=_extreme(np.minimum, [cost.alone_s for cost in layers]),
        heaviest_s=_extreme(np.maximum, pieces),
        embedding_s=pieces[0],
        widest_bytes=_extreme(np.maximum, [cost.worst_activation_bytes for cost in layers]),
        gathered_bytes=gathered_bytes(_extreme(np.maximum, params), context, keeps_gathered),
        first_layers=np.broadcast_to(pieces[0] / layer, keeps_gathered.shape),
        last_layers=np.broadcast_to(sum(pieces[1:]) / layer, keeps_gathered.shape),
    )


def _extreme(of: np.ufunc, values: Sequence[Floats]) -> Floats:
    return np.asarray(of.reduce(np.broadcast_arrays(*values)))


def _of_modes(costs: PlacedCosts, modes: Sequence[Rates], holders: Ints, pp: Floats) -> tuple[ModeColumns, ...]:
    """Of every mode, in order."""
    layers = list(zip(costs.layers, costs.counts, strict=True))

    def summed(name: str, *pieces: UnitColumns) -> Floats:
        total = sum(count * getattr(layer, name) for layer, count in layers)
        return np.asarray(sum((getattr(piece, name) for piece in pieces), total))

    def kept(*pieces: UnitColumns) -> tuple[Floats, Floats, Floats]:
        return summed("dense_params", *pieces), summed("expert_params", *pieces), summed("frozen_bytes", *pieces)

    inner, *ends = kept(), kept(costs.first, costs.last), kept(costs.first, costs.folded)
    synchronised_s, of_modes = summed("exposed_dp_s") + summed("migration_s") + summed("update_s"), []
    for rates in modes:
        columns = np.broadcast_arrays(*(getattr(rate, name) for name in RATES for rate in rates))
        update, others_update, swap, others_swap, states, others_states = taken = [c.take(holders) for c in columns]
        tail = synchronised_s + inner[0] * (update + swap) + inner[1] * (others_update + others_swap)
        each = (dense * states + expert * others_states + frozen for dense, expert, frozen in ends)
        of_modes.append(ModeColumns(tuple(taken), tail / pp, *(total / pp for total in each)))
    return tuple(of_modes)
