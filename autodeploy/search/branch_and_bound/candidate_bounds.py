"""Bounds proven of every candidate so far, and their raising: by stages for all at once, by paths one at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from autodeploy.messages import Message
from autodeploy.search.bounds.outer_bound import shapes_of
from autodeploy.search.branch_and_bound.candidate import CandidateSolver
from autodeploy.search.branch_and_bound.path_bound import PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.search.branch_and_bound.frontier import SearchRequest
    from autodeploy.search.branch_and_bound.path_bound import Visit
    from autodeploy.search.branch_and_bound.worker_process import Future, WorkerProcess
    from autodeploy.search.choices.effort import Budget
    from cost_models.arrays import Floats, Ints

T = TypeVar("T")
RELAXATIONS = (
    Message("solver.sweep_bound"),
    Message("solver.saving_bound"),
    Message("solver.fractional_bound"),
    Message("solver.candidate_s_own_problem"),
)
"""What a bound can rest on, in the order in which it is raised."""
_, STAGES, PATHS, SOLVED = range(4)

TUPLES_TOGETHER = 6
"""Outer tuples whose problems are made together."""
LOOKAHEAD_TUPLES = 2
"""Outer tuples of which it is told that they will probably be planned."""
PROOF_SHARE = 0.5
"""Of the work, what is kept for bounds alone, after plans were made."""
BOUND_SPREAD = 0.02
"""A bound that is higher than the least by more is not raised along with it: the work may be wanted lower down."""
EXACT = 40
"""Linear programmes that are about as much work as the plan of a candidate that is solved in full."""
ALONE = 150
"""Linear programmes that a process solves before it shares the work: a second one takes as long to be made and to load
what it needs.
"""
STALL_LIMIT = 0.25
"""Of the budget's paths: so much work on bounds alone that narrows the gap by less than MIN_PROGRESS is the last."""
MIN_PROGRESS = 0.002
BOUND_TOLERANCE = 1e-6
"""A bound this close to what is enough is enough."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """Candidates [n] of one outer tuple.

    promising: its bound by paths is the least of all, and it may be planned, and `prefetch` those of candidates of some
    that will probably be next; bounds_only: nothing is planned from now on; solved: candidates of it, in full.
    """

    rows: Ints
    promising: bool = False
    prefetch: tuple[Ints, ...] = ()
    bounds_only: bool = False
    solved: tuple[Solved, ...] = ()


class _Tuples:
    """Outer tuples below a step time, in the order of their bounds: every other one is the worker's.

    rows: their candidates; bound_s: of the lowest of them; visits: how often each was bounded; aside: handed to the
    caller to be planned, left for when nothing is planned any more; finished: no bound raises it.
    """

    def __init__(self, outer: Ints, bounds_s: Floats, target_bound_s: float) -> None:
        below = np.flatnonzero(bounds_s < target_bound_s)
        order = below[np.argsort(outer[below], kind="stable")]
        groups = np.split(order, np.flatnonzero(np.diff(outer[order])) + 1) if len(order) else []
        least = np.array([bounds_s[rows].min() for rows in groups])
        by_bound = np.argsort(least, kind="stable")
        self.rows: list[Ints] = [groups[number] for number in by_bound]
        self.bound_s = least[by_bound]
        self.visits = np.zeros(len(groups), dtype=np.int64)
        self.aside, self.finished = np.zeros((2, len(groups)), dtype=np.bool_)
        self.remote = np.arange(len(groups)) % 2 == 1

    def least(self, mask: npt.NDArray[np.bool_]) -> int | None:
        """The one with the least bound of some."""
        return int(np.argmin(np.where(mask, self.bound_s, np.inf))) if mask.any() else None

    def first(self, mask: npt.NDArray[np.bool_], count: int) -> list[Ints]:
        """Candidates of those with the least bounds of some, the least first."""
        places = np.flatnonzero(mask)
        return [self.rows[each] for each in places[np.argsort(self.bound_s[places], kind="stable")[:count]]]

    def ahead(self, number: int) -> list[Ints]:
        """Tuples of the same side that nobody bounded yet, the least first."""
        others = np.arange(len(self.rows)) != number
        return self.first(others & (self.visits == 0) & (self.remote == self.remote[number]), TUPLES_TOGETHER)


class _Proof:
    """Whether work on bounds alone still narrows the gap.

    patience : work, of which `left` says how much there is.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._left, self._gap = math.inf, math.inf

    def stalls(self, left: float, gap: float) -> bool:
        """Whether the gap has narrowed too little since it narrowed last."""
        if self._gap - gap >= MIN_PROGRESS:
            self._left, self._gap = left, gap
        return self._left - left >= self._patience


