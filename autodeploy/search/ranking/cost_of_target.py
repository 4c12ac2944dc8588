"""Cost of the launch target: the best step without its rules, on the same software.

Features stay as they are; what falls is the group of constraints that say what the framework can launch: rules of
degrees, schedules and dispatchers, and which memory choices there are and whether stages may differ in them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.sweep.sweep import sweep
from autodeploy.search.branch_and_bound.candidate import solve_candidate
from autodeploy.search.branch_and_bound.search_space import legal_candidates
from autodeploy.search.placement.solve import solve
from autodeploy.space.rules import judge
from autodeploy.specs.planset import Unrestricted
from autodeploy.stack.frameworks import UNRESTRICTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.search.branch_and_bound.frontier import SearchState
    from autodeploy.search.choices.effort import Budget
    from autodeploy.search.placement.evaluate import InnerPlan
    from autodeploy.space.candidates import Candidates
    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile

MAX_QUICK_SOLVES = 3  # candidates solved quickly of what only the target's rules forbid


def price_of_target(
    spec: Spec,
    profile: Profile,
    choice: FeatureChoice,
    frontier: SearchState,
    budget: Budget,
    should_cancel: Callable[[], bool] | None = None,
) -> Unrestricted:
    """The best step time without the target's rules, and by how many percent its best plan is slower.

    A search of small effort: over what only those rules forbid, and over the target's best strategy with every memory
    choice. Its result is never worse than the target's own best plan, which nothing forbids; what a longer search would
    find beyond it is not in the price, which therefore is a least one.
    """
    best = frontier.incumbent_s
    if best is None or (should_cancel is not None and should_cancel()):
        return Unrestricted()
    if spec.search.target == UNRESTRICTED:
        return Unrestricted(best_step_time_s=best, price_pct=0.0)
    context = replace(frontier.best[0].context, target=UNRESTRICTED, stack=None)
    best_solved = frontier.best[0]
    best = min(best, _freed(best_solved, context, budget, should_cancel))
    candidates = _forbidden(spec, profile, choice, context)
    swept = sweep(candidates, context, parts=False)
    promising = np.flatnonzero(np.isfinite(swept.after_recompute_s) & (swept.bound_s < best))
    promising = promising[np.argsort(swept.after_recompute_s[promising], kind="stable")][:MAX_QUICK_SOLVES]
    solved = [solve_candidate(candidates.take(slice(i, i + 1)), context, int(i), should_cancel) for i in promising]
    fitting = [s for s in solved if s.solution.plan is not None]
    if fitting:
        first = min(fitting, key=lambda s: (s.solution.step_s, s.index))
        best = min(best, _in_full(first, first.plan, budget, should_cancel))
    own = frontier.incumbent_s
    assert own is not None
    return Unrestricted(best_step_time_s=best, price_pct=100.0 * (own / best - 1.0))


def _freed(solved_before: Solved, context: Context, budget: Budget, should_cancel: Callable[[], bool] | None) -> float:
    """Step time of the target's own best strategy with every memory choice, starting from the plan that it has."""
    solved = solve_candidate(solved_before.candidate, context, 0, should_cancel)
    places = {(option.name, option.layer_class): n for n, option in enumerate(solved.problem.options)}
    moved = np.zeros((solved.problem.pp, len(places)), dtype=np.int64)
    for number, option in enumerate(solved_before.problem.options):
        place = places.get((option.name, option.layer_class))
        if place is not None:
            moved[:, place] = solved_before.plan.applied[:, number]
        elif solved_before.plan.applied[:, number].any():
            return math.inf  # it recomputes whole layers, which the freer problem can do without
    return _in_full(solved, replace(solved_before.plan, applied=moved), budget, should_cancel)


def _in_full(solved: Solved, start: InnerPlan, budget: Budget, should_cancel: Callable[[], bool] | None) -> float:
    """Step time after a thorough search from a plan, with the same memory options on every stage."""
    even = replace(solved.problem, uniform_options=True)
    better = solve(even, effort=budget.effort, hint=start, should_cancel=should_cancel)
    return min(solved.solution.step_s, better.step_s)


def _forbidden(spec: Spec, profile: Profile, choice: FeatureChoice, context: Context) -> Candidates:
    """Strategies that only the target's rules forbid, on the cards and the batch of the best plan."""
    search = spec.search.model_copy(update={"target": UNRESTRICTED})
    legal, _ = legal_candidates(search, context, profile, choice)
    return legal.take(np.flatnonzero(~judge(legal, context.facts, spec.search.target).legal))
