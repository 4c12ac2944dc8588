"""One outer candidate with its inner problem, solved quickly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.build_problem import build_problem
from autodeploy.evaluation.inner_problem import chunk_times
from autodeploy.evaluation.stage_classes import step_classes
from autodeploy.evaluation.unit_costs import unit_costs
from autodeploy.solver.effort import QUICK
from autodeploy.solver.first_look import best_template
from autodeploy.solver.memory_choices import WHOLE, memory_choices, menus
from autodeploy.solver.problem_bound import relax_bound
from autodeploy.solver.solve import solve

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.inner_problem import InnerProblem
    from autodeploy.evaluation.stage_classes import StepClasses
    from autodeploy.evaluation.unit_costs import UnitCosts
    from autodeploy.solver.effort import Effort
    from autodeploy.solver.solution import InnerSolution
    from autodeploy.strategies.candidates import Candidates, Ints

    Quick = tuple[InnerProblem, InnerSolution]


@dataclass(frozen=True)
class Solved:
    """One candidate with its solved inner problem; units: costs of its cut of tensors, where they are known."""

    index: int
    candidate: Candidates
    context: Context
    problem: InnerProblem
    solution: InnerSolution
    units: UnitCosts | None = None

    @cached_property
    def classes(self) -> StepClasses:
        """Costs of its layers, for the estimate."""
        return _classes(self.candidate, self.context, self.units)


def solve_candidate(
    candidate: Candidates,
    context: Context,
    index: int,
    should_cancel: Callable[[], bool] | None,
    units: UnitCosts | None = None,
) -> Solved:
    """One candidate, solved quickly."""
    problem, solution = quick_plan(candidate, context, should_cancel, units)
    return Solved(index, candidate, context, problem, solution, units)


def quick_plan(
    candidate: Candidates,
    context: Context,
    should_cancel: Callable[[], bool] | None,
    units: UnitCosts | None = None,
) -> Quick:
    """One candidate's problem, solved quickly: without recomputing whole layers if that fits and swaps nothing, else
    with it, and the faster of both: a swap that waits may cost more than a layer that runs again.

    units: costs of its cut of tensors, where they are known already.
    """
    classes = _classes(candidate, context, units)
    choices = memory_choices(candidate, context)
    problem = build_problem(classes, candidate, context, 0, choices=choices - {WHOLE})
    solution = _solve_quickly(problem, should_cancel)
    settled = solution.layout is not None and not _swaps(problem, solution)
    if settled or solution.status == "cancelled" or WHOLE not in choices:
        return problem, solution
    # A quick search that found no layout has not always proven that there is none.
    whole = build_problem(classes, candidate, context, 0, choices=choices)
    tried = [_solve_quickly(whole, should_cancel)]
    if solution.layout is not None and not whole.uniform_options:
        tried.append(solve(whole, effort=QUICK, should_cancel=should_cancel))
    found = min(tried, key=lambda each: each.step_s)
    bound_s = min(solution.bound_s, *(each.bound_s for each in tried))
    if solution.layout is not None and solution.step_s < found.step_s:
        return problem, replace(solution, bound_s=bound_s)
    return whole, replace(found, bound_s=bound_s)


def template_plan(candidate: Candidates, context: Context, units: UnitCosts | None = None) -> Quick:
    """One candidate's fastest template, in a fraction of the time of a quick plan, and mostly within 2 % of it.

    Recomputing whole layers is looked at where nothing else fits, and where swaps may wait.

    Without a layout where no template fits, which proves nothing.
    """
    classes = _classes(candidate, context, units)
    found: list[Quick] = []
    for choices in reversed(menus(memory_choices(candidate, context))):
        problem = build_problem(classes, candidate, context, 0, choices=choices)
        found.append((problem, best_template(problem)))
        unsure = _waits_for_swaps if problem.uniform_options else _swaps
        if found[-1][1].layout is not None and not unsure(*found[-1]):
            break
    return min(found, key=lambda each: each[1].step_s)


def _swaps(problem: InnerProblem, solution: InnerSolution) -> bool:
    """Whether a plan swaps what layers keep."""
    if solution.applied is None:
        return False
    counts = solution.applied.sum(axis=0)
    return any(option.kind == "swap" and count > 0 for option, count in zip(problem.options, counts, strict=True))


def _waits_for_swaps(problem: InnerProblem, solution: InnerSolution) -> bool:
    """Whether passes of a plan wait for what it swaps."""
    if solution.layout is None or solution.applied is None or not _swaps(problem, solution):
        return False
    return bool(chunk_times(problem, solution.layout[None], solution.applied[None]).exposed_swap_s.any())


def earnest_plan(
    candidate: Candidates,
    context: Context,
    effort: Effort,
    enough_s: float,
    should_cancel: Callable[[], bool] | None,
    units: UnitCosts | None = None,
) -> Quick:
    """One candidate's problem with its best plan, and a bound of the candidate, of no interest above enough_s.

    With whole layers recomputed and without: of equal plans the one without.
    """
    classes = _classes(candidate, context, units)
    found = []
    for choices in reversed(menus(memory_choices(candidate, context))):
        problem = build_problem(classes, candidate, context, 0, choices=choices)
        solution = solve(problem, effort=effort, upper_bound_s=enough_s, should_cancel=should_cancel)
        found.append((problem, solution))
    problem, solution = min(found, key=lambda each: each[1].step_s)
    return problem, replace(solution, bound_s=min(each.bound_s for _, each in found))


def refined_plan(
    candidate: Candidates,
    context: Context,
    problem: InnerProblem,
    effort: Effort,
    hint: tuple[Ints, Ints],
    should_cancel: Callable[[], bool] | None,
    units: UnitCosts | None = None,
) -> Quick:
    """A quick plan's problem solved in earnest from it (hint: its layout and applied choices).

    Where the plan swaps, or recomputes whole layers, the other menu of memory choices may hold a faster one.
    """
    solution = solve(problem, effort=effort, hint=hint, should_cancel=should_cancel)
    whole = any(option.name == WHOLE for option in problem.options)
    if solution.status == "cancelled" or not (whole or _swaps(problem, solution)):
        return problem, solution
    choices = next((menu for menu in menus(memory_choices(candidate, context)) if (WHOLE in menu) != whole), None)
    if choices is None:
        return problem, solution
    other = build_problem(_classes(candidate, context, units), candidate, context, 0, choices=choices)
    rival = solve(other, effort=effort, upper_bound_s=solution.step_s, should_cancel=should_cancel)
    bound_s = min(solution.bound_s, rival.bound_s)
    if rival.step_s < solution.step_s:
        return other, replace(rival, bound_s=bound_s)
    return problem, replace(solution, bound_s=bound_s)


def _classes(candidate: Candidates, context: Context, units: UnitCosts | None) -> StepClasses:
    return step_classes(unit_costs(context, candidate) if units is None else units, candidate, context)


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
