"""What a sweep reads of layers and pieces, one entry a placement: the classes of a step, their mode still open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.evaluation.inputs.expert_balance import peak_over_layers
from autodeploy.evaluation.layers.layer_cost import PHASE_PARTS
from autodeploy.evaluation.layers.unit_costs import each_array
from autodeploy.evaluation.stages.stage_memory import gathered_bytes
from autodeploy.evaluation.stages.step_classes import (
    Placing,
    embedding_copy_params,
    expert_layers,
    migrations,
    of_candidates,
)
from autodeploy.evaluation.stages.step_parts import ParameterGroups, migration_of, state_rates
from autodeploy.strategies.tree import distinct, with_mode
from cost_models.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.layer_cost import LayerCost
    from autodeploy.evaluation.layers.unit_costs import UnitCosts
    from autodeploy.evaluation.stages.step_classes import StepClass, StepClasses
    from autodeploy.evaluation.stages.step_parts import Rates
    from autodeploy.strategies.tree import CandidateTree

Key = tuple[str, int | str]
FIRST_PIECE, LAST_PIECES = "first", "last"  # the embedding; head and prediction modules together
REPAIRS = ("norm", "activation", "mla_up_proj", "full")  # choices that stand for all in the order of candidates
UNREAD = (
    *("ep_shown_forward_s", "ep_shown_backward_s", "ep_total_s", "tp_total_s", "cp_total_s"),
    "expert_activation_bytes",
)


class Columns(dict[Key, Floats]):
    """Named columns of equal length [n]."""

    def rows(self, rows: Ints) -> Columns:
        """The same columns of some rows; views where the rows follow each other."""
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            return Columns({key: values[part] for key, values in self.items()})
        return Columns({key: values.take(rows) for key, values in self.items()})


@dataclass(frozen=True)
class PlacedCosts:
    """Costs of placements [p].

    counts : layers of each class. base : columns of every placement. pairs : what only pairing schedules read.
    modes : of each mode, what one parameter of each kind costs and what the whole model does. Of what is read by `get`,
    columns of zeros are left out. communication_bytes : of all communicators' buffers.
    """

    counts: tuple[int, ...]
    base: Columns
    pairs: Columns
    modes: tuple[Columns, ...]
    communication_bytes: Floats


def placed_costs(costs: UnitCosts, tree: CandidateTree, context: Context) -> PlacedCosts:
    """Look up and weigh what `costs` of the tree's cuts say, for every placement."""
    placed = tree.placed
    first, holders = _holders(tree)
    few = placed.take(first)
    groups = ParameterGroups.of(few, context)
    rates = [state_rates(with_mode(few, mode), context, groups) for mode in tree.modes]
    moves = migrations(costs, placed, _moving_s(costs, tree, context, groups, holders), tree.cut_of)
    placing = Placing(placed, context, groups.take(holders), _peak(tree, context), moves)
    looked_up = of_candidates(_read_costs(costs), moves, tree.cut_of)
    classes = placing.classes(looked_up, embedding_copy_params(placed, context))
    found = _of_layers(classes, context) | _totals(classes, context, placed.keep_gathered)
    for name, values in _sum_of(classes.pieces[1:], context).items():
        found[name, LAST_PIECES] = values
    # Where the model's ends meet, one embedding serves both.
    none, tied = np.zeros(1), context.model.tie_word_embeddings
    folded = placing.head(looked_up, none) if tied else classes.head, *placing.modules(looked_up, none)
    found["dense_params_folded", LAST_PIECES] = np.asarray(sum(piece.cost.dense_params for piece in folded))
    found["frozen_bytes_folded", LAST_PIECES] = np.asarray(sum(piece.cost.frozen_bytes for piece in folded))
    found["tail_dp_s_folded", LAST_PIECES] = np.asarray(sum(piece.exposed_dp_s for piece in folded))
    found["migration_s_folded", LAST_PIECES] = found["migration_s", LAST_PIECES]
    counts = tuple(step.count for step in classes.layers)
    for name in ("tail_dp_s", "migration_s", "dense_params", "expert_params", "frozen_bytes"):
        found[name, "layers"] = np.asarray(sum(count * found[name, n] for n, count in enumerate(counts)))
    whole = {key: np.broadcast_to(values, (len(placed),)) for key, values in found.items()}
    modes = tuple(Columns(_mode_columns(whole, each, holders, placed.pp.astype(np.float64))) for each in rates)
    empty = {key for key in whole if key[0] in PHASE_PARTS and not whole[key].any()}
    moving = {key for key in whole if key[0].startswith("migration_s")}
    if not any(whole[key].any() for key in moving):
        empty |= moving
    base = Columns({key: values for key, values in whole.items() if key not in empty and key[1] != "layers"})
    pairs = _pair_columns(classes, len(placed)) if placed.paired.any() else Columns()
    return PlacedCosts(counts, base, pairs, modes, classes.communication_bytes)


