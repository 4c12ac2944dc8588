"""Candidates by what their costs depend on, so that nothing is computed once for each of a million candidates.

A candidate is a cut of tensors, placed on so many stages, run in a way (schedule and chunks), with optimizer states
kept in one mode. Each level has far fewer rows than the next: thousands of cuts, tens of thousands of placements,
hundreds of thousands of runs, and a candidate for each mode of those.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.space.candidates import Candidates
from autodeploy.specs.derived_fields import OPTIMIZER_MEMORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_models.arrays import Bools, Ints

CUT_AXES = (
    *("tp", "cp", "cp_algo", "ulysses", "ep", "etp", "micro_batch_size", "moe_dispatcher", "sequence_parallel"),
    *("keep_gathered", "dp_replicate"),
)
EXPERT_AXES = ("ep", "etp", "moe_dispatcher")  # of a cut: how experts are cut and reached
SHAPE_AXES = ("pp", "dp", "micro_batches", "tp_pp_dp_mapping")  # of a pipeline
WAY_AXES = ("schedule", "vpp")
OPTIMIZER_STATE_AXES = OPTIMIZER_MEMORY

MOST_CODES = 1 << 62
DENSE_CODES = 4  # codes a row up to which a table of all codes is cheaper than sorting

Mode = tuple[bool, bool, bool]


@dataclass(frozen=True)
class CandidateTree:
    """n candidates. Order: modes, then ways, then placements, so that every run of one way is one slice.

    cuts, placed : one candidate for each; their deeper axes only say whether the schedule pairs passes.
    cut_of : row of `cuts` of each placement.
    ways : (schedule, vpp). rows : placements of each way; a run is one of these pairs.
    modes : values of OPTIMIZER_STATE_AXES. kept : of each mode, its runs in ascending order; None for all of them.
    """

    cuts: Candidates
    placed: Candidates
    cut_of: Ints
    ways: tuple[tuple[int, int], ...]
    rows: tuple[Ints, ...]
    modes: tuple[Mode, ...]
    kept: tuple[Ints | None, ...]

    def __len__(self) -> int:
        return int(self.mode_starts[-1])

    @cached_property
    def way_starts(self) -> Ints:
        """First run of each way, and the number of runs [ways + 1]."""
        return np.cumsum([0, *(len(rows) for rows in self.rows)])

    @cached_property
    def mode_starts(self) -> Ints:
        """First candidate of each mode, and the number of candidates [modes + 1]."""
        return np.cumsum([0, *(self.runs if kept is None else len(kept) for kept in self.kept)])

    @property
    def runs(self) -> int:
        """Pairs of a way and a placement."""
        return int(self.way_starts[-1])

    @cached_property
    def placed_of(self) -> Ints:
        """Placement of each run."""
        return np.concatenate([*self.rows, np.zeros(0, dtype=np.int64)])

    def spread(self, values: Any) -> Any:
        """One entry a run, as one entry per candidate."""
        # A tree without candidates has no modes.
        return np.concatenate([values[:0], *(values if kept is None else values[kept] for kept in self.kept)])

    def run_of(self, index: Ints) -> tuple[Ints, Ints]:
        """Run and mode of the candidates at an index."""
        mode = np.searchsorted(self.mode_starts, index, side="right") - 1
        run = index - self.mode_starts[mode]
        for number, kept in enumerate(self.kept):
            if kept is not None:
                of_mode = mode == number
                run[of_mode] = kept[run[of_mode]]
        return run, mode

    def take(self, index: Any) -> Candidates:
        """The candidates at an index, a slice or a mask, one array per axis."""
        run, mode = self.run_of(np.atleast_1d(np.arange(len(self))[index]))
        way = np.searchsorted(self.way_starts, run, side="right") - 1
        placed = self.placed_of[run]
        columns: dict[str, Any] = {name: getattr(self.placed, name)[placed] for name in (*CUT_AXES, *SHAPE_AXES)}
        for number, name in enumerate(WAY_AXES):
            columns[name] = np.array([w[number] for w in self.ways], dtype=np.int64)[way]
        for number, name in enumerate(OPTIMIZER_STATE_AXES):
            columns[name] = np.array([m[number] for m in self.modes], dtype=np.bool_)[mode]
        return Candidates(**columns)

    def candidates(self) -> Candidates:
        """All of them."""
        return self.take(slice(None))


def distinct_cuts(candidates: Candidates, *, by_replicas: bool = False, experts: bool = True) -> tuple[Ints, Ints]:
    """One candidate of each distinct cut of tensors, and which cut each candidate has.

    by_replicas : the number of replicas and of micro batches counts too: documents of different lengths spread over
        them, and parameters are sharded over them.
    experts : False where cuts that differ in experts alone are one.
    """
    axes = (*CUT_AXES, *SHAPE_AXES) if by_replicas else CUT_AXES
    columns = [getattr(candidates, name) for name in axes if experts or name not in EXPERT_AXES]
    return distinct([*columns, candidates.paired])


def tree_of(candidates: Candidates, *, by_replicas: bool = False) -> tuple[CandidateTree, Ints]:
    """The tree of any candidates, and the place in it of each of them; by_replicas : as in `distinct_cuts`."""
    columns = candidates.columns()
    shapes = [columns[name] for name in SHAPE_AXES]
    first_cut, cut = distinct_cuts(candidates, by_replicas=by_replicas)
    first_placed, placed = distinct([cut, *shapes])
    first_way, way = distinct([columns[name] for name in WAY_AXES])
    first_mode, mode = distinct([columns[name] for name in OPTIMIZER_STATE_AXES])
    runs, run = np.unique(way * max(1, len(first_placed)) + placed, return_inverse=True)
    of_way, of_placed = np.divmod(runs, max(1, len(first_placed)))
    kept = tuple(np.unique(run[mode == number]) for number in range(len(first_mode)))
    tree = CandidateTree(
        cuts=candidates.take(first_cut),
        placed=candidates.take(first_placed),
        cut_of=cut[first_placed],
        ways=tuple((int(candidates.schedule[i]), int(candidates.vpp[i])) for i in first_way),
        rows=tuple(of_placed[of_way == number] for number in range(len(first_way))),
        modes=tuple(mode_at(candidates, int(i)) for i in first_mode),
        kept=kept,
    )
    places = np.zeros(len(candidates), dtype=np.int64)
    for number, runs_of_mode in enumerate(kept):
        of_mode = mode == number
        places[of_mode] = tree.mode_starts[number] + np.searchsorted(runs_of_mode, run[of_mode])
    return tree, places


def mode_at(candidates: Candidates, index: int) -> Mode:
    """Optimizer mode of one candidate."""
    reuse, swap, virtual = (bool(getattr(candidates, name)[index]) for name in OPTIMIZER_STATE_AXES)
    return reuse, swap, virtual


def with_mode(candidates: Candidates, mode: Mode) -> Candidates:
    """The same candidates with their optimizer states kept in one mode."""
    n = len(candidates)
    columns = candidates.columns() | {name: np.full(n, on) for name, on in zip(OPTIMIZER_STATE_AXES, mode, strict=True)}
    return Candidates(**columns)


def distinct(columns: Sequence[Ints | Bools]) -> tuple[Ints, Ints]:
    """First row of each distinct combination of values >= 0, and which combination each row has."""
    n = len(columns[0])
    first, codes, size = np.arange(min(n, 1)), np.zeros(n, dtype=np.int64), 1
    for column in columns:
        most = int(column.max(initial=0)) + 1
        if size * most >= MOST_CODES:
            _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
            size = len(first)
        codes, size = codes * most + column, size * most
    if size > DENSE_CODES * max(n, 1):
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
        return first, codes
    # Few codes: each has a place, and nothing is sorted.
    place = np.full(size, -1)
    place[codes[::-1]] = np.arange(n)[::-1]
    used = np.flatnonzero(place >= 0)
    first = place[used]
    place[used] = np.arange(len(used))
    return first, place[codes]


assert {*CUT_AXES, *SHAPE_AXES, *WAY_AXES, *OPTIMIZER_STATE_AXES} == {f.name for f in fields(Candidates)}