class CandidateBounds:
    """Lower bounds on the step time of all candidates: bounds_s [n].

    local, remote : who computes them; what each knows depends only on what it was asked.
    """

    def __init__(self, request: SearchRequest, local: CandidateSolver, remote: WorkerProcess[CandidateSolver]) -> None:
        self.request, self.candidates, self.outer = request, request.candidates, request.outer
        self.bounds_s, self.cancelled = request.swept.bound_s.copy(), request.cancelled
        self.local, self.remote = local, remote
        self._rests_on = np.zeros(len(self.bounds_s), dtype=np.int8)
        self._solved_in_full: set[int] = set()
        self.hopeless = np.zeros(len(self.bounds_s), dtype=np.bool_)
        """Candidates that stages have shown to be too slow for a look [n]."""

    def raise_to(self, index: int, bound_s: float) -> None:
        """A candidate's bound is at least this, as its solved problem says."""
        self._raise(np.array([index]), np.array([bound_s]), SOLVED)

    def rests_on(self, without: list[int]) -> str:
        """The relaxation behind the least bound of all candidates but some; "" when there are none."""
        bounds_s = self._others(without)
        return RELAXATIONS[self._rests_on[np.argmin(bounds_s)]] if len(without) < len(bounds_s) else ""

    def relaxation_of(self, index: int) -> str:
        """Relaxation behind the bound of a candidate."""
        return RELAXATIONS[self._rests_on[index]]

    def _raise(self, rows: Ints, bounds_s: Floats, relaxation: int) -> None:
        higher = bounds_s > self.bounds_s[rows]
        self._rests_on[rows[higher]] = relaxation
        self.bounds_s[rows] = np.maximum(self.bounds_s[rows], bounds_s)

    def least_s(self, without: list[int]) -> float:
        """The least bound of all candidates but some; inf when there are none."""
        return float(self._others(without).min(initial=np.inf))

    def _others(self, without: list[int]) -> Floats:
        """The bounds, those of some candidates out of reach."""
        bounds_s = self.bounds_s.copy()
        bounds_s[without] = np.inf
        return bounds_s

    def shared(self, method: Callable[..., T], asked: Sequence[tuple[Any, ...]]) -> list[T | None]:
        """Answers of a method of `CandidateSolver`: to the first question from here, meanwhile to the others from the
        worker; None of those that were cancelled.
        """
        begun = [self.remote.begin(method, *args) for args in asked[1:]]
        return [method(self.local, *asked[0]), *(each.result() for each in begun)]

    def below(self, high_s: float) -> int:
        """Number of candidates that may be faster than this."""
        return int((self.bounds_s < high_s).sum())

    def by_stages(self, high_s: float) -> int:
        """Raise all bounds below high_s by `outer_bounds_s`; how many candidates that leaves above it."""
        rows = np.flatnonzero(self.bounds_s < high_s)
        for part, bounds_s in self._of_stages(rows, high_s):
            # What is above is known to be above, not by how much.
            self._raise(part, np.where(np.isinf(bounds_s), high_s, bounds_s), STAGES)
        return len(rows) - self.below(high_s)

    def give_up(self, look_s: float, low_s: float) -> None:
        """Tell which candidates between two step times are hopeless: stages have no plan faster than look_s."""
        rows = np.flatnonzero((self.bounds_s < look_s) & (self.bounds_s >= low_s))
        for part, bounds_s in self._of_stages(rows, look_s):
            self.hopeless[part] = np.isinf(bounds_s)

    def _of_stages(self, rows: Ints, high_s: float) -> Iterator[tuple[Ints, Floats]]:
        """`outer_bounds_s` of some rows, up to high_s, as far as they were computed."""
        for _, rows_of_context in self.request.by_context(rows):
            # What orders cost to make is shared by the candidates of a shape: each shape is one side's.
            other = shapes_of(self.candidates.take(rows_of_context)) % 2 == 1
            parts = [part for part in (rows_of_context[~other], rows_of_context[other]) if len(part)]
            asked = [(part, self.bounds_s[part], high_s) for part in parts]
            for part, bounds_s in zip(parts, self.shared(CandidateSolver.stage_bounds_s, asked), strict=True):
                if bounds_s is not None:
                    yield part, bounds_s

    def by_paths(
        self, target_bound_s: Callable[[], float], planning: Callable[[], bool], budget: Budget
    ) -> Iterator[Expansion]:
        """Raise the bounds below target_bound_s(), always those of the outer tuple with the least.

        A tuple is first bounded by paths in a few rounds. While the caller is `planning`, the one with the least bound
        is handed to it then, to be planned, which may lower target_bound_s, and left aside; later it gets more rounds.
        Where no bound raises the least tuple any more, its candidates are solved in full. It ends where that doesn't
        raise it either, where much work has hardly narrowed the gap, or after the budget's paths, in linear programmes
        of small problems. Meanwhile the worker bounds the least of its tuples.
        """
        tuples, work = _Tuples(self.outer, self.bounds_s, target_bound_s()), budget.paths
        narrowing = _Proof(STALL_LIMIT * budget.paths)
        proof, handed_all, reported = PROOF_SHARE * work, False, False
        while work > 0 and not self.cancelled():
            if budget.paths - work >= ALONE:
                self.remote.share()
            low = tuples.bound_s < target_bound_s() * (1.0 - BOUND_TOLERANCE)
            handing = not handed_all and work > proof and planning()
            number = tuples.least(low & ~tuples.aside if handing else low)
            if number is None and (handed_all or not low.any()):
                return
            handed_all = not handing or number is None
            if handed_all and narrowing.stalls(work, 1.0 - self.least_s([]) / target_bound_s()):
                return
            if number is None or self._raised(tuples, number):
                continue
            rows = tuples.rows[number]
            if handing and tuples.visits[number]:
                tuples.aside[number] = True
                soon = tuple(tuples.first(low & ~tuples.aside & (tuples.visits > 0), LOOKAHEAD_TUPLES))
                # Where no other plan is in sight, the worker raises bounds.
                fresh = None if soon else tuples.least(low & tuples.remote & (tuples.visits == 0))
                begun = self._begin(tuples, fresh, target_bound_s())
                yield Expansion(rows, promising=True, prefetch=soon)
                work -= self._end(tuples, begun)
                continue
            if handed_all and not reported:
                reported = True
                yield Expansion(rows, bounds_only=True)
            if tuples.finished[number]:
                solved = self._solved_exactly(rows, target_bound_s(), budget)
                if not solved:
                    return
                work -= sum(EXACT + math.ceil(one.solution.deterministic_work * PER_SECOND) for one in solved)
                yield Expansion(rows, bounds_only=handed_all, solved=solved)
                continue
            others = low & ~tuples.finished & (tuples.remote != tuples.remote[number])
            near_s = tuples.bound_s[number] * (1.0 + BOUND_SPREAD)
            others &= (tuples.visits == 0) if handing else (tuples.bound_s < near_s)
            other = tuples.least(others)
            near, away = (other, number) if tuples.remote[number] else (number, other)
            begun = self._begin(tuples, away, target_bound_s())
            work -= self._here(tuples, near, target_bound_s()) + self._end(tuples, begun)
            yield Expansion(rows, bounds_only=handed_all)

    def _solved_exactly(self, rows: Ints, target_bound_s: float, budget: Budget) -> tuple[Solved, ...]:
        """The two candidates with the least bounds of some, solved; none where the least one is, or too many are."""
        tried = self._solved_in_full
        by_bound = rows[np.argsort(self.bounds_s[rows], kind="stable")].tolist()
        if by_bound[0] in tried or len(tried) >= budget.exact_solves:
            return ()
        next_two = [each for each in by_bound if each not in tried and self.bounds_s[each] < target_bound_s][:2]
        counts = budget.proof_gap <= 0.0
        plans = self.shared(CandidateSolver.exact, [(each, budget.effort, target_bound_s, counts) for each in next_two])
        solved = []
        for index, plan in zip(next_two, plans, strict=True):
            if plan is None:
                continue
            solved.append(self.local.solved(index, plan))
            tried.add(index)
            self.raise_to(index, solved[-1].solution.bound_s)
        return tuple(solved)

    def _raised(self, tuples: _Tuples, number: int) -> bool:
        """Whether a tuple's candidates were planned since, and are known to be slower."""
        bound_s = float(self.bounds_s[tuples.rows[number]].min())
        raised = bound_s > tuples.bound_s[number]
        tuples.bound_s[number] = bound_s
        return bool(raised)

    def _begin(self, tuples: _Tuples, number: int | None, target_bound_s: float) -> tuple[int, Future[Visit]] | None:
        """Have the worker process bound a tuple."""
        if number is None:
            return None
        return number, self.remote.begin(
            CandidateSolver.visit, tuples.rows[number], tuples.ahead(number), target_bound_s
        )

    def _end(self, tuples: _Tuples, begun: tuple[int, Future[Visit]] | None) -> int:
        """Take over what the worker found; the work it did."""
        visit = begun[1].result() if begun is not None else None
        return self._take(tuples, begun[0], visit) if begun is not None and visit is not None else 0

    def _here(self, tuples: _Tuples, number: int | None, target_bound_s: float) -> int:
        """Bound a tuple; the work done."""
        if number is None:
            return 0
        return self._take(tuples, number, self.local.visit(tuples.rows[number], tuples.ahead(number), target_bound_s))

    def _take(self, tuples: _Tuples, number: int, visit: Visit) -> int:
        rows = tuples.rows[number]
        self._raise(rows, np.full(len(rows), visit.bound_s), PATHS)
        tuples.visits[number] += 1
        tuples.finished[number] = visit.finished
        tuples.bound_s[number] = self.bounds_s[rows].min()
        return visit.work
