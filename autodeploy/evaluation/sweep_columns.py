"""What a sweep reads of layers and pieces, one entry a placement: computed for cuts, looked up from there."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layer_cost import PhaseCost
from autodeploy.evaluation.pair_shares import tight_shares
from autodeploy.evaluation.pair_windows import PairCost
from autodeploy.evaluation.stage_classes import embedding_copy_params, merged_kinds, migrations
from autodeploy.evaluation.stage_memory import gathered_bytes
from autodeploy.evaluation.step_parts import ParameterGroups, migration_of, state_rates, synchronised_of
from autodeploy.evaluation.unit_costs import MODULE
from autodeploy.strategies.candidates import SCHEDULES
from autodeploy.strategies.tree import distinct, with_mode
from autodeploy.workload.operators import Floats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.layer_cost import LayerCost
    from autodeploy.evaluation.stage_classes import Migration
    from autodeploy.evaluation.step_parts import StateRates
    from autodeploy.evaluation.unit_costs import UnitCosts
    from autodeploy.strategies.candidates import Candidates, Ints
    from autodeploy.strategies.tree import CandidateTree

WORK_PARTS = tuple(field.name for field in fields(PhaseCost))
REPAIRS = ("norm", "activation", "mla_up_proj", "full")  # choices that stand for all in the order of candidates
FOLDED = SCHEDULES.index("dualpipev")

Key = tuple[str, int | str]
FIRST_PIECE, LAST_PIECES = "first", "last"  # the embedding; head and prediction modules together


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
    modes : of each mode, what one parameter of each kind costs and what the whole model does.
    """

    counts: tuple[int, ...]
    base: Columns
    pairs: Columns
    modes: tuple[Columns, ...]


def placed_costs(costs: UnitCosts, tree: CandidateTree, context: Context) -> PlacedCosts:
    """Look up and weigh what `costs` of the tree's cuts say, for every placement."""
    placed = tree.placed
    first, holders = _holders(tree)
    few = placed.take(first)
    few_groups = ParameterGroups.of(few, context)
    groups = few_groups.take(holders)
    moves = migrations(costs, placed, context, groups, tree.cut_of)
    kinds, pieces = _looked_up(costs, tree, context, moves)
    merged = merged_kinds(costs)
    found: dict[Key, Floats] = {}
    for number, members in enumerate(merged):
        for name in kinds[members[0][0]]:
            found[name, number] = _mean([(kinds[kind][name], share) for kind, share in members])
    counts = tuple(sum(costs.counts[kind] for kind, _ in members) for members in merged)
    for number, members in enumerate(merged):
        known = moves.get(members[0][0]) if len(members) == 1 else None
        own = {name: found[name, number] for name in _PARAMETERS}
        found |= _after_pipeline(own, number, placed, context, groups, known)
    module = moves.get(MODULE) if context.model.num_nextn_predict_layers == 1 else None
    found |= _pieces(pieces, placed, context, groups, module)
    found |= _totals(found, counts, pieces, context)
    pair_costs = _pairs(costs, tree.cut_of, moves, merged)
    hidden = tight_shares([[pair.hidden_s for pair in row] for row in pair_costs], counts).both_s
    pairs: dict[Key, Floats] = {
        (f"{name}_{i}", j): getattr(pair, name)
        for i, row in enumerate(pair_costs)
        for j, pair in enumerate(row)
        for name in ("hidden_s", "hidden_exchange_s", "first_s")
    }
    pairs["hidden_s", "all"] = np.asarray(sum(n * most for n, most in zip(counts, hidden, strict=True)))
    pairs |= {key: found[key] for number in range(len(counts)) for key in (("split_s", number), ("covering_s", number))}
    modes = tuple(
        _mode_columns(found, state_rates(with_mode(few, mode), context, few_groups), holders) for mode in tree.modes
    )
    base = {key: values for key, values in found.items() if _runs_read(key)}
    return PlacedCosts(counts, Columns(base), Columns(pairs), modes)


def _holders(tree: CandidateTree) -> tuple[Ints, Ints]:
    """Placements that differ in who holds parameters: one of each, and which of them each placement is."""
    cuts, placed = tree.cuts, tree.placed
    _, cut = distinct([cuts.tp, cuts.cp, cuts.ep, cuts.etp])
    return distinct([cut[tree.cut_of], placed.pp, placed.dp])


_PARAMETERS = ("dense_params", "expert_params", "moved_params", "forward_compute_s", "backward_compute_s")


