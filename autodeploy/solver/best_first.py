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
from autodeploy.solver.solve import solve
from autodeploy.strategies.memory_rules import launchable
from autodeploy.strategies.tree import distinct

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.inner_problem import InnerProblem
    from autodeploy.evaluation.sweep import Sweep
    from autodeploy.solver.effort import Effort
    from autodeploy.solver.solution import InnerSolution
    from autodeploy.strategies.candidates import Candidates


# Inner problems are simulated slot by slot: a candidate costs about pp x vpp x micro batches of work.
QUICK_SLOTS = 250_000.0


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
    """Deterministic limits of one search: inner problems solved quickly, slots they may simulate, and refined ones."""

    quick: int
    slots: float
    refined: int
    effort: Effort


@dataclass
class Frontier:
    """What the search knows so far."""

    best: list[Solved] = field(default_factory=list)
    solved: int = 0
    pruned: int = 0
    open_bound_s: float = math.inf  # no candidate that was not refined can beat this
    cancelled: bool = False
    work: float = 0.0

    @property
    def incumbent_s(self) -> float | None:
        """Step time of the best plan so far."""
        return self.best[0].solution.step_s if self.best else None


Watch = Callable[[Frontier, int], None]


def memory_choices(candidate: Candidates, context: Context) -> frozenset[str]:
    """Memory choices a candidate may use: launchable, and not switched off."""
    allowed = launchable(candidate, context.facts, context.target)
    if "selective_recompute" not in context.features:
        allowed &= frozenset({"full", "swap_attention", "swap_unpermute", "swap_moe"})
    if "selective_swap" not in context.features:
        allowed -= {"swap_unpermute", "swap_moe"}
    if "swap_attention" not in context.features:
        allowed -= {"swap_attention"}
    return allowed


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
) -> Frontier:
    """Solve candidates quickly in the order of their repaired estimate, then refine the best and prove their bounds.

    Parameters
    ----------
    contexts : the context of a candidate index (all the same unless batch or cards vary).

    Notes
    -----
    The search ends when the bound of all open candidates meets the best plan within `gap`, or the budget ends. The gap
    of the result is the least open bound against each plan.
    """
    frontier = Frontier()
    outer = outer_tuples(candidates)
    order = np.lexsort((np.arange(len(candidates)), swept.repaired_s))
    bounds = swept.bound_s[order]
    rest = np.minimum.accumulate(bounds[::-1])[::-1] if len(bounds) else bounds
    settled: set[int] = set()
    slots, tried = 0.0, 0
    for position, index in enumerate(order):
        if should_cancel is not None and should_cancel():
            frontier.cancelled = True
        kth = frontier.best[top_k - 1].solution.step_s if len(frontier.best) >= top_k else math.inf
        spent = frontier.best and (frontier.solved >= budget.quick or slots >= budget.slots)
        closed = len(frontier.best) >= top_k and rest[position] >= (1.0 - gap) * (frontier.incumbent_s or math.inf)
        if frontier.cancelled or spent or closed or tried >= 8 * budget.quick:
            frontier.open_bound_s = min(frontier.open_bound_s, float(rest[position]))
            break
        if swept.bound_s[index] >= kth or int(outer[index]) in settled:
            frontier.pruned += 1
            continue
        tried += 1
        one = candidates.take(slice(int(index), int(index) + 1))
        solved = solve_candidate(one, contexts(int(index)), int(index), should_cancel)
        slots += float(solved.problem.pp * solved.problem.vpp * solved.problem.micro_batches)
        _enter(frontier, solved, outer)
        if solved.solution.applied is not None and not solved.solution.applied.any():
            # Nothing had to be recomputed: another way to keep optimizer states can't be faster.
            settled.add(int(outer[index]))
        if watch is not None:
            watch(frontier, int(index))
    _refine(frontier, outer, top_k, budget, watch, should_cancel)
    return frontier


def _refine(
    frontier: Frontier,
    outer: npt.NDArray[np.int64],
    top_k: int,
    budget: Budget,
    watch: Watch | None,
    should_cancel: Callable[[], bool] | None,
) -> None:
    """Solve the best candidates again in earnest, the most promising first; the others keep their quick plans."""
    quick = sorted(frontier.best, key=lambda s: (s.solution.step_s, s.index))
    for rank, solved in enumerate(quick):
        stop = frontier.cancelled or (should_cancel is not None and should_cancel())
        if rank >= budget.refined or stop:
            frontier.cancelled |= stop
            frontier.open_bound_s = min(frontier.open_bound_s, solved.solution.bound_s)
            continue
        assert solved.solution.layout is not None
        assert solved.solution.applied is not None
        hint = (solved.solution.layout, solved.solution.applied)
        better = solve(solved.problem, effort=budget.effort, hint=hint, should_cancel=should_cancel)
        if better.layout is not None and better.step_s <= solved.solution.step_s:
            bound = max(better.bound_s, solved.solution.bound_s)
            refined = replace(solved, solution=replace(better, bound_s=min(bound, better.step_s)))
        else:
            proven = max(better.bound_s, solved.solution.bound_s)
            refined = replace(solved, solution=replace(solved.solution, bound_s=proven))
        frontier.best[frontier.best.index(solved)] = refined
        frontier.open_bound_s = min(frontier.open_bound_s, refined.solution.bound_s)
        frontier.work += better.deterministic_work
        frontier.best.sort(key=lambda s: (s.solution.step_s, s.index))
        if watch is not None:
            watch(frontier, refined.index)
    del frontier.best[2 * top_k :]


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


def _enter(frontier: Frontier, solved: Solved, outer: npt.NDArray[np.int64]) -> None:
    """Keep a solved candidate if it is the best of its outer tuple."""
    frontier.solved += 1
    if solved.solution.layout is None:
        if solved.solution.status != "infeasible":
            frontier.open_bound_s = min(frontier.open_bound_s, solved.solution.bound_s)
        return
    kept: dict[int, Solved] = {}
    for each in sorted([*frontier.best, solved], key=lambda s: (s.solution.step_s, s.index)):
        first = kept.setdefault(int(outer[each.index]), each)
        if first is not each:
            frontier.open_bound_s = min(frontier.open_bound_s, each.solution.bound_s)
    frontier.best = list(kept.values())
