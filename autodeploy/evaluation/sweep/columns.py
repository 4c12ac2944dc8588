"""What a sweep reads of layers and pieces, one entry a placement: computed for cuts, looked up from there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.inputs.expert_balance import peak_over_layers
from autodeploy.evaluation.layers.pair_windows import PairCost
from autodeploy.evaluation.layers.unit_costs import MODULE
from autodeploy.evaluation.stages.pair_shares import tight_shares
from autodeploy.evaluation.stages.stage_memory import gathered_bytes
from autodeploy.evaluation.stages.step_classes import embedding_copy_params, expert_layers, merged_kinds, migrations
from autodeploy.evaluation.stages.step_parts import ParameterGroups, migration_of, state_rates, synchronised_of
from autodeploy.evaluation.sweep.cut_tables import MEMORY_COLUMNS, WORK_PARTS, cut_tables
from autodeploy.strategies.tree import distinct, with_mode
from cost_models.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.unit_costs import UnitCosts
    from autodeploy.evaluation.stages.step_classes import Migration
    from autodeploy.evaluation.stages.step_parts import StateRates
    from autodeploy.strategies.tree import CandidateTree

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
    modes : of each mode, what one parameter of each kind costs and what the whole model does. Of what is read by `get`,
    columns of zeros are left out.
    """

    counts: tuple[int, ...]
    base: Columns
    pairs: Columns
    modes: tuple[Columns, ...]


def placed_costs(costs: UnitCosts, tree: CandidateTree, context: Context) -> PlacedCosts:
    """Look up and weigh what `costs` of the tree's cuts say, for every placement."""
    first, holders = _holders(tree)
    few = tree.placed.take(first)
    groups = ParameterGroups.of(few, context)
    rates = [state_rates(with_mode(few, mode), context, groups) for mode in tree.modes]
    moves = _moves(costs, tree, context, groups, holders)
    shares = merged_kinds(costs, interleaved=bool(context.model.mlp_only_layers))
    placements = _Placements(costs, tree, context, groups.take(holders), moves, shares)
    found = placements.columns()
    stages = tree.placed.pp.astype(np.float64)
    modes = tuple(Columns(_mode_columns(found, each, holders, stages)) for each in rates)
    moving = {key for key in found if key[0].startswith("migration_s")}
    empty = {key for key in found if key[0] in WORK_PARTS and not found[key].any()}
    if not any(found[key].any() for key in moving):
        empty |= moving
    base = {key: values for key, values in found.items() if _runs_read(key) and key not in empty}
    pairs = placements.pair_columns(found) if tree.placed.paired.any() else {}
    return PlacedCosts(placements.counts, Columns(base), Columns(pairs), modes)


