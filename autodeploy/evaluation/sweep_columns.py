"""What a sweep reads of layers and pieces, one entry a placement: computed for cuts, looked up from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.pair_windows import PairCost
from autodeploy.evaluation.stage_classes import merged_kinds, most_hidden, moving
from autodeploy.evaluation.step_parts import ParameterGroups, migration_of, state_rates, synchronised_of
from autodeploy.evaluation.unit_costs import MODULE
from autodeploy.strategies.candidates import SCHEDULES
from autodeploy.strategies.tree import with_mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.layer_cost import LayerCost, PhaseCost
    from autodeploy.evaluation.unit_costs import UnitCosts
    from autodeploy.strategies.candidates import Bools, Candidates, Ints
    from autodeploy.strategies.tree import CandidateTree, Mode
    from autodeploy.workload.operators import Floats

WORK_PARTS = ("compute_s", "imbalance_s", "exposed_tp_s", "exposed_ep_s", "exposed_cp_s", "host_bound_s")
REPAIRS = ("norm", "activation", "mla_up_proj", "full")  # choices that stand for all in the order of candidates
FOLDED = SCHEDULES.index("dualpipev")

Key = tuple[str, int | str]
FIRST_PIECE, LAST_PIECES = "first", "last"  # the embedding; head and prediction modules together


class Columns:
    """Named columns of equal length [names, n] in one array, so that rows of all of them are taken at once."""

    def __init__(self, columns: Mapping[Key, Floats], n: int) -> None:
        self._row = {key: number for number, key in enumerate(columns)}
        self._data: Floats = np.empty((len(columns), n))
        for number, values in enumerate(columns.values()):
            self._data[number] = values

    def __getitem__(self, key: Key) -> Floats:
        column: Floats = self._data[self._row[key]]
        return column

    def __contains__(self, key: Key) -> bool:
        return key in self._row

    def take(self, rows: Ints) -> Columns:
        """The same columns of some rows; a view where the rows follow each other."""
        found = Columns.__new__(Columns)
        found._row = self._row
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
            found._data = self._data[:, rows[0] : rows[-1] + 1]
        else:
            found._data = self._data.take(rows, axis=1, mode="clip")
        return found


@dataclass(frozen=True)
class PlacedCosts:
    """Costs of placements [p].

    counts : layers of each class. base : columns of every placement. pairs : what classes hide beside each other.
    modes : of each mode, what one parameter of each kind costs and what the whole model does.
    """

    counts: tuple[int, ...]
    base: Columns
    pairs: Columns
    modes: tuple[Columns, ...]


def placed_costs(costs: UnitCosts, tree: CandidateTree, context: Context) -> PlacedCosts:
    """Look up and weigh what `costs` of the tree's cuts say, for every placement."""
    placed = tree.placed
    groups = ParameterGroups.of(placed, context)
    moves = moving(costs, placed, context, groups, tree.cut_of)
    kinds, pieces = _looked_up(costs, tree, context, moves)
    merged = merged_kinds(costs)
    base: dict[Key, Floats] = {}
    for number, members in enumerate(merged):
        for name in kinds[members[0][0]]:
            base[name, number] = _mean([(kinds[kind][name], share) for kind, share in members])
    counts = tuple(sum(costs.counts[kind] for kind, _ in members) for members in merged)
    for number in range(len(counts)):
        base |= _after_pipeline({name: base[name, number] for name in _PARAMETERS}, number, placed, context, groups)
    base |= _pieces(pieces, placed, context, groups)
    base |= _totals(base, counts, pieces)
    pairs = _pairs(costs, tree.cut_of, moves, merged)
    hidden = most_hidden(pairs)
    base["hidden_s", "all"] = np.asarray(sum(n * most for n, most in zip(counts, hidden, strict=True)))
    n = len(placed)
    named: dict[Key, Floats] = {
        (f"{name}_{i}", j): getattr(pair, name)
        for i, row in enumerate(pairs)
        for j, pair in enumerate(row)
        for name in ("hidden_s", "hidden_exchange_s", "first_s")
    }
    table = Columns(base, n)
    modes = tuple(_mode_columns(table, placed, context, groups, mode) for mode in tree.modes)
    return PlacedCosts(counts, table, Columns(named, n), modes)


_PARAMETERS = ("dense_params", "expert_params", "moved_params", "forward_compute_s", "backward_compute_s")


def _mean(weighted: Sequence[tuple[Floats, float]]) -> Floats:
    if len(weighted) == 1:
        return weighted[0][0]
    return np.asarray(sum(values * share for values, share in weighted))