def _read_costs(costs: UnitCosts) -> UnitCosts:
    """With one entry for what is the same in all cuts, or is read by no sweep: nothing of it is looked up."""
    zero = np.zeros(1)
    unread: dict[str, Any] = dict.fromkeys(UNREAD, zero)

    def read(cost: LayerCost) -> LayerCost:
        choices = {
            name: replace(cost.choices[name], swap_bytes=zero, host_s=zero) for name in REPAIRS if name in cost.choices
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
    """What migration costs a step by place, priced once for all that move as much between the same holders."""
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


def _columns(step: StepClass, context: Context) -> dict[str, Floats]:
    """What adds up over the layers and the pieces of a stage."""
    slow, cost = context.slowest_device_factor - 1.0, step.cost
    forward, backward = cost.forward, cost.backward
    found = {
        "forward_s": np.asarray(forward.total_s + slow * forward.compute_s),
        "backward_s": np.asarray(backward.total_s + slow * backward.compute_s),
        **{name: np.asarray(getattr(forward, name) + getattr(backward, name)) for name in PHASE_PARTS},
        "activation_bytes": cost.activation_bytes,
        "dense_params": cost.dense_params,
        "expert_params": cost.expert_params,
        "frozen_bytes": cost.frozen_bytes,
        "tail_dp_s": step.exposed_dp_s,
        "migration_s": step.migration_s,
    }
    found["imbalance_s"] = found["imbalance_s"] + slow * found["compute_s"]
    return found


def _of_layers(classes: StepClasses, context: Context) -> dict[Key, Floats]:
    """Of each class of layers, with what choices of memory free and cost, and of the embedding."""
    found: dict[Key, Floats] = {
        (name, FIRST_PIECE): values for name, values in _columns(classes.embedding, context).items()
    }
    for number, step in enumerate(classes.layers):
        found |= {(name, number): values for name, values in _columns(step, context).items()}
        for name in REPAIRS:
            choice = step.cost.choices.get(name)
            found[f"{name}_saved_bytes", number] = np.zeros(1) if choice is None else choice.saved_bytes
            found[f"{name}_recompute_s", number] = np.zeros(1) if choice is None else choice.recompute_s
    return found


def _sum_of(pieces: Sequence[StepClass], context: Context) -> dict[str, Floats]:
    """Of head and prediction modules together."""
    each = [_columns(piece, context) for piece in pieces]
    found = {name: np.asarray(sum(columns[name] for columns in each)) for name in each[0]}
    for name in ("workspace_bytes", "passing_bytes"):
        found[name] = np.asarray(sum(getattr(piece.cost, name) for piece in pieces))
    return found


def _pair_columns(classes: StepClasses, n: int) -> Columns:
    """What pairs of classes hide, and the work that pairing schedules split off [n]."""
    found: dict[Key, Floats] = {
        (f"{name}_{i}", j): getattr(pair, name)
        for i, row in enumerate(classes.pairs)
        for j, pair in enumerate(row)
        for name in ("hidden_s", "hidden_exchange_s", "first_s")
    }
    each = zip(classes.layers, classes.most_hidden, strict=True)
    found["hidden_s", "all"] = np.asarray(sum(step.count * most for step, most in each))
    for number, step in enumerate(classes.layers):
        found["split_s", number], found["covering_s", number] = step.cost.split_s, step.cost.covering_s
    return Columns({key: np.broadcast_to(values, (n,)) for key, values in found.items()})


def _totals(classes: StepClasses, context: Context, keeps_gathered: Bools) -> dict[Key, Floats]:
    """Sums and extremes over the whole model."""
    layers, pieces = [step.cost for step in classes.layers], [step.cost.alone_s for step in classes.pieces]
    units = [step.cost.dense_params + step.cost.expert_params for step in (*classes.layers, *classes.pieces)]
    alone = sum(step.count * step.cost.alone_s for step in classes.layers)
    layer = alone / sum(step.count for step in classes.layers)
    return {
        ("work_s", "all"): np.asarray(alone + sum(pieces)),
        ("smallest_s", "all"): _extreme(np.minimum, [cost.alone_s for cost in layers]),
        ("heaviest_s", "all"): _extreme(np.maximum, pieces),
        ("widest_bytes", "all"): _extreme(np.maximum, [cost.worst_activation_bytes for cost in layers]),
        ("gathered_bytes", "all"): gathered_bytes(_extreme(np.maximum, units), context, keeps_gathered),
        ("alone_s", FIRST_PIECE): pieces[0],
        ("layers", FIRST_PIECE): np.asarray(pieces[0] / layer),
        ("layers", LAST_PIECES): np.asarray(sum(pieces[1:]) / layer),
    }


def _extreme(of: np.ufunc, values: Sequence[Floats]) -> Floats:
    return np.asarray(of.reduce(np.broadcast_arrays(*values)))


def _mode_columns(base: Mapping[Key, Floats], rates: Rates, holders: Ints, pp: Floats) -> dict[Key, Floats]:
    """Bytes and seconds of a parameter under one mode, and a stage's even share of what the whole model takes."""
    dense, expert = rates
    few = len(dense.update_s)
    found: dict[Key, Floats] = {}
    for name in ("total_bytes", "update_s", "swap_s"):
        for kind, rate in (("dense", dense), ("expert", expert)):
            values = getattr(rate, name)
            if values.any():
                found[name, kind] = np.broadcast_to(values, (few,)).take(holders)

    def of_model(name: str, holder: str, suffix: str = "") -> Floats:
        dense, expert = found.get((name, "dense"), 0.0), found.get((name, "expert"), 0.0)
        return np.asarray(base[f"dense_params{suffix}", holder] * dense + base["expert_params", holder] * expert)

    found["tail_s", "share"] = (
        base["tail_dp_s", "layers"]
        + base["migration_s", "layers"]
        + of_model("update_s", "layers")
        + of_model("swap_s", "layers")
    ) / pp
    frozen = base["frozen_bytes", "layers"] + base["frozen_bytes", FIRST_PIECE]
    ends = of_model("total_bytes", "layers") + of_model("total_bytes", FIRST_PIECE) + frozen
    for suffix in ("", "_folded"):
        last = of_model("total_bytes", LAST_PIECES, suffix) + base[f"frozen_bytes{suffix}", LAST_PIECES]
        found[f"total_bytes{suffix}", "share"] = (ends + last) / pp
    return found
