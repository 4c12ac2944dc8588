"""The space of strategies as a product that is never multiplied out: cuts, their placements, ways and modes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autodeploy.space.candidates import CP_ALGOS, DISPATCHERS, HYBRID_DEGREES, Candidates, concatenate, pairs
from autodeploy.space.rules import WORDS, Rule, load_rules, scope_of
from autodeploy.space.tree import CUT_AXES, OPTIMIZER_STATE_AXES, SHAPE_AXES, WAY_AXES, CandidateTree, Mode
from cost_models.schedule import schedules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autodeploy.space.space import Space
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


# The rules over a whole space.
Numbers = npt.NDArray[np.uint8]
OBEYS_ALL = 255


def judge_grid(
    grid: Grid, facts: Mapping[str, Any], target: str, *, by_replicas: bool = False
) -> tuple[CandidateTree, dict[str, int]]:
    """The legal candidates of a grid, and how many each rule rejected first: as `judge` of all of them one by one.

    by_replicas : as in `tree_of`.
    """
    rules = load_rules()
    assert len(rules) < OBEYS_ALL
    every, of_mode = _first_broken(grid, rules, facts, target)
    exists = grid.exists[grid.shape_of]
    counts = np.zeros(OBEYS_ALL + 1, dtype=np.int64)
    runs = np.zeros_like(exists)
    kept = []
    for more in of_mode:
        first = every if more is None else np.minimum(every, more)
        counts += np.bincount(first[exists], minlength=OBEYS_ALL + 1)
        legal = (first == OBEYS_ALL) & exists
        runs |= legal
        kept.append(legal)
    masks = [None if legal.sum() == runs.sum() else legal for legal in kept]
    rejected = {rule.name: int(counts[number]) for number, rule in enumerate(rules) if counts[number]}
    return grid.tree(runs, masks, by_replicas=by_replicas), rejected


def _first_broken(
    grid: Grid, rules: tuple[Rule, ...], facts: Mapping[str, Any], target: str
) -> tuple[Numbers, list[Numbers | None]]:
    """Number of the first rule that each run [placements, ways] breaks, of those that no mode matters to; then by mode.

    A mode without a rule of its own to break has None.
    """
    broken: dict[tuple[str, bool], Numbers] = {}
    scope, constants = scope_of(facts, target), {**WORDS.places(), **facts}
    values: dict[str, dict[str, Any]] = {}  # by level
    for number, rule in enumerate(rules):
        if not rule.binds(scope):
            continue
        read = rule.names()
        level = _level(read)
        key = level, bool(read & set(OPTIMIZER_STATE_AXES))
        if level not in values:
            values[level] = {**constants, **_values(grid, level)}
        obeyed = rule.mask(values[level])
        if obeyed.all():
            continue
        shape = (_rows(grid, level), len(grid.ways["vpp"]), len(grid.modes[OPTIMIZER_STATE_AXES[0]]) if key[1] else 1)
        before = broken.get(key, np.uint8(OBEYS_ALL))
        broken[key] = np.minimum(before, np.broadcast_to(np.where(obeyed, OBEYS_ALL, number), shape).astype(np.uint8))
    every = np.full((len(grid.cut_of), len(grid.ways["vpp"])), OBEYS_ALL, dtype=np.uint8)
    of_mode: list[Numbers | None] = [None] * len(grid.modes[OPTIMIZER_STATE_AXES[0]])
    for (level, by_mode), numbers in broken.items():
        if not by_mode:
            np.minimum(every, _spread(grid, level, numbers[:, :, 0]), out=every)
            continue
        for mode, before_mode in enumerate(of_mode):
            more = numbers[:, :, mode]
            if (more < OBEYS_ALL).any():
                spread = _spread(grid, level, more)
                of_mode[mode] = spread if before_mode is None else np.minimum(before_mode, spread)
    return every, of_mode


def _level(read: frozenset[str]) -> str:
    """The fewest rows that tell apart what a rule reads."""
    cuts, shapes = bool(read & set(CUT_AXES)), bool(read & set(SHAPE_AXES))
    return "placements" if cuts and shapes else "cuts" if cuts else "shapes" if shapes else "none"


def _values(grid: Grid, level: str) -> Mapping[str, Any]:
    if level == "none":
        own = (*WAY_AXES, *OPTIMIZER_STATE_AXES)
        return {name: values for name, values in values_at(grid, "shapes").items() if name in own}
    return values_at(grid, level)


def _rows(grid: Grid, level: str) -> int:
    return {"none": 1, "cuts": len(grid.cuts["tp"]), "shapes": len(grid.exists), "placements": len(grid.cut_of)}[level]


def _spread(grid: Grid, level: str, numbers: Numbers) -> Numbers:
    """Rows of a level for every placement."""
    if level == "cuts":
        return numbers[grid.cut_of]
    return numbers[grid.shape_of] if level == "shapes" else numbers


# How large a space is, from the values of its axes alone.
MOST_CANDIDATES = 10_000_000  # of one number of cards; these are in memory at the same time
MOST_CELLS = 10_000_000  # of the grid that candidates are taken from
MOST_CANDIDATES_IN_ALL = 20_000_000

_GRID = (
    *("tp", "cp", "pp", "vpp", "schedule", "ep", "micro_batch_size", "moe_dispatcher"),
    *("keep_gathered", "dp_replicate"),
)


def grid_cells(space: Space) -> int:
    """Combinations of the grid's axes, before those that cannot exist are left out."""
    return prod(len(getattr(space, axis)) for axis in _GRID)


def most_candidates(space: Space, world: int) -> int:
    """An upper bound on the candidates of `world` ranks: their degrees divide it, their schedules have their chunks."""
    schedules = sum(_goes_with(schedule, vpp) for schedule in space.schedule for vpp in space.vpp)
    experts = sum(1 if ep == 1 else len(space.moe_dispatcher) for ep in space.ep)
    others = schedules * len(space.micro_batch_size) * len(space.memory_modes)
    others *= len(space.keep_gathered) * len(space.dp_replicate)
    # In the other rank order a cut's experts lie on as many ranks as its attention: on one number of them.
    experts += len(space.moe_dispatcher) * (True in space.tp_pp_dp_mapping)
    pp = np.asarray(space.pp, dtype=np.int64)
    layouts = 0
    for tp in _dividing(space.tp, world):
        modes = len(space.etp_modes) if tp > 1 else 1
        for cp in _dividing(space.cp, world // tp):
            stages = int(np.count_nonzero((world // (tp * cp)) % np.maximum(pp, 1) == 0))
            layouts += modes * stages * _context_choices(space.cp_algo, cp)
    return layouts * others * experts


def _dividing(values: Sequence[int], whole: int) -> list[int]:
    return [value for value in values if value > 0 and whole % value == 0]


def _goes_with(schedule: int, vpp: int) -> bool:
    """Whether the schedule can have so many virtual stages on one stage or on several, as enumeration has it."""
    return any(schedules()[schedule].exists_for(pp, vpp) for pp in (1, 2))


def _context_choices(algorithms: Sequence[int], cp: int) -> int:
    if cp == 1:
        return 1
    return sum(
        sum(cp > degree for degree in HYBRID_DEGREES) if CP_ALGOS[algorithm] == "hybrid" else 1
        for algorithm in algorithms
    )