def _runs_read(key: Key) -> bool:
    """Whether a column is read for every run, not only to make others."""
    name, holder = key
    if holder in (FIRST_PIECE, LAST_PIECES):
        return name not in _PARAMETERS[2:] and (name != "alone_s" or holder == FIRST_PIECE)
    if holder in ("layers", "pieces"):
        return False
    return holder == "all" or name not in {*_PARAMETERS[2:], "alone_s", "split_s", "covering_s"}


def _mean(weighted: Sequence[tuple[Floats, float]]) -> Floats:
    if len(weighted) == 1:
        return weighted[0][0]
    return np.asarray(sum(values * share for values, share in weighted))


_PLAIN_PIECE = MODULE - 1  # no place among layers that may migrate


def _looked_up(
    costs: UnitCosts, tree: CandidateTree, context: Context, moves: Mapping[int, Migration]
) -> tuple[list[dict[str, Floats]], dict[str, dict[str, Floats]]]:
    """Columns of layer kinds and of pieces, with migrated experts where they migrate [placements]."""
    n = len(tree.cuts)

    def found(cost: LayerCost, place: int, factor: float = 1.0) -> dict[str, Floats]:
        layer = place >= 0
        plain = _cost_columns(cost, context, layer=layer)
        if place not in moves:
            return {name: np.broadcast_to(v * factor, (n,)).take(tree.cut_of) for name, v in plain.items()}
        moved = _cost_columns(costs.moved[place], context, layer=layer)
        at = tree.cut_of + n * moves[place].where
        both = {name: (np.broadcast_to(v, (n,)), np.broadcast_to(moved[name], (n,))) for name, v in plain.items()}
        return {name: (np.concatenate(values) * factor).take(at) for name, values in both.items()}

    kinds = [found(cost, place) for place, cost in enumerate(costs.layers)]
    pieces = {"embedding": found(costs.embedding, _PLAIN_PIECE), "head": found(costs.head, _PLAIN_PIECE)}
    if costs.mtp is not None:
        pieces["mtp"] = found(costs.mtp, MODULE, float(context.model.num_nextn_predict_layers))
    return kinds, pieces


def _cost_columns(cost: LayerCost, context: Context, *, layer: bool) -> dict[str, Floats]:
    """What a sweep reads of the cost of a layer or a piece; all of it adds up over layers."""
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
        "dense_params": cost.dense_params,
        "expert_params": cost.expert_params,
        "moved_params": cost.moved_params,
    }
    found["imbalance_s"] = found["imbalance_s"] + slow * found["compute_s"]
    if not layer:
        return found
    found |= {"split_s": cost.split_s, "covering_s": cost.covering_s}
    for name in REPAIRS:
        choice = cost.choices.get(name)
        found[f"{name}_saved_bytes"] = np.zeros(1) if choice is None else choice.saved_bytes
        found[f"{name}_recompute_s"] = np.zeros(1) if choice is None else choice.recompute_s
    return found


def _with_slow(phase: PhaseCost, slow: float) -> Floats:
    """Seconds of a pass on the slowest device."""
    return np.asarray(phase.total_s + slow * phase.compute_s)


def _after_pipeline(
    cost: Mapping[str, Floats],
    holder: int | str,
    placed: Candidates,
    context: Context,
    groups: ParameterGroups,
    known: Migration | None = None,
) -> dict[Key, Floats]:
    """What synchronising and moving a layer's parameters adds after the pipeline; `known`: its migration."""
    per_stage = np.maximum(1.0, context.model.num_hidden_layers / placed.pp)
    compute = cost["forward_compute_s"], cost["backward_compute_s"]
    exposed, _ = synchronised_of(
        cost["dense_params"], cost["expert_params"], compute, placed, context, groups, per_stage
    )
    return {
        ("tail_dp_s", holder): exposed,
        ("migration_s", holder): migration_of(cost["moved_params"], placed, context, groups)
        if known is None
        else known.seconds,
    }


