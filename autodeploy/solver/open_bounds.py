"""What is proven of every candidate so far, and how it is raised: by stages for all at once, by paths one at a time."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autodeploy.evaluation.build_problem import build_problem
from autodeploy.evaluation.stage_classes import step_classes
from autodeploy.solver.bounds import relax_bound
from autodeploy.solver.count_bound import count_bound_s
from autodeploy.solver.count_master import solve_counts
from autodeploy.solver.memory_choices import memory_choices
from autodeploy.solver.outer_bound import outer_bounds_s
from autodeploy.solver.path_bound import PathBound, PathLibrary, path_bound_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.cut_costs import CutCosts
    from autodeploy.evaluation.inner_problem import Floats, InnerProblem, LayerClass
    from autodeploy.evaluation.stage_classes import StepClasses
    from autodeploy.strategies.candidates import Candidates

RELAXATIONS = (
    "the sweep's closed form: work and memory shared evenly by the stages",
    "every stage alone, with the memory it must save",
    "layers in fractions under paths of the schedule, with the memory that stages must save",
    "whole layers under paths of the schedule, with the memory that stages must save",
    "the candidate's own problem",
)
"""What a bound can rest on, in the order in which it is raised."""
_, STAGES, PATHS, WHOLE, SOLVED = range(5)

TOGETHER = 32
"""Outer tuples whose costs are computed together."""
PROOF = 0.5
"""Of the work, what is kept for bounds alone, after plans were made."""
ROUNDS = (4, 8, 16, 32, 64)
"""Linear programmes of one inner problem, at each visit."""
MASTER = 1.0
"""CP-SAT's deterministic time for a problem that paths leave open."""
STEP = 0.01
"""Of a bound by paths, what whole layers are asked to raise it by: that nothing is faster is proven step by step."""
CLOSE = 1e-4
"""CP-SAT's whole units keep a proven bound this far below what was asked for."""
PER_SECOND = 800
"""Linear programmes that are about as much work as one unit of it."""
SETUP = 3
"""Linear programmes that are about as much work as making the first one of a problem."""
COLUMNS = 170.0
"""Columns of a linear programme that takes twice as long as a small one; larger ones take far longer."""


@dataclass(frozen=True, slots=True)
class Look:
    """Candidates [n] of one outer tuple.

    hopeful: its bound by paths is the least of all, and it may be planned; deep: only bounds are raised from now on.
    """

    rows: npt.NDArray[np.int64]
    hopeful: bool = False
    deep: bool = False


@dataclass(eq=False)
class _Open:
    """An outer tuple with its relaxed problems and what is proven of each.

    visits: how often it was bounded; handed: to the caller, to be planned; finished: no bound raises it any more.
    """

    problems: tuple[InnerProblem, ...]
    proven: list[PathBound]
    visits: int = 0
    handed: bool = False
    finished: bool = False