def _looked_up(
    costs: UnitCosts, tree: CandidateTree, context: Context, moves: Mapping[int, Bools]
) -> tuple[list[dict[str, Floats]], dict[str, dict[str, Floats]]]:
    """Columns of layer kinds and of pieces, with migrated experts where they migrate [placements]."""
    n = len(tree.cuts)

    def found(cost: LayerCost, place: int | None, factor: float = 1.0) -> dict[str, Floats]:
        plain = _cost_columns(cost, context)
        if place is None or place not in moves:
            return {name: (np.broadcast_to(v, (n,)) * factor)[tree.cut_of] for name, v in plain.items()}
        moved, at = _cost_columns(costs.moved[place], context), tree.cut_of + n * moves[place]
        return {
            name: np.concatenate([np.broadcast_to(v, (n,)), np.broadcast_to(moved[name], (n,))]).take(at) * factor
            for name, v in plain.items()
        }

    kinds = [found(cost, place) for place, cost in enumerate(costs.layers)]
    pieces = {"embedding": found(costs.embedding, None), "head": found(costs.head, None)}
    if costs.mtp is not None:
        pieces["mtp"] = found(costs.mtp, MODULE, float(context.model.num_nextn_predict_layers))
    return kinds, pieces


def _cost_columns(cost: LayerCost, context: Context) -> dict[str, Floats]:
    """What a sweep reads of a layer's cost; all of it adds up over layers."""
    slow = context.slowest_device_factor - 1.0
    forward, backward = cost.forward, cost.backward
    found = {
        "forward_s": _with_slow(forward, slow),
        "backward_s": _with_slow(backward, slow),
        "alone_s": cost.alone_s,
        "forward_compute_s": forward.compute_s,
        "backward_compute_s": backward.compute_s,
        **{name: np.asarray(getattr(forward, name) + getattr(backward, name)) for name in WORK_PARTS},
        "activation_bytes": cost.activation_bytes,
        "split_s": cost.split_s,
        "covering_s": cost.covering_s,
        "dense_params": cost.dense_params,
        "expert_params": cost.expert_params,
        "moved_params": cost.moved_params,
    }
    found["imbalance_s"] = found["imbalance_s"] + slow * found["compute_s"]
    for name in REPAIRS:
        choice = cost.choices.get(name)
        found[f"{name}_saved_bytes"] = np.zeros(1) if choice is None else choice.saved_bytes
        found[f"{name}_recompute_s"] = np.zeros(1) if choice is None else choice.recompute_s
    return found


def _with_slow(phase: PhaseCost, slow: float) -> Floats:
    """Seconds of a pass on the slowest device."""
    return np.asarray(phase.total_s + slow * phase.compute_s)


def _after_pipeline(
    cost: Mapping[str, Floats], holder: int | str, placed: Candidates, context: Context, groups: ParameterGroups
) -> dict[Key, Floats]:
    """What synchronising and moving a layer's parameters adds after the pipeline."""
    per_stage = np.maximum(1.0, context.model.num_hidden_layers / placed.pp)
    compute = cost["forward_compute_s"], cost["backward_compute_s"]
    exposed, _ = synchronised_of(
        cost["dense_params"], cost["expert_params"], compute, placed, context, groups, per_stage
    )
    return {
        ("exposed_dp_s", holder): exposed,
        ("migration_s", holder): migration_of(cost["moved_params"], placed, context, groups),
    }


def _pieces(
    pieces: dict[str, dict[str, Floats]], placed: Candidates, context: Context, groups: ParameterGroups
) -> dict[Key, Floats]:
    """The embedding, and the pieces at the other end together; "folded": where that is the first stage too."""
    copied = np.where(placed.pp > 1, context.model.vocab_size * context.model.hidden_size / placed.tp, 0.0)
    needed = {"head": context.model.tie_word_embeddings, "mtp": True}
    found: dict[Key, Floats] = {(name, FIRST_PIECE): values for name, values in pieces["embedding"].items()}
    found |= _after_pipeline(pieces["embedding"], FIRST_PIECE, placed, context, groups)
    ends = [name for name in pieces if name != "embedding"]
    for name in pieces["embedding"]:
        found[name, LAST_PIECES] = np.asarray(sum(pieces[end][name] for end in ends))
    for folded in (False, True):
        suffix = "_folded" if folded else ""
        total: dict[str, Floats] = {}
        for end in ends:
            # Stages apart, what needs the embedding's weights has a copy of them.
            own = pieces[end] | {"dense_params": pieces[end]["dense_params"] + copied * (needed[end] and not folded)}
            after = _after_pipeline(own, LAST_PIECES, placed, context, groups)
            more = {"dense_params": own["dense_params"]} | {name: values for (name, _), values in after.items()}
            total = {name: total.get(name, 0.0) + values for name, values in more.items()}
        found |= {(f"{name}{suffix}", LAST_PIECES): values for name, values in total.items()}
    return found


