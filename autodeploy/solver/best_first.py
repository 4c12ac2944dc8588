"""Best first over outer candidates: solve inner problems in order of their estimate, keep the K best, prove a gap."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autodeploy.evaluation.build_problem import build_problem
from autodeploy.evaluation.options import FLAT, SEQUENTIAL
from autodeploy.evaluation.stage_classes import StepClasses, step_classes
from autodeploy.evaluation.unit_costs import unit_costs
from autodeploy.solver.bounds import relax_bound
from autodeploy.solver.effort import QUICK
from autodeploy.solver.memory_choices import memory_choices
from autodeploy.solver.open_bounds import OpenBounds
from autodeploy.solver.solve import solve
from autodeploy.strategies.tree import distinct

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.inner_problem import InnerProblem
    from autodeploy.evaluation.sweep import Sweep
    from autodeploy.solver.effort import Effort
    from autodeploy.solver.solution import InnerSolution
    from autodeploy.strategies.candidates import Candidates


# Inner problems are simulated slot by slot: a candidate costs about pp x vpp x micro batches of work.
QUICK_SLOTS = 60_000.0
AHEAD = 256
"""Candidates looked at in order for each that may be solved: most share their outer tuple with a better one."""


@dataclass(frozen=True)
class Solved:
    """One candidate with its solved inner problem; costs and problem are kept for the estimate."""

    index: int
    candidate: Candidates
    classes: StepClasses
    context: Context
    problem: InnerProblem
    solution: InnerSolution


@dataclass(frozen=True, slots=True)
class Budget:
    """Deterministic limits of one search.

    Inner problems solved quickly, slots they may simulate, refined ones, and outer tuples bounded by paths.
    """

    quick: int
    slots: float
    refined: int
    effort: Effort
    paths: int = 400


@dataclass
class Frontier:
    """What the search knows so far."""

    best: list[Solved] = field(default_factory=list)
    solved: int = 0
    pruned: int = 0
    open_bound_s: float = math.inf  # no candidate without a plan in `best` can beat this
    relaxation: str = ""  # what open_bound_s rests on
    cancelled: bool = False
    work: float = 0.0
    least_bytes: float | None = None  # no strategy takes less on the card; only the search for memory knows

    @property
    def incumbent_s(self) -> float | None:
        """Step time of the best plan so far."""
        return self.best[0].solution.step_s if self.best else None

    @property
    def bound_s(self) -> float | None:
        """No strategy of the space is faster than this; None as long as nothing is known, or memory is looked for."""
        if self.least_bytes is not None:
            return None
        proven = min((s.solution.bound_s for s in self.best), default=math.inf)
        bound = min(proven, self.open_bound_s)
        return bound if math.isfinite(bound) else None


Watch = Callable[[Frontier, int], None]


def solve_candidate(
    candidate: Candidates,
    context: Context,
    index: int,
    should_cancel: Callable[[], bool] | None,
) -> Solved:
    """Solve one candidate: without recomputing whole layers if that fits, else with it."""
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    choices = memory_choices(candidate, context)
    problem = build_problem(classes, candidate, context, 0, choices=choices - {"full"})
    solution = _solve_quickly(problem, should_cancel)
    if solution.layout is None and solution.status != "cancelled" and "full" in choices:
        # A quick search that found no layout has not always proven that there is none.
        lean_s = solution.bound_s
        problem = build_problem(classes, candidate, context, 0, choices=choices)
        solution = _solve_quickly(problem, should_cancel)
        solution = replace(solution, bound_s=min(solution.bound_s, lean_s))
    return Solved(index, candidate, classes, context, problem, solution)


def _solve_quickly(problem: InnerProblem, should_cancel: Callable[[], bool] | None) -> InnerSolution:
    """A plan with the same memory options on every stage: legal for every target, and far fewer to look at.

    Where the options may differ between stages the bound is that of the freer problem.
    """
    even = replace(problem, uniform_options=True)
    solution = solve(even, effort=QUICK, should_cancel=should_cancel)
    if problem.uniform_options:
        return solution
    free = relax_bound(problem)
    if solution.layout is None and np.isfinite(free):
        return solve(problem, effort=QUICK, should_cancel=should_cancel)
    return replace(solution, bound_s=min(solution.bound_s, free))


def best_first(
    candidates: Candidates,
    swept: Sweep,
    contexts: Callable[[int], Context],
    *,
    top_k: int,
    gap: float,
    budget: Budget,
    watch: Watch | None = None,
    should_cancel: Callable[[], bool] | None = None,
    prune: bool = True,
) -> Frontier:
    """Solve candidates quickly in the order of their repaired estimate, refine the best, and prove what is left.

    Parameters
    ----------
    contexts : the context of a candidate index (all the same unless batch or cards vary).
    prune : leave out what a bound or a plan of the same outer strategy rules out; without it the plans are the same.

    Notes
    -----
    Bounds come in four strengths, each for what the one before leaves open: the sweep's, `outer_bounds_s` for all at
    once, and one outer tuple at a time, the least first, `path_bound_s` and `count_bound_s`. The search ends when the
    bound of everything meets the best plan within `gap`, or the budget ends. The gap of the result is
    the least bound against each plan.
    """
    frontier = Frontier()
    outer = outer_tuples(candidates)
    open_ = OpenBounds(candidates, contexts, outer, swept.bound_s.copy(), should_cancel)

    def report(index: int) -> None:
        frontier.open_bound_s = open_.least_s([solved.index for solved in frontier.best])
        if watch is not None:
            watch(frontier, index)

    _solve_in_order(frontier, open_, swept, top_k, gap, budget, report, prune=prune)
    if frontier.best and not frontier.cancelled:
        _refine(frontier, open_, budget, report)
    if frontier.best and not open_.cancelled():
        incumbent = frontier.best[0].solution.step_s
        enough = incumbent * (1.0 - gap)
        frontier.pruned += open_.by_stages(enough)
        report(frontier.best[0].index)
        for index in open_.by_paths(enough, budget.paths):
            report(index)
        _raise_bounds(frontier, open_)
    frontier.cancelled |= open_.cancelled()
    planned = [solved.index for solved in frontier.best]
    frontier.open_bound_s, frontier.relaxation = open_.least_s(planned), open_.rests_on(planned)
    del frontier.best[2 * top_k :]
    return frontier


def _solve_in_order(
    frontier: Frontier,
    open_: OpenBounds,
    swept: Sweep,
    top_k: int,
    gap: float,
    budget: Budget,
    report: Callable[[int], None],
    *,
    prune: bool,
) -> None:
    """Quick plans of the most promising candidates."""
    order = swept.fastest(AHEAD * budget.quick)
    later = np.ones(len(open_.candidates), dtype=np.bool_)
    later[order] = False
    last = float(swept.bound_s[later].min()) if later.any() else math.inf
    rest = np.minimum.accumulate(np.append(swept.bound_s[order], last)[::-1])[::-1]
    settled: set[int] = set()
    slots, tried = 0.0, 0
    for position, index in enumerate(map(int, order)):
        frontier.cancelled |= open_.cancelled()
        kth = frontier.best[top_k - 1].solution.step_s if len(frontier.best) >= top_k else math.inf
        spent = frontier.best and (frontier.solved >= budget.quick or slots >= budget.slots)
        closed = len(frontier.best) >= top_k and rest[position] >= (1.0 - gap) * kth
        if frontier.cancelled or spent or (prune and closed) or tried >= 8 * budget.quick:
            return
        if prune and (swept.bound_s[index] >= kth or int(open_.outer[index]) in settled):
            frontier.pruned += 1
            continue
        tried += 1
        one = open_.candidates.take(slice(index, index + 1))
        solved = solve_candidate(one, open_.contexts(index), index, open_.should_cancel)
        slots += float(solved.problem.pp * solved.problem.vpp * solved.problem.micro_batches)
        _enter(frontier, solved, open_)
        if solved.solution.applied is not None and not solved.solution.applied.any():
            # Nothing had to be recomputed: another way to keep optimizer states can't be faster.
            settled.add(int(open_.outer[index]))
        report(index)


def _refine(frontier: Frontier, open_: OpenBounds, budget: Budget, report: Callable[[int], None]) -> None:
    """Solve the best candidates again in earnest, the most promising first; the others keep their quick plans."""
    quick = sorted(frontier.best, key=lambda s: (s.solution.step_s, s.index))
    for solved in quick[: budget.refined]:
        if open_.cancelled():
            return
        assert solved.solution.layout is not None
        assert solved.solution.applied is not None
        hint = (solved.solution.layout, solved.solution.applied)
        better = solve(solved.problem, effort=budget.effort, hint=hint, should_cancel=open_.should_cancel)
        bound = max(better.bound_s, solved.solution.bound_s)
        keep = better if better.layout is not None and better.step_s <= solved.solution.step_s else solved.solution
        refined = replace(solved, solution=replace(keep, bound_s=min(bound, keep.step_s)))
        frontier.best[frontier.best.index(solved)] = refined
        open_.raise_to(solved.index, refined.solution.bound_s)
        frontier.work += better.deterministic_work
        frontier.best.sort(key=lambda s: (s.solution.step_s, s.index))
        report(refined.index)


def _raise_bounds(frontier: Frontier, open_: OpenBounds) -> None:
    """Plans know what was proven of their candidates later."""
    for place, solved in enumerate(frontier.best):
        bound = min(solved.solution.step_s, max(solved.solution.bound_s, float(open_.bounds_s[solved.index])))
        frontier.best[place] = replace(solved, solution=replace(solved.solution, bound_s=bound))


def outer_tuples(candidates: Candidates) -> npt.NDArray[np.int64]:
    """A number for each distinct outer strategy [n].

    All axes but how optimizer states are kept, and which of the two pairwise dispatchers a framework runs.
    """
    c = candidates
    dispatcher = np.where(c.moe_dispatcher == SEQUENTIAL, FLAT, c.moe_dispatcher)
    columns = (
        c.tp,
        c.pp,
        c.vpp,
        c.cp,
        c.cp_algo,
        c.ulysses,
        c.ep,
        c.etp,
        c.micro_batch_size,
        c.schedule,
        dispatcher,
    )
    return distinct(columns)[1]


def _enter(frontier: Frontier, solved: Solved, open_: OpenBounds) -> None:
    """Keep a solved candidate if it is the best of its outer tuple."""
    frontier.solved += 1
    open_.raise_to(solved.index, solved.solution.bound_s)
    if solved.solution.layout is None:
        return
    kept: dict[int, Solved] = {}
    for each in sorted([*frontier.best, solved], key=lambda s: (s.solution.step_s, s.index)):
        kept.setdefault(int(open_.outer[each.index]), each)
    frontier.best = list(kept.values())