class OpenBounds:
    """Lower bounds on the step time of all candidates: bounds_s [n]. `outer` numbers their outer strategies [n]."""

    def __init__(
        self,
        candidates: Candidates,
        contexts: Callable[[int], Context],
        costs: CutCosts,
        outer: npt.NDArray[np.int64],
        bounds_s: Floats,
        should_cancel: Callable[[], bool] | None,
    ) -> None:
        self.candidates, self.contexts, self.costs, self.outer = candidates, contexts, costs, outer
        self.bounds_s, self.should_cancel = bounds_s, should_cancel
        self.library = PathLibrary()
        self._rests_on = np.zeros(len(bounds_s), dtype=np.int8)

    def cancelled(self) -> bool:
        """Whether the caller wants the search to end."""
        return self.should_cancel is not None and self.should_cancel()

    def raise_to(self, index: int, bound_s: float) -> None:
        """A candidate's bound is at least this, as its solved problem says."""
        self._raise(np.array([index]), np.array([bound_s]), SOLVED)

    def rests_on(self, without: list[int]) -> str:
        """The relaxation behind the least bound of all candidates but some; "" when there are none."""
        rest = np.setdiff1d(np.arange(len(self.bounds_s)), without)
        return RELAXATIONS[self._rests_on[rest[np.argmin(self.bounds_s[rest])]]] if len(rest) else ""

    def _raise(self, rows: npt.NDArray[np.int64], bounds_s: Floats, relaxation: int) -> None:
        higher = bounds_s > self.bounds_s[rows]
        self._rests_on[rows[higher]] = relaxation
        self.bounds_s[rows] = np.maximum(self.bounds_s[rows], bounds_s)

    def least_s(self, without: list[int]) -> float:
        """The least bound of all candidates but some; inf when there are none."""
        rest = np.ones(len(self.bounds_s), dtype=np.bool_)
        rest[without] = False
        return float(self.bounds_s[rest].min()) if rest.any() else float("inf")

    def by_stages(self, high_s: float) -> int:
        """Raise all bounds below high_s by `outer_bounds_s`; how many candidates that leaves above it."""
        rows = np.flatnonzero(self.bounds_s < high_s)
        known = [self.contexts(int(i)) for i in rows]
        numbers = np.array([id(context) for context in known], dtype=np.int64)
        for context in {id(context): context for context in known}.values():
            mine = rows[numbers == id(context)]
            found = outer_bounds_s(
                self.candidates.take(mine),
                context,
                self.costs.take(mine),
                self.outer[mine],
                self.bounds_s[mine],
                high_s,
                should_cancel=self.should_cancel,
            )
            # What is above is known to be above, not by how much.
            self._raise(mine, np.where(np.isinf(found), high_s, found), STAGES)
        return len(rows) - int((self.bounds_s[rows] < high_s).sum())

    def by_paths(self, enough_s: Callable[[], float], planning: Callable[[], bool], work: int) -> Iterator[Look]:
        """Raise the bounds below enough_s(), always those of the outer tuple with the least.

        A tuple is first bounded by paths in a few rounds. While the caller is `planning`, the one with the least bound
        is handed to it then, to be planned, which may lower enough_s, and left aside; later it gets more rounds. It
        ends where the least bound can't be raised any more, or after `work`, in linear programmes of small problems.
        """
        tuples = self._tuples_below(enough_s())
        queue = [(float(self.bounds_s[rows].min()), number) for number, rows in enumerate(tuples)]
        heapq.heapify(queue)
        aside: list[tuple[float, int]] = []
        proof, handed_all, told = PROOF * work, False, False

        def handing() -> bool:
            return not handed_all and work > proof and planning()

        known: dict[int, _Open] = {}
        while (queue or aside) and work > 0 and not self.cancelled():
            if not (queue and handing()):
                handed_all = True
                queue, aside = [*queue, *aside], []
                heapq.heapify(queue)
            known_s, number = heapq.heappop(queue)
            rows, bound_s = tuples[number], float(self.bounds_s[tuples[number]].min())
            if bound_s >= enough_s() * (1.0 - 1e-6):
                known.pop(number, None)
                continue
            if bound_s > known_s:  # raised meanwhile
                heapq.heappush(queue, (bound_s, number))
                continue
            if number not in known:
                ahead = [number, *(n for _, n in heapq.nsmallest(TOGETHER, queue) if n not in known)]
                for n, problems in zip(ahead, self._relaxed([tuples[n] for n in ahead]), strict=True):
                    known[n] = _Open(problems, [PathBound(0.0, over=False)] * len(problems))
                    if self.cancelled():
                        return
            if known[number].finished:
                return
            if known[number].visits and handing() and not known[number].handed:
                known[number].handed = True
                yield Look(rows, hopeful=True)
            if known[number].visits and handing():
                aside.append((bound_s, number))
                continue
            if handed_all and not told:
                told = True
                yield Look(rows, deep=True)
            work -= self._visit(known[number], rows, enough_s(), work)
            heapq.heappush(queue, (float(self.bounds_s[rows].min()), number))
            yield Look(rows, deep=handed_all)

    def _tuples_below(self, enough_s: float) -> list[npt.NDArray[np.int64]]:
        """The candidates of each outer tuple that has any with a bound below enough_s."""
        rows = np.flatnonzero(self.bounds_s < enough_s)
        order = rows[np.argsort(self.outer[rows], kind="stable")]
        return np.split(order, np.flatnonzero(np.diff(self.outer[order])) + 1) if len(order) else []

    def _visit(self, tuple_: _Open, rows: npt.NDArray[np.int64], enough_s: float, work: int) -> int:
        """Raise the bounds of one outer tuple once more; the work done."""
        tuple_.visits += 1
        if tuple_.visits == 1 and len(tuple_.problems) > 1:
            # One problem that is no harder than either serves to tell whether the tuple deserves more.
            problem, before = easier(tuple_.problems), PathBound(0.0, over=False)
            found, spent = self._by_paths_s(problem, before, enough_s, ROUNDS[0])
            self._raise(rows, np.full(len(rows), found.bound_s), PATHS)
            return spent
        over = tuple_.visits > 1 and (tuple_.visits > len(ROUNDS) or all(each.over for each in tuple_.proven))
        aim_s = min(enough_s, float(self.bounds_s[rows].min()) * (1.0 + STEP)) if over else enough_s
        done = 0
        for place, problem in enumerate(tuple_.problems):
            before = tuple_.proven[place]
            if self.cancelled() or before.bound_s >= aim_s * (1.0 - 1e-6):
                continue
            if over:
                bound, spent_s = count_bound_s(
                    problem,
                    self.library,
                    aim_s,
                    deterministic_time=min(MASTER, max(0, work - done) / PER_SECOND),
                    should_cancel=self.should_cancel,
                )
                found, spent = replace(before, bound_s=bound), math.ceil(spent_s * PER_SECOND)
            else:
                found, spent = self._by_paths_s(problem, before, enough_s, ROUNDS[tuple_.visits - 1])
            done += spent
            tuple_.proven[place] = replace(found, bound_s=max(before.bound_s, found.bound_s))
        least_s = min(each.bound_s for each in tuple_.proven)
        tuple_.finished = over and least_s < aim_s * (1.0 - CLOSE)
        self._raise(rows, np.full(len(rows), least_s), WHOLE if over else PATHS)
        return done

    def _by_paths_s(
        self, problem: InnerProblem, before: PathBound, enough_s: float, rounds: int
    ) -> tuple[PathBound, int]:
        """One more path bound, and the work done."""
        if before.over:
            return before, 0
        found = self._bound_s(problem, enough_s, rounds)
        columns = problem.pp * problem.vpp * (len(problem.classes) + (3 if problem.pairs else 1))
        return found, math.ceil(SETUP + found.rounds * (1.0 + (columns / COLUMNS) ** 5))

    def _bound_s(self, problem: InnerProblem, enough_s: float, rounds: int) -> PathBound:
        """Bound of one problem, of no interest above enough_s; inf when it can't fit."""
        bound = relax_bound(problem)
        if bound >= enough_s:
            return PathBound(bound, over=True)
        found = path_bound_s(problem, self.library, rounds=rounds, enough_s=enough_s, should_cancel=self.should_cancel)
        if found.fractional:
            return replace(found, bound_s=max(bound, found.bound_s))
        # No fractional layout was found. Whether there is none is for exact arithmetic to say.
        hint = np.zeros((problem.pp, problem.vpp, len(problem.classes)), dtype=np.int64)
        low, layout, _ = solve_counts(
            problem, [], enough_s, hint=hint, deterministic_time=0.05, seed=0, should_cancel=self.should_cancel
        )
        return PathBound(max(bound, found.bound_s, low if layout is None else 0.0), True, found.rounds)

    def _relaxed(self, groups: list[npt.NDArray[np.int64]]) -> Iterator[tuple[InnerProblem, ...]]:
        """For each group problems no harder than any of its candidates', which differ in what their states take.

        One without recomputing whole layers and, where that is allowed, one with it.
        """
        costs: dict[int, tuple[StepClasses, Candidates, dict[int, int]]] = {}
        for rows in groups:
            context = self.contexts(int(rows[0]))
            if id(context) not in costs:
                mine = np.concatenate([other for other in groups if self.contexts(int(other[0])) is context])
                some = self.candidates.take(mine)
                classes = step_classes(self.costs.of(mine), some, context)
                costs[id(context)] = classes, some, {int(row): place for place, row in enumerate(mine)}
            classes, some, place_of = costs[id(context)]
            places = [place_of[int(row)] for row in rows]
            allowed = [memory_choices(some.take(slice(place, place + 1)), context) for place in places]
            lean, full = (
                [
                    replace(
                        build_problem(classes, some, context, place, choices=choices - barred, menu=False),
                        uniform_options=False,
                    )
                    for place, choices in zip(places, allowed, strict=True)
                    if barred or "full" in choices
                ]
                for barred in (frozenset({"full"}), frozenset())
            )
            yield (easiest(lean), easiest(full)) if full else (easiest(lean),)