def _pieces(
    pieces: dict[str, dict[str, Floats]],
    placed: Candidates,
    context: Context,
    groups: ParameterGroups,
    module: Migration | None,
) -> dict[Key, Floats]:
    """The embedding, and the pieces at the other end together; "folded": where that is the first stage too."""
    copied = embedding_copy_params(placed, context)
    needed = {"head": context.model.tie_word_embeddings, "mtp": True}
    found: dict[Key, Floats] = {(name, FIRST_PIECE): values for name, values in pieces["embedding"].items()}
    found |= _after_pipeline(pieces["embedding"], FIRST_PIECE, placed, context, groups)
    ends = [name for name in pieces if name != "embedding"]
    for name in pieces["embedding"]:
        found[name, LAST_PIECES] = np.asarray(sum(pieces[end][name] for end in ends))
    after: dict[str, dict[str, Floats]] = {}
    for folded in (False, True):
        suffix = "_folded" if folded else ""
        for end in ends:
            # Stages apart, what needs the embedding's weights has a copy of them.
            copies = needed[end] and not folded
            if folded and not needed[end]:
                continue
            own = pieces[end] | {"dense_params": pieces[end]["dense_params"] + (copied if copies else 0.0)}
            known = module if end == "mtp" else None
            more = _after_pipeline(own, LAST_PIECES, placed, context, groups, known)
            after[end] = {"dense_params": own["dense_params"]} | {name: values for (name, _), values in more.items()}
        for name in ("dense_params", "tail_dp_s", "migration_s"):
            found[f"{name}{suffix}", LAST_PIECES] = np.asarray(sum(after[end][name] for end in ends))
        if not folded:
            units = [pieces["embedding"], *(pieces[end] | after[end] for end in ends)]
            found["unit_params", "pieces"] = np.max(
                [each["dense_params"] + each["expert_params"] for each in units], axis=0
            )
    return found


def _totals(
    base: Mapping[Key, Floats], counts: Sequence[int], pieces: Mapping[str, Mapping[str, Floats]], context: Context
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
        ("tail_dp_s", "layers"): total("tail_dp_s"),
        ("migration_s", "layers"): total("migration_s"),
        ("dense_params", "layers"): total("dense_params"),
        ("expert_params", "layers"): total("expert_params"),
    }
    units = [base["dense_params", n] + base["expert_params", n] for n in layers]
    largest = np.max([*units, base["unit_params", "pieces"]], axis=0)
    found["gathered_bytes", "all"] = np.broadcast_to(gathered_bytes(largest, context), largest.shape)
    layer = alone / sum(counts)
    found["layers", FIRST_PIECE] = base["alone_s", FIRST_PIECE] / layer
    found["layers", LAST_PIECES] = base["alone_s", LAST_PIECES] / layer
    return found


def _pairs(
    costs: UnitCosts, cut_of: Ints, moves: Mapping[int, Migration], merged: Sequence[Sequence[tuple[int, float]]]
) -> tuple[tuple[PairCost, ...], ...]:
    """What a pair of classes hides; of a layer that migrates with one that does not, as if neither did."""
    n = int(cut_of.max(initial=-1)) + 1

    def of_kinds(i: int, j: int, name: str) -> Floats:
        plain: Floats = np.broadcast_to(getattr(costs.pairs[i][j], name), (n,))
        chosen = [moves[kind].where for kind in (i, j) if kind in moves]
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


def _mode_columns(base: Mapping[Key, Floats], rates: tuple[StateRates, StateRates], holders: Ints) -> Columns:
    """Bytes and seconds of a parameter under one mode, and of what all layers together take."""
    dense, expert = rates
    few = len(dense.update_s)
    found: dict[Key, Floats] = {}
    for name in ("total_bytes", "update_s", "swap_s"):
        for kind, rate in (("dense", dense), ("expert", expert)):
            found[name, kind] = np.broadcast_to(getattr(rate, name), (few,)).take(holders)

    def of_model(name: str, holder: str, suffix: str = "") -> Floats:
        return np.asarray(
            base[f"dense_params{suffix}", holder] * found[name, "dense"]
            + base["expert_params", holder] * found[name, "expert"]
        )

    found["tail_s", "layers"] = (
        base["tail_dp_s", "layers"]
        + base["migration_s", "layers"]
        + of_model("update_s", "layers")
        + of_model("swap_s", "layers")
    )
    ends = of_model("total_bytes", "layers") + of_model("total_bytes", FIRST_PIECE)
    for suffix in ("", "_folded"):
        found[f"total_bytes{suffix}", "all"] = ends + of_model("total_bytes", LAST_PIECES, suffix)
    return Columns(found)


def rates_of(modes: Columns, name: str) -> tuple[Floats, Floats]:
    """Of a dense and of an expert parameter."""
    return modes[name, "dense"], modes[name, "expert"]