@dataclass(frozen=True)
class _Placements:
    """Placements of a tree [p], the holders of their parameters, where their experts migrate, and layers by class."""

    costs: UnitCosts
    tree: CandidateTree
    context: Context
    groups: ParameterGroups
    moves: Mapping[int, Migration]
    merged: list[list[tuple[int, float]]]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Layers of each class."""
        return tuple(sum(self.costs.counts[kind] for kind, _ in members) for members in self.merged)

    def columns(self) -> dict[Key, Floats]:
        """Of layers, pieces and the whole model."""
        tree, moves = self.tree, self.moves
        layers, ends = cut_tables(self.costs, self.context, len(tree.cuts))
        kinds = [table.look_up(tree.cut_of, moves) for table in layers]
        pieces = {name: table.look_up(tree.cut_of, moves) for name, table in ends.items()}
        found: dict[Key, Floats] = {}
        for number, members in enumerate(self.merged):
            for name in kinds[members[0][0]]:
                found[name, number] = _mean([(kinds[kind][name], share) for kind, share in members])
        self._over_layers(found)
        for number, members in enumerate(self.merged):
            known = moves.get(members[0][0]) if len(members) == 1 else None
            found |= self._after_pipeline({name: found[name, number] for name in _PARAMETERS}, number, known)
        found |= self._pieces(pieces)
        return found | _totals(found, self.counts, pieces, self.context, self.tree.placed.keep_gathered)

    def _over_layers(self, found: dict[Key, Floats]) -> None:
        """Bytes of layers as of one of the layers of their stage: the busiest ranks of layers are not the same."""
        tree, context, classes = self.tree, self.context, len(self.merged)
        for number in range(classes):
            found["worst_bytes", number] = found["activation_bytes", number]
        uneven = [number for number in range(classes) if found["uneven_activation_bytes", number].any()]
        if not uneven:
            return
        cuts = tree.cuts
        _, group = distinct([cuts.tp, cuts.cp, cuts.ep, cuts.etp, cuts.micro_batch_size])
        rows, which = distinct([group[tree.cut_of], tree.placed.pp])
        few = tree.placed.take(rows)
        less = (1.0 - peak_over_layers(context.loads, context.expert_ranks(few), expert_layers(context, few))).take(
            which
        )
        if not less.any():
            return
        for number in uneven:
            for bytes_, of_uneven in MEMORY_COLUMNS.items():
                off = found[of_uneven, number]
                if off.any():
                    found[bytes_, number] = found[bytes_, number] - less * off

    def pair_columns(self, found: Mapping[Key, Floats]) -> dict[Key, Floats]:
        """What pairs of classes hide, and the work that pairing schedules split off."""
        pair_costs, counts = self._pairs(), self.counts
        hidden = tight_shares([[pair.hidden_s for pair in row] for row in pair_costs], counts).both_s
        pairs: dict[Key, Floats] = {
            (f"{name}_{i}", j): getattr(pair, name)
            for i, row in enumerate(pair_costs)
            for j, pair in enumerate(row)
            for name in ("hidden_s", "hidden_exchange_s", "first_s")
        }
        pairs["hidden_s", "all"] = np.asarray(sum(n * most for n, most in zip(counts, hidden, strict=True)))
        return pairs | {(name, n): found[name, n] for n in range(len(counts)) for name in ("split_s", "covering_s")}

    def _pairs(self) -> tuple[tuple[PairCost, ...], ...]:
        """What a pair of classes hides; of a layer that migrates with one that does not, as if neither did."""
        costs, moves, n, cut_of = self.costs, self.moves, len(self.tree.cuts), self.tree.cut_of

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

        return tuple(tuple(pair(forward, backward) for backward in self.merged) for forward in self.merged)

    def _after_pipeline(
        self, cost: Mapping[str, Floats], holder: int | str, known: Migration | None = None
    ) -> dict[Key, Floats]:
        """What synchronising and moving a layer's parameters adds after the pipeline; `known`: its migration."""
        placed, context, groups = self.tree.placed, self.context, self.groups
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

    def _pieces(self, pieces: dict[str, dict[str, Floats]]) -> dict[Key, Floats]:
        """The embedding, and the pieces at the other end together; "folded": where that is the first stage too."""
        model = self.context.model
        copied = embedding_copy_params(self.tree.placed, self.context)
        module = self.moves.get(MODULE) if model.num_nextn_predict_layers == 1 else None
        needed = {"head": model.tie_word_embeddings, "mtp": True}
        found: dict[Key, Floats] = {(name, FIRST_PIECE): values for name, values in pieces["embedding"].items()}
        found |= self._after_pipeline(pieces["embedding"], FIRST_PIECE)
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
                more = self._after_pipeline(own, LAST_PIECES, known)
                after[end] = {"dense_params": own["dense_params"]} | {
                    name: values for (name, _), values in more.items()
                }
            for name in ("dense_params", "tail_dp_s", "migration_s"):
                found[f"{name}{suffix}", LAST_PIECES] = np.asarray(sum(after[end][name] for end in ends))
            if not folded:
                units = [pieces["embedding"], *(pieces[end] | after[end] for end in ends)]
                found["unit_params", "pieces"] = np.max(
                    [each["dense_params"] + each["expert_params"] for each in units], axis=0
                )
        return found