def _totals(
    base: Mapping[Key, Floats], counts: Sequence[int], pieces: Mapping[str, Mapping[str, Floats]]
) -> dict[Key, Floats]:
    """Sums and extremes over the whole model."""
    layers = range(len(counts))

    def total(name: str) -> Floats:
        return np.asarray(sum(counts[n] * base[name, n] for n in layers))

    alone = total("alone_s")
    each_piece = [piece["alone_s"] for piece in pieces.values()]
    found: dict[Key, Floats] = {
        ("work_s", "all"): np.asarray(alone + sum(each_piece)),
        ("smallest_s", "all"): np.asarray(np.min([base["alone_s", n] for n in layers], axis=0)),
        ("heaviest_s", "all"): np.asarray(np.max(each_piece, axis=0)),
        ("widest_bytes", "all"): np.asarray(np.max([base["activation_bytes", n] for n in layers], axis=0)),
        ("exposed_dp_s", "layers"): total("exposed_dp_s"),
        ("migration_s", "layers"): total("migration_s"),
        ("dense_params", "layers"): total("dense_params"),
        ("expert_params", "layers"): total("expert_params"),
    }
    layer = alone / sum(counts)
    found["layers", FIRST_PIECE] = base["alone_s", FIRST_PIECE] / layer
    found["layers", LAST_PIECES] = base["alone_s", LAST_PIECES] / layer
    return found


def _pairs(
    costs: UnitCosts, cut_of: Ints, moves: Mapping[int, Bools], merged: Sequence[Sequence[tuple[int, float]]]
) -> tuple[tuple[PairCost, ...], ...]:
    """What a pair of classes hides; of a layer that migrates with one that does not, as if neither did."""
    n = int(cut_of.max(initial=-1)) + 1

    def of_kinds(i: int, j: int, name: str) -> Floats:
        plain: Floats = np.broadcast_to(getattr(costs.pairs[i][j], name), (n,))
        chosen = [moves[kind] for kind in (i, j) if kind in moves]
        if not chosen:
            return np.asarray(plain.take(cut_of))
        moved = np.broadcast_to(getattr(costs.moved_pairs[i][j], name), (n,))
        return np.asarray(np.concatenate([plain, moved]).take(cut_of + n * np.logical_and.reduce(chosen)))

    def pair(forward: Sequence[tuple[int, float]], backward: Sequence[tuple[int, float]]) -> PairCost:
        return PairCost(
            *(
                _mean([(of_kinds(i, j, name), a * b) for i, a in forward for j, b in backward])
                for name in ("hidden_s", "hidden_exchange_s", "first_s")
            )
        )

    return tuple(tuple(pair(forward, backward) for backward in merged) for forward in merged)


def _mode_columns(base: Columns, placed: Candidates, context: Context, groups: ParameterGroups, mode: Mode) -> Columns:
    """Bytes and seconds of a parameter under one mode, and of what all layers together take."""
    dense, expert = state_rates(with_mode(placed, mode), context, groups)
    found: dict[Key, Floats] = {}
    for name in ("total_bytes", "update_s", "swap_s"):
        found |= {(name, "dense"): getattr(dense, name), (name, "expert"): getattr(expert, name)}

    def of_model(name: str, holder: str, suffix: str = "") -> Floats:
        return np.asarray(
            base[f"dense_params{suffix}", holder] * found[name, "dense"]
            + base["expert_params", holder] * found[name, "expert"]
        )

    found["tail_s", "layers"] = (
        base["exposed_dp_s", "layers"]
        + base["migration_s", "layers"]
        + of_model("update_s", "layers")
        + of_model("swap_s", "layers")
    )
    ends = of_model("total_bytes", "layers") + of_model("total_bytes", FIRST_PIECE)
    for suffix in ("", "_folded"):
        found[f"total_bytes{suffix}", "all"] = ends + of_model("total_bytes", LAST_PIECES, suffix)
    return Columns(found, len(placed))


def rates_of(modes: Columns, name: str) -> tuple[Floats, Floats]:
    """Of a dense and of an expert parameter."""
    return modes[name, "dense"], modes[name, "expert"]
