"""The space of strategies as a product that is never multiplied out: cuts, their placements, ways and modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.strategies.candidates import CP_ALGOS, DISPATCHERS, HYBRID_DEGREES, Candidates, concatenate, pairs
from autodeploy.strategies.tree import CUT_AXES, OPTIMIZER_STATE_AXES, SHAPE_AXES, CandidateTree, Mode
from cost_models.schedule import schedules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autodeploy.strategies.space import Space
    from cost_models.arrays import Bools, Ints

Columns = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """Candidates before rules: every placement in every way that exists, in every mode.

    cuts : axes of each cut. shapes : axes of each shape of a pipeline. ways, modes : their axes.
    cut_of, shape_of : cut and shape of each placement. exists [shapes, ways] : whether a strategy can be so at all.
    """

    cuts: Columns
    shapes: Columns
    ways: Columns
    modes: Columns
    cut_of: Ints
    shape_of: Ints
    exists: Bools

    def __len__(self) -> int:
        runs = np.bincount(self.shape_of, minlength=len(self.exists)) @ self.exists.sum(axis=1)
        return int(runs) * len(self.modes[OPTIMIZER_STATE_AXES[0]])

    def only(self, keep: Bools) -> Grid:
        """The placements of a mask."""
        return Grid(self.cuts, self.shapes, self.ways, self.modes, self.cut_of[keep], self.shape_of[keep], self.exists)

    def column(self, axis: str) -> Any:
        """An axis of cuts or shapes, for every placement."""
        return self.cuts[axis][self.cut_of] if axis in self.cuts else self.shapes[axis][self.shape_of]

    def tree(self, runs: Bools, kept: Sequence[Bools | None], *, by_replicas: bool = False) -> CandidateTree:
        """The candidates that are left.

        runs [placements, ways] : left in some mode; kept : those left in each mode, None for all of `runs`.
        by_replicas : as in `tree_of`: every placement has a cut of its own.
        """
        paired_ways = pairs(self.ways["schedule"])
        rows: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(paired_ways)
        tables: list[tuple[Candidates, Candidates, Ints]] = []
        cuts_before = placed_before = 0
        for paired in (False, True):
            which = np.flatnonzero(paired_ways == paired)
            used = runs[:, which].any(axis=1)
            number = np.cumsum(used) - 1 + placed_before
            for way in which:
                rows[way] = number[runs[:, way]]
            placements = np.flatnonzero(used)
            cut_used = np.zeros(len(self.cuts["tp"]), dtype=np.bool_)
            cut_used[self.cut_of[placements]] = True
            schedule = int(self.ways["schedule"][which[0]]) if len(which) else 0
            placed = self.placed(placements, schedule)
            if by_replicas:
                cuts, cut_of = placed, np.arange(len(placements))
            else:
                cuts = self._cut_candidates(np.flatnonzero(cut_used), schedule)
                cut_of = (np.cumsum(cut_used) - 1)[self.cut_of[placements]]
            tables.append((cuts, placed, cut_of + cuts_before))
            cuts_before, placed_before = cuts_before + len(cuts), placed_before + len(placed)
        return CandidateTree(
            cuts=concatenate([cuts for cuts, _, _ in tables]),
            placed=concatenate([placed for _, placed, _ in tables]),
            cut_of=np.concatenate([cut_of for _, _, cut_of in tables]),
            ways=tuple(zip(self.ways["schedule"].tolist(), self.ways["vpp"].tolist(), strict=True)),
            rows=tuple(rows),
            modes=self._modes(),
            # Runs are numbered way by way.
            kept=tuple(None if mask is None else np.flatnonzero(mask.T[runs.T]) for mask in kept),
        )

    def whole(self) -> CandidateTree:
        """All candidates before rules."""
        runs = self.exists[self.shape_of]
        return self.tree(runs, [None] * len(self.modes[OPTIMIZER_STATE_AXES[0]]))

    def _modes(self) -> tuple[Mode, ...]:
        reuse, swap, virtual = (self.modes[name].tolist() for name in OPTIMIZER_STATE_AXES)
        return tuple(zip(reuse, swap, virtual, strict=True))

    def placed(self, placements: Ints, schedule: int = 0) -> Candidates:
        """One candidate of each of these placements; its way and mode say no more than the schedule."""
        cut, shape = self.cut_of[placements], self.shape_of[placements]
        axes = {name: self.cuts[name][cut] for name in CUT_AXES}
        axes |= {name: self.shapes[name][shape] for name in SHAPE_AXES}
        return _filled(axes, len(placements), schedule)

    def _cut_candidates(self, cuts: Ints, schedule: int) -> Candidates:
        axes = {name: self.cuts[name][cuts] for name in CUT_AXES}
        axes |= {name: np.ones(len(cuts), dtype=np.int64) for name in SHAPE_AXES}
        axes["tp_pp_dp_mapping"] = np.zeros(len(cuts), dtype=np.bool_)
        return _filled(axes, len(cuts), schedule)


def _filled(axes: Columns, n: int, schedule: int) -> Candidates:
    modes: Columns = {name: np.zeros(n, dtype=np.bool_) for name in OPTIMIZER_STATE_AXES}
    return Candidates(**axes, **modes, vpp=np.ones(n, dtype=np.int64), schedule=np.full(n, schedule))


def grid_of(space: Space, *, world: int, global_batch: int, moe: bool) -> Grid:
    """All combinations of axis values; dp and the number of micro batches follow from the others.

    Redundant spellings of one strategy are made once: no algorithm without context parallelism, no dispatcher without
    expert parallelism, a schedule only with the virtual stages it can have, etp only where tp differs from 1.
    """
    cuts = _cuts(space, moe)
    cut_of, pp = _product([np.arange(len(cuts["tp"])), space.pp])
    ranks = cuts["tp"][cut_of] * cuts["cp"][cut_of] * pp
    divides = world % np.maximum(ranks, 1) == 0
    cut_of, pp, ranks = cut_of[divides], pp[divides], ranks[divides]
    dp = world // ranks
    micro_batches = global_batch // (cuts["micro_batch_size"][cut_of] * np.maximum(dp, 1))
    other = np.zeros(len(pp), dtype=np.int64)
    if True in space.tp_pp_dp_mapping:
        again = np.flatnonzero((pp > 1) & (dp > 1) & _alike_inside(cuts, moe)[cut_of])
        cut_of, pp, dp, micro_batches = (np.concatenate([x, x[again]]) for x in (cut_of, pp, dp, micro_batches))
        other = np.concatenate([other, np.ones(len(again), dtype=np.int64)])
    shapes, shape_of = np.unique(np.stack([pp, dp, micro_batches, other]), axis=1, return_inverse=True)
    # Pipelines of one length follow each other: rules leave few gaps, and a way's placements are nearly one slice.
    order = np.argsort(shape_of.ravel(), kind="stable")
    cut_of, shape_of = cut_of[order], shape_of.ravel()[order]
    ways = _ways(space)
    modes = {name: np.array([name == mode for mode in space.memory_modes]) for name in OPTIMIZER_STATE_AXES}
    exists = np.zeros((shapes.shape[1], len(ways["vpp"])), dtype=np.bool_)
    for way, (schedule, vpp) in enumerate(zip(ways["schedule"].tolist(), ways["vpp"].tolist(), strict=True)):
        exists[:, way] = schedules()[schedule].exists_for(shapes[0], vpp)
    axes = dict(zip(SHAPE_AXES, [*shapes[:-1], shapes[-1].astype(np.bool_)], strict=True))
    return Grid(cuts, axes, ways, modes, cut_of, shape_of, exists)


def _alike_inside(cuts: Columns, moe: bool) -> Bools:
    """Of which cuts [n] a layer takes as many ranks for its experts as for its attention.

    Only then are the stages of a pipeline the same ranks for both where replicas lie outside them. Megatron-LM cuts
    the experts that a dense model does not have over tp ranks.
    """
    inside: Bools = cuts["etp"] * cuts["ep"] == cuts["tp"] * cuts["cp"] if moe else cuts["cp"] == 1
    return inside


def _ways(space: Space) -> Columns:
    """Schedules with the virtual stages they can have."""
    vpp, schedule = _product([space.vpp, space.schedule])
    kinds = schedules()
    ways = zip(schedule.tolist(), vpp.tolist(), strict=True)
    keep = np.array([any(kinds[way].exists_for(pp, chunks) for pp in (1, 2)) for way, chunks in ways], dtype=np.bool_)
    return {"schedule": schedule[keep], "vpp": vpp[keep]}


def _cuts(space: Space, moe: bool) -> Columns:
    """Every cut of tensors and experts that is spelled in one way only."""
    choices = context_choices(space.cp_algo)
    mode, choice, tp, cp, ep, size, dispatcher, keep, copies = _product(
        [
            range(len(space.etp_modes)),
            range(len(choices)),
            space.tp,
            space.cp,
            space.ep,
            space.micro_batch_size,
            space.moe_dispatcher,
            space.keep_gathered,
            space.dp_replicate,
        ]
    )
    algo, degree = (np.array(column, dtype=np.int64)[choice] for column in zip(*choices, strict=True))
    hybrid = algo == CP_ALGOS.index("hybrid")
    spelled = np.where(hybrid, cp > degree, cp > 1) | ((choice == 0) & (cp == 1))  # cp 1 once
    spelled &= (np.array([name == "whole" for name in space.etp_modes])[mode] & (tp == 1)) == 0
    spelled &= (ep > 1) | (dispatcher == space.moe_dispatcher[0])
    spelled &= (tp > 1) | (dispatcher != DISPATCHERS.index("alltoall_seq"))
    cut = moe & np.array([name == "as_tp" for name in space.etp_modes])[mode]
    split = np.where(hybrid, degree, np.where(algo == CP_ALGOS.index("ulysses"), cp, 1))
    columns = {
        "tp": tp,
        "cp": cp,
        "cp_algo": algo,
        "ulysses": np.where(cp > 1, split, 1),
        "ep": ep,
        "etp": np.where(cut, tp, 1),
        "micro_batch_size": size,
        "moe_dispatcher": dispatcher,
        "sequence_parallel": tp > 1,
        "keep_gathered": keep > 0,
        "dp_replicate": copies,
    }
    return {name: values[spelled] for name, values in columns.items()}


def context_choices(algorithms: Sequence[int]) -> list[tuple[int, int]]:
    """(algorithm, ulysses degree; 0 = all of cp or none of it) pairs."""
    choices: list[tuple[int, int]] = []
    for algo in algorithms:
        if CP_ALGOS[algo] == "hybrid":
            choices += [(algo, degree) for degree in HYBRID_DEGREES]
        else:
            choices.append((algo, 0))
    return choices


def _product(values: Iterable[Sequence[int] | Ints]) -> list[Ints]:
    return [a.ravel() for a in np.meshgrid(*[np.asarray(v, dtype=np.int64) for v in values], indexing="ij")]


def values_at(grid: Grid, level: str) -> Mapping[str, Any]:
    """Axes of one level of rows as columns that broadcast against [rows, ways, modes]."""
    table = {"cuts": grid.cuts, "shapes": grid.shapes}.get(level)
    if table is None:
        table = {name: grid.column(name) for name in (*CUT_AXES, *SHAPE_AXES)}
    values_of_axes = {name: values[:, None, None] for name, values in table.items()}
    values_of_axes |= {name: values[None, :, None] for name, values in grid.ways.items()}
    return values_of_axes | {name: values[None, None, :] for name, values in grid.modes.items()}