def easiest(problems: list[InnerProblem]) -> InnerProblem:
    """The first problem with the least bytes and tails of all: they are alike in everything else."""

    def least(costs: list[LayerClass]) -> LayerClass:
        return replace(
            costs[0],
            forward_s=min(c.forward_s for c in costs),
            backward_s=min(c.backward_s for c in costs),
            static_bytes=min(c.static_bytes for c in costs),
            activation_bytes=min(c.activation_bytes for c in costs),
            tail_s=min(c.tail_s for c in costs),
        )

    one = problems[0]
    return replace(
        one,
        classes=tuple(least(list(costs)) for costs in zip(*(p.classes for p in problems), strict=True)),
        pieces=tuple(
            replace(pieces[0], cost=least([p.cost for p in pieces]))
            for pieces in zip(*(p.pieces for p in problems), strict=True)
        ),
        limit_bytes=max(p.limit_bytes for p in problems),
        fixed_bytes=np.min([p.fixed_bytes for p in problems], axis=0),
        tail_s=min(p.tail_s for p in problems),
    )


def easier(problems: tuple[InnerProblem, ...]) -> InnerProblem:
    """One problem that is no harder than any of some that differ in their options and in what stages hold besides."""
    most = max(problems, key=lambda problem: len(problem.options))
    return replace(
        most,
        fixed_bytes=np.min([problem.fixed_bytes for problem in problems], axis=0),
        limit_bytes=max(problem.limit_bytes for problem in problems),
    )
