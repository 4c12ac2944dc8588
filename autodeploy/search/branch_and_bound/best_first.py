"""Best first over outer candidates: solve inner problems in order of their estimate, keep the K best, prove a gap."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.search.branch_and_bound.candidate import CandidateSolver, refining
from autodeploy.search.branch_and_bound.candidate_bounds import CandidateBounds
from autodeploy.search.branch_and_bound.frontier import SearchState
from autodeploy.search.branch_and_bound.quick_plans import QuickPlans
from autodeploy.search.branch_and_bound.worker_process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.search.branch_and_bound.candidate import CandidatePlans
    from autodeploy.search.branch_and_bound.frontier import SearchRequest
    from autodeploy.search.choices.effort import Budget

OPENING, BOUNDS, ESTIMATES, FIRST, PATHS = 0.15, 0.15, 0.15, 0.1, 0.2
"""Shares of the work on plans (`Budget.quick`), spent in the order OPENING, FIRST, BOUNDS, ESTIMATES, FIRST, PATHS:
looks by estimate before any bound is raised, quick plans of the best of these, looks in the order of the bounds of
stages, looks by estimate, quick plans again, and plans while bounds are raised by paths. The rest, 0.15, goes to looks
by estimate and to plans of the best."""

LARGE_SPACE = 8_192
"""Candidates that may beat the first plans: with more of them no bound is raised beyond the accepted gap."""
MANY_PLANS = 30
"""Quick plans of a budget from which on it pays to tell what need not be looked at: of few looks few are left out."""


def best_first(
    request: SearchRequest,
    *,
    prune: bool = True,
    parallel: bool = False,
    keep: int | None = None,
    like: Callable[[int], CandidatePlans] | None = None,
) -> SearchState:
    """Look at candidates by estimate and by bound, plan and refine the best, and prove what is left.

    prune : leave out what a bound or a plan of the same outer strategy rules out; without it the plans are the same.
    parallel : whether a second process may share the work; the answer is the same.
    keep : plans left in the frontier, the fastest; twice K where nothing is said.
    like : as of `CandidateSolver`.

    Notes
    -----
    The space is a list, not a tree, in groups of candidates that share an outer tuple (`outer_tuples`); the frontier
    holds the best plan of each tuple. A look finds a candidate's fastest template, a quick plan searches around it, and
    the best are solved again in full.

    Bounds come in three strengths, each for what the one before leaves open: the sweep's, `outer_bounds_s` for all at
    once, and `path_bound_s` for one outer tuple at a time, the least first; a tuple that no bound raises any more has
    its candidates solved in full. Plans and proofs have budgets of their own, `Budget.quick` and `Budget.paths`: once
    plans have spent their share, or half of `paths` is spent, bounds alone go on, until the gap is `proof_gap`,
    they stall or `paths` is spent.

    Bounds are raised up to the best plan less `gap`; less `proof_gap`, where that is larger, in a space beyond
    LARGE_SPACE. The gap of the result is the least bound against each plan. In a smaller space stages also tell what is
    slower than anything that may be planned, where many looks are taken: such a candidate is not looked at, and its
    look counts all the same.
    """
    local, remote = (CandidateSolver(request, together=True, like=like) for _ in range(2))
    with WorkerProcess(remote, parallel=parallel, should_cancel=request.should_cancel, later=True) as worker:
        bounding = CandidateBounds(request, local, worker)
        frontier = _searched(bounding, request, prune=prune)
    frontier.solver = local
    frontier.cut(2 * request.top_k if keep is None else keep)
    # What was solved and is not kept may still be faster otherwise.
    kept = [solved.index for solved in frontier.best]
    frontier.open_bound_s, frontier.relaxation = bounding.least_s(kept), bounding.rests_on(kept)
    return frontier


def _searched(bounding: CandidateBounds, request: SearchRequest, *, prune: bool) -> SearchState:
    top_k, budget, watch = request.top_k, request.budget, request.watch
    frontier = SearchState()

    def report(index: int) -> None:
        frontier.open_bound_s = bounding.least_s([solved.index for solved in frontier.best])
        frontier.whole_bound_s = bounding.least_s([])
        if watch is not None:
            watch(frontier, index)

    def target_bound_s() -> float:
        return frontier.best[0].solution.step_s * (1.0 - aim)

    def solve_incumbents_exactly() -> None:
        """Solve the best in full; once, unless better ones are found later."""
        best = [solved.index for solved in frontier.best[:top_k]]
        if best != settled and not bounding.cancelled():
            plans.in_full(budget.quick)
            plans.other_ways([int(bounding.outer[solved.index]) for solved in frontier.best[:top_k]])
            plans.in_full(budget.quick)
            _refine(frontier, bounding, budget, refined, report)
            settled[:] = [solved.index for solved in frontier.best[:top_k]]

    refined: set[int] = set()
    settled: list[int] = []
    plans = QuickPlans(frontier, bounding, request, report, prune=prune)
    parts = [share * budget.quick for share in (OPENING, FIRST, BOUNDS, ESTIMATES, FIRST, PATHS)]
    opening, first, bounds, estimates, second, paths = np.cumsum(parts)
    plans.by_estimate(opening)
    plans.in_full(first)
    aim = request.gap
    if frontier.best and not bounding.cancelled():
        if bounding.below(target_bound_s()) > LARGE_SPACE:
            aim = max(request.gap, budget.proof_gap)
        frontier.pruned += bounding.by_stages(target_bound_s())
        close_s = plans.close_s()
        worth_it = budget.quick >= MANY_PLANS and math.isfinite(close_s)
        if worth_it and bounding.below(close_s) <= LARGE_SPACE:
            bounding.give_up(close_s, target_bound_s())
        report(frontier.best[0].index)
        plans.by_bound(bounds)
        plans.by_estimate(estimates)
        plans.in_full(second)
        for opened in bounding.by_paths(target_bound_s, lambda: plans.left(budget.quick - paths), budget):
            for solved in opened.solved:
                plans.enter(solved)
                refined.add(solved.index)
            if opened.bounds_only:
                solve_incumbents_exactly()
            elif opened.promising:
                number, *soon = (int(bounding.outer[rows[0]]) for rows in (opened.rows, *opened.prefetch))
                plans.of_tuple(number, soon)
            report(int(opened.rows[0]))
            if opened.bounds_only and frontier.gap <= budget.proof_gap:
                break
    plans.by_estimate(budget.quick)
    solve_incumbents_exactly()
    plans.by_estimate(budget.quick, again=True)
    solve_incumbents_exactly()
    _raise_bounds(frontier, bounding)
    frontier.cancelled |= bounding.cancelled()
    return frontier


def _refine(
    frontier: SearchState, bounding: CandidateBounds, budget: Budget, refined: set[int], report: Callable[[int], None]
) -> None:
    """Solve the best candidates again in full, the most promising first; the others keep their quick plans."""
    quick = sorted(frontier.best, key=lambda s: (s.solution.step_s, s.index))
    rough = [solved for solved in quick[: budget.refined] if solved.index not in refined]
    # Every other one is the worker's, where there is one.
    how = {solved.index: refining(solved, budget.effort, counts=budget.proof_gap <= 0.0) for solved in rough}
    begun = {
        solved.index: bounding.remote.begin(CandidateSolver.plan, solved.index, how[solved.index])
        for solved in rough[1::2]
        if bounding.remote.parallel
    }
    for solved in rough:
        index = solved.index
        if bounding.cancelled():
            return
        answer = begun[index].result() if index in begun else bounding.local.plan(index, how[index])
        if answer is None:
            return
        problem, better = answer
        refined.add(index)
        bound_s = max(better.bound_s, solved.solution.bound_s)
        keep = replace(solved, problem=problem, solution=better) if better.step_s <= solved.solution.step_s else solved
        bound_s = min(bound_s, keep.solution.step_s)
        frontier.best[frontier.best.index(solved)] = replace(keep, solution=replace(keep.solution, bound_s=bound_s))
        bounding.raise_to(index, bound_s)
        frontier.work += better.deterministic_work
        frontier.best.sort(key=lambda s: (s.solution.step_s, s.index))
        report(index)


def _raise_bounds(frontier: SearchState, bounding: CandidateBounds) -> None:
    """Plans know what was proven of their candidates later, or by others than themselves."""
    for place, solved in enumerate(frontier.best):
        solution, known_s = solved.solution, float(bounding.bounds_s[solved.index])
        if known_s > solution.bound_s:
            bound_s, relaxation = min(solution.step_s, known_s), bounding.relaxation_of(solved.index)
            frontier.best[place] = replace(solved, solution=replace(solution, bound_s=bound_s, relaxation=relaxation))
