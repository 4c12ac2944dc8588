"""Best first over outer candidates: solve inner problems in order of their estimate, keep the K best, prove a gap."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autodeploy.evaluation.build_problem import build_problem
from autodeploy.evaluation.stage_classes import StepClasses, step_classes
from autodeploy.evaluation.unit_costs import unit_costs
from autodeploy.solver.bounds import relax_bound
from autodeploy.solver.solve import solve
from autodeploy.strategies.memory_rules import launchable

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.inner_problem import InnerProblem
    from autodeploy.evaluation.sweep import Sweep
    from autodeploy.solver.effort import Effort
    from autodeploy.solver.solution import InnerSolution
    from autodeploy.strategies.candidates import Candidates


@dataclass(frozen=True)
class Solved:
    """One candidate with its solved inner problem, costs and problem kept for the estimate."""

    index: int
    candidate: Candidates
    classes: StepClasses
    context: Context
    problem: InnerProblem
    solution: InnerSolution


@dataclass
class Frontier:
    """What the search knows so far."""

    best: list[Solved] = field(default_factory=list)
    solved: int = 0
    pruned: int = 0
    infeasible: int = 0
    open_bound_s: float = math.inf
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
    effort: Effort,
    upper_bound_s: float | None,
    should_cancel: Callable[[], bool] | None,
) -> Solved:
    """Solve one candidate: without recomputing whole layers if that fits, else with it."""
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    choices = memory_choices(candidate, context)
    problem = build_problem(classes, candidate, context, 0, choices=choices - {"full"})
    solution = solve(problem, effort=effort, upper_bound_s=upper_bound_s, should_cancel=should_cancel)
    if solution.status == "infeasible" and "full" in choices:
        problem = build_problem(classes, candidate, context, 0, choices=choices)
        solution = solve(problem, effort=effort, upper_bound_s=upper_bound_s, should_cancel=should_cancel)
    return Solved(index, candidate, classes, context, problem, solution)


def best_first(
    candidates: Candidates,
    swept: Sweep,
    contexts: Callable[[int], Context],
    *,
    top_k: int,
    gap: float,
    effort: Effort,
    max_solves: int,
    watch: Watch | None = None,
    should_cancel: Callable[[], bool] | None = None,
) -> Frontier:
    """Solve candidates in the order of their repaired estimate until the bound of the rest meets the K-th best.

    Parameters
    ----------
    contexts : the context of a candidate index (all the same unless batch or cards vary).
    max_solves : deterministic limit on inner problems.
    """
    frontier = Frontier()
    order = np.lexsort((np.arange(len(candidates)), swept.repaired_s))
    bounds = swept.bound_s[order]
    # The least bound of everything from a position on.
    rest = np.minimum.accumulate(bounds[::-1])[::-1] if len(bounds) else bounds
    outer = outer_tuples(candidates)
    settled: set[int] = set()
    for position, index in enumerate(order):
        kth = frontier.best[top_k - 1].solution.step_s if len(frontier.best) >= top_k else math.inf
        best_s = frontier.incumbent_s or math.inf
        if swept.bound_s[index] >= kth or int(outer[index]) in settled:
            frontier.pruned += 1
            continue
        done = len(frontier.best) >= top_k and (rest[position] >= best_s * (1.0 - gap) or frontier.solved >= max_solves)
        out_of_effort = frontier.solved >= max_solves and frontier.best
        if done or out_of_effort or frontier.solved >= 4 * max_solves:
            frontier.open_bound_s = min(frontier.open_bound_s, float(rest[position]))
            break
        if should_cancel is not None and should_cancel():
            frontier.cancelled = True
            frontier.open_bound_s = min(frontier.open_bound_s, float(rest[position]))
            break
        limit = None if math.isinf(kth) else kth
        one = candidates.take(slice(int(index), int(index) + 1))
        if limit is not None and _cannot_enter(one, contexts(int(index)), limit):
            frontier.pruned += 1
            continue
        solved = solve_candidate(one, contexts(int(index)), int(index), effort, limit, should_cancel)
        _enter(frontier, solved, top_k, outer)
        if solved.solution.applied is not None and not solved.solution.applied.any():
            # Nothing had to be recomputed: another way to keep optimizer states can't be faster.
            settled.add(int(outer[index]))
        if watch is not None:
            watch(frontier, int(index))
    return frontier


def _cannot_enter(candidate: Candidates, context: Context, limit_s: float) -> bool:
    """Whether a cheap bound of the inner problem already exceeds the K-th best."""
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    problem = build_problem(classes, candidate, context, 0, choices=memory_choices(candidate, context) - {"full"})
    return relax_bound(problem) >= limit_s


def outer_tuples(candidates: Candidates) -> npt.NDArray[np.int64]:
    """A number for each distinct outer strategy [n]: all axes but how optimizer states are kept."""
    c = candidates
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
        c.moe_dispatcher,
    )
    _, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return np.asarray(inverse, dtype=np.int64).ravel()


def _enter(frontier: Frontier, solved: Solved, top_k: int, outer: npt.NDArray[np.int64]) -> None:
    frontier.solved += 1
    frontier.work += solved.solution.deterministic_work
    if solved.solution.layout is None:
        frontier.infeasible += solved.solution.status == "infeasible"
        if solved.solution.status == "cancelled":
            frontier.cancelled = True
        return
    frontier.best.append(solved)
    frontier.best.sort(key=lambda s: (s.solution.step_s, s.index))
    kept: dict[int, Solved] = {}
    for each in frontier.best:
        kept.setdefault(int(outer[each.index]), each)
    frontier.best = list(kept.values())[: 2 * top_k]
