"""One outer candidate with its inner problem, solved quickly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.build_problem import build_problem
from autodeploy.evaluation.stage_classes import StepClasses, step_classes
from autodeploy.evaluation.unit_costs import UnitCosts, unit_costs
from autodeploy.solver.bounds import relax_bound
from autodeploy.solver.effort import QUICK
from autodeploy.solver.memory_choices import memory_choices
from autodeploy.solver.solve import solve

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.inner_problem import InnerProblem
    from autodeploy.solver.solution import InnerSolution
    from autodeploy.strategies.candidates import Candidates


@dataclass(frozen=True)
class Solved:
    """One candidate with its solved inner problem; costs and problem are kept for the estimate."""

    index: int
    candidate: Candidates
    classes: StepClasses
    context: Context
    problem: InnerProblem
    solution: InnerSolution


def solve_candidate(
    candidate: Candidates,
    context: Context,
    index: int,
    should_cancel: Callable[[], bool] | None,
    units: UnitCosts | None = None,
) -> Solved:
    """Solve one candidate: without recomputing whole layers if that fits, else with it.

    units: costs of its cut of tensors, where they are known already.
    """
    classes = step_classes(units or unit_costs(context, candidate), candidate, context)
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