def _moves(
    costs: UnitCosts, tree: CandidateTree, context: Context, groups: ParameterGroups, holders: Ints
) -> dict[int, Migration]:
    """Where experts migrate; what it costs is priced once for all that move as much between the same holders."""
    seconds = {}
    for place, moved in costs.moved.items():
        amounts, amount = np.unique(moved.moved_params, return_inverse=True)
        amount = np.broadcast_to(amount, (len(tree.cuts),))[tree.cut_of]
        rows, which = distinct([amount, holders])
        few = tree.placed.take(rows)
        seconds[place] = migration_of(amounts[amount[rows]], few, context, groups.take(holders[rows]))[which]
    return migrations(costs, tree.placed, seconds, tree.cut_of)


def _holders(tree: CandidateTree) -> tuple[Ints, Ints]:
    """Placements that differ in who holds parameters: one of each, and which of them each placement is."""
    cuts, placed = tree.cuts, tree.placed
    _, cut = distinct([cuts.tp, cuts.cp, cuts.ep, cuts.etp, cuts.keep_gathered])
    return distinct([cut[tree.cut_of], placed.pp, placed.dp])


_PARAMETERS = ("dense_params", "expert_params", "moved_params", "forward_compute_s", "backward_compute_s")


def _runs_read(key: Key) -> bool:
    """Whether a column is read for every run, not only to make others."""
    name, holder = key
    if holder in (FIRST_PIECE, LAST_PIECES):
        return name not in _PARAMETERS[2:] and (name != "alone_s" or holder == FIRST_PIECE)
    if holder in ("layers", "pieces"):
        return False
    return holder == "all" or name not in {
        *(*_PARAMETERS[2:], "alone_s", "split_s", "covering_s", "worst_bytes"),
        *MEMORY_COLUMNS.values(),
    }


def _mean(weighted: Sequence[tuple[Floats, float]]) -> Floats:
    if len(weighted) == 1:
        return weighted[0][0]
    return np.asarray(sum(values * share for values, share in weighted))


def _totals(
    base: Mapping[Key, Floats],
    counts: Sequence[int],
    pieces: Mapping[str, Mapping[str, Floats]],
    context: Context,
    keeps_gathered: Bools,
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
        ("widest_bytes", "all"): np.asarray(np.max([base["worst_bytes", n] for n in layers], axis=0)),
        ("tail_dp_s", "layers"): total("tail_dp_s"),
        ("migration_s", "layers"): total("migration_s"),
        ("dense_params", "layers"): total("dense_params"),
        ("expert_params", "layers"): total("expert_params"),
        ("frozen_bytes", "layers"): total("frozen_bytes"),
    }
    units = [base["dense_params", n] + base["expert_params", n] for n in layers]
    largest = np.max([*units, base["unit_params", "pieces"]], axis=0)
    found["gathered_bytes", "all"] = np.broadcast_to(gathered_bytes(largest, context, keeps_gathered), largest.shape)
    layer = alone / sum(counts)
    found["layers", FIRST_PIECE] = base["alone_s", FIRST_PIECE] / layer
    found["layers", LAST_PIECES] = base["alone_s", LAST_PIECES] / layer
    return found


def _mode_columns(
    base: Mapping[Key, Floats], rates: tuple[StateRates, StateRates], holders: Ints, pp: Floats
) -> dict[Key, Floats]:
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
    frozen = sum(base["frozen_bytes", holder] for holder in ("layers", FIRST_PIECE, LAST_PIECES))
    ends = of_model("total_bytes", "layers") + of_model("total_bytes", FIRST_PIECE) + frozen
    for suffix in ("", "_folded"):
        found[f"total_bytes{suffix}", "share"] = (ends + of_model("total_bytes", LAST_PIECES, suffix)) / pp
    return found
