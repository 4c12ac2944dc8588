"""The search for the plan that takes least memory: the same inner problem, with less and less room.

Candidates come in the order of what is proven of their memory: first the sweep's bound, then that of their layers over
stages with everything freed, then a plan. Bytes here are those on the card of the fullest stage.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.stages.build_problem import build_problem
from autodeploy.costs.stages.stage_memory import communication_bytes, on_card_bytes
from autodeploy.search.bounds.problem_bound import relax_bound
from autodeploy.search.branch_and_bound.candidate import CandidatePlans, CandidateSolver, Solved, refining
from autodeploy.search.branch_and_bound.frontier import SearchState, bytes_on_card, card_bytes, held_bytes
from autodeploy.search.choices.effort import QUICK
from autodeploy.search.choices.memory_options import menus
from autodeploy.search.placement.solve import is_free, solve
from autodeploy.space.tree import OPTIMIZER_STATE_AXES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.search.branch_and_bound.candidate import Quick
    from autodeploy.search.branch_and_bound.frontier import SearchRequest
    from autodeploy.search.choices.effort import Effort
    from autodeploy.search.placement.evaluate import InnerPlan, InnerSolution
    from cost_models.arrays import Floats


MEMORY_TOLERANCE: Final = 2e-3
"""Room is known to this share."""
MOST_SQUEEZES: Final = 10
"""Times that a candidate is solved with less room."""


def least_memory(request: SearchRequest) -> SearchState:
    """The plans of least memory, each the fastest found in its room, and the least that any plan could take.

    The search ends when no open candidate could take less than the best by more than `gap`, or the budget ends.
    """
    solver, swept, outer = CandidateSolver(request), request.swept, request.outer
    top_k, budget = request.top_k, request.budget
    frontier, bounds = SearchState(), _sweeps_bytes(request)
    order = np.lexsort((swept.after_recompute_s, bounds))
    waiting: list[tuple[float, float, int]] = []  # bounded by their stages: what to solve next, the least first
    leanest: dict[int, tuple[float, Solved]] = {}
    bounded = 0
    while waiting or bounded < len(order):
        unseen = float(bounds[order[bounded]]) if bounded < len(order) else math.inf
        low = min(unseen, waiting[0][0]) if waiting else unseen
        frontier.cancelled = request.cancelled()
        taken = sorted(size for size, _ in leanest.values())
        enough = len(leanest) >= top_k and low >= taken[top_k - 1] * (1.0 - request.gap)
        spent = bool(leanest) and (frontier.solved >= budget.quick or bounded >= 8 * budget.paths)
        if frontier.cancelled or enough or spent:
            break
        is_bounded = bool(waiting) and waiting[0][0] <= unseen
        index = heapq.heappop(waiting)[2] if is_bounded else int(order[bounded])
        plans = solver.plans(index)
        if not is_bounded:
            bounded += 1
            bounds[index] = max(low, _relaxed_bytes(plans))
            if math.isfinite(bounds[index]):
                heapq.heappush(waiting, (float(bounds[index]), float(swept.after_recompute_s[index]), index))
            continue
        frontier.solved += 1
        solved = _least_plan(solver, index, low, request.should_cancel)
        if solved is not None:
            size = card_bytes(solved)
            if size < leanest.get(int(outer[index]), (math.inf,))[0]:
                leanest[int(outer[index])] = size, solved
                frontier.best = [s for _, s in sorted(leanest.values(), key=lambda f: (f[0], f[1].index))]
        frontier.least_bytes = _proven(bounds)
        if request.watch is not None:
            request.watch(frontier, index)
    frontier.least_bytes = _proven(bounds)
    frontier.cut(2 * top_k)
    return frontier


def _proven(bounds: Floats) -> float | None:
    """No candidate takes less: the least of what is proven of each."""
    least = float(bounds.min()) if len(bounds) else math.inf
    return least if math.isfinite(least) else None


def _sweeps_bytes(request: SearchRequest) -> Floats:
    """The sweep's lower bound on the card [n]."""
    least_bytes = np.empty(len(request.candidates))
    for context, rows in request.by_context(np.arange(len(least_bytes))):
        outside = communication_bytes(request.candidates.take(rows), context) + context.machine.runtime_bytes
        least_bytes[rows] = on_card_bytes(request.swept.least_bytes[rows], outside, context.machine.fragmentation)
    return least_bytes


def _relaxed_bytes(plans: CandidatePlans) -> float:
    """No layout and no choice takes less on the card; inf where none fits at all."""
    problems = [build_problem(plans.priced, choices=choices, menu=False) for choices in menus(plans.choices)]
    return min(bytes_on_card(problem, plans.context, _least_room(problem)) for problem in problems)


def _least_room(problem: InnerProblem) -> float:
    """A limit, to MEMORY_TOLERANCE, under which the stages together have no room for the layers; inf where no limit up
    to the problem's has.
    """
    low, high = 0.0, problem.limit_bytes
    if not math.isfinite(relax_bound(problem)):
        return math.inf
    while high - low > MEMORY_TOLERANCE * high:
        middle = 0.5 * (low + high)
        low, high = (
            (low, middle) if math.isfinite(relax_bound(replace(problem, limit_bytes=middle))) else (middle, high)
        )
    return low


def _least_plan(
    solver: CandidateSolver, index: int, low_bytes: float, should_cancel: Callable[[], bool] | None
) -> Solved | None:
    """A candidate's plan with least memory, with and without recomputing whole layers; None where none was found."""
    plans, squeezed = solver.plans(index), []
    less = (plans.context.limit_bytes - low_bytes) / (1.0 + plans.context.machine.fragmentation)
    for problem in reversed([*plans.problems()]):
        solution = _squeezed(problem, max(0.0, problem.limit_bytes - less), should_cancel)
        if solution is not None:
            squeezed.append(solver.solved(index, (problem, solution)))
    return min(squeezed, key=card_bytes, default=None)


def _squeezed(
    problem: InnerProblem, low_bytes: float, should_cancel: Callable[[], bool] | None
) -> InnerSolution | None:
    """The fastest plan found under the least limit that has one, between low_bytes and the problem's."""
    best = solve(problem, effort=QUICK, should_cancel=should_cancel)
    if best.plan is None:
        return None
    high = held_bytes(problem, best.plan)
    for _ in range(MOST_SQUEEZES):
        if high - low_bytes <= MEMORY_TOLERANCE * high or (should_cancel is not None and should_cancel()):
            break
        middle = 0.5 * (low_bytes + high)
        tried = solve(replace(problem, limit_bytes=middle), effort=QUICK, should_cancel=should_cancel)
        if tried.plan is None:
            low_bytes = middle
        else:
            best, high = tried, held_bytes(problem, tried.plan)
    return replace(best, bound_s=0.0)  # nothing is proven of its time


TEMPLATE_MARGIN: Final = 0.06
"""A quick plan is hardly ever faster by more than its template."""
ALIKE: Final = 0.002
"""Gains that differ by less, as a share, are the same: a tenth of a search's usual gap."""
WAYS_MARGIN: Final = 0.04
"""Ways to keep optimizer states that are slower by more than the fastest plan, as a share, are nobody's best."""


class _Looks:
    """Looks at candidates and plans them, each below a limit of its own.

    home : makes problems of candidates, whatever their limit. limited : the context of a candidate with its limit.
    """

    def __init__(self, home: CandidateSolver, request: SearchRequest, limited: Callable[[int], Context]) -> None:
        self._home, self._swept, self._limited = home, request.swept, limited
        self._plans: dict[int, CandidatePlans] = {}
        self._templates: dict[int, Quick] = {}
        self._quick: dict[int, Quick] = {}
        self.stopped: Callable[[], bool] = request.cancelled

    def _of(self, index: int) -> CandidatePlans:
        if index not in self._plans:
            like = self._home.plans(index)
            self._plans[index] = CandidatePlans(like.candidate, self._limited(index), lambda: self.stopped(), like=like)
        return self._plans[index]

    def templates(self, ways: Sequence[int]) -> list[tuple[int, Quick]]:
        """Templates of the candidates of an outer strategy that fit, the fastest first.

        Where one has to recompute nothing, ways that are slower without that are not looked at, unless they leave more
        room and that may be of use.
        """
        swept = self._swept
        found: list[tuple[int, Quick]] = []
        bare: list[tuple[int, float, bool]] = []  # without options: the step, and whether more room is of no use

        def is_useless(index: int) -> bool:
            return any(
                swept.step_time_s[index] >= swept.step_time_s[other]
                and (free or swept.least_bytes[index] >= swept.least_bytes[other] or swept.bound_s[index] >= step_s)
                for other, step_s, free in bare
            )

        for index in ways:
            if self.stopped():
                break
            if is_useless(index):
                continue
            problem, solution = self._template(index)
            if solution.plan is not None:
                found.append((index, (problem, solution)))
                if not solution.plan.applied.any():
                    bare.append((index, solution.step_s, is_free(problem, solution.plan)))
        return sorted(found, key=lambda one: (one[1][1].step_s, one[0]))

    def _template(self, index: int) -> Quick:
        if index not in self._templates:
            self._templates[index] = self._of(index).template()
        return self._templates[index]

    def in_full(self, ways: Sequence[int]) -> list[tuple[int, Quick]]:
        """Quick plans of candidates of an outer strategy.

        Of those with the same layers and options in their templates the one with most room alone is planned: where that
        moved layers, the others gain as much by the same move, or are planned too.
        """
        planned: dict[Hashable, tuple[float, InnerPlan]] = {}
        made: list[tuple[int, Quick]] = []
        for index in sorted(ways, key=lambda way: (float(self._swept.least_bytes[way]), way)):
            if self.stopped():
                break
            before = self._template(index)
            like = _content(before)
            if like in planned:
                gained, plan = planned[like]
                after = self._of(index).template(plan.layout) if gained < 1.0 - ALIKE else before
                if after[1].step_s <= gained * (1.0 + ALIKE) * before[1].step_s:
                    made.append((index, after))
                    continue
            if index not in self._quick:
                self._quick[index] = self._of(index).quick()
            problem, solution = self._quick[index]
            made.append((index, (problem, solution)))
            if like is not None and solution.plan is not None:
                planned.setdefault(like, (min(1.0, solution.step_s / before[1].step_s), solution.plan))
        return made

    def solved(self, index: int, plan: Quick) -> Solved:
        """A candidate with a plan of it."""
        plans = self._of(index)
        return Solved(index, plans.candidate, plans.context, *plan)

    def refined(self, solved: Solved, effort: Effort) -> Quick:
        """A plan solved in full from what it is."""
        return refining(solved, effort, counts=False)(self._of(solved.index))


def _content(quick: Quick) -> Hashable:
    """Layers and memory choices of a plan; None without one."""
    problem, plan = quick[0], quick[1].plan
    if plan is None:
        return None
    used = tuple(problem.options[number][:3] for number in np.flatnonzero(plan.applied.sum(axis=0)).tolist())
    return plan.layout.tobytes(), used


class RoomyPlans:
    """Solves candidates of a search below limits of their own.

    limit_bytes : what a candidate may take of a card, by its index; the same for all of an outer strategy. solver :
        knows problems of the candidates.
    """

    def __init__(
        self,
        request: SearchRequest,
        limit_bytes: Callable[[int], float],
        solver: CandidateSolver | None = None,
    ) -> None:
        contexts: dict[tuple[int, float], Context] = {}

        def limited(index: int) -> Context:
            context, limit = request.contexts(index), limit_bytes(index)
            if (id(context), limit) not in contexts:
                contexts[id(context), limit] = replace(context, limit_bytes=limit)
            return contexts[id(context), limit]

        self._request, self._limited = request, limited
        home = solver or CandidateSolver(request, together=True)
        self._looks = _Looks(home, request, limited)
        self.in_every_way: set[int] = set()
        """Outer strategies whose ways to keep optimizer states all have a plan, unless it is far behind."""
        self._of_outer = np.argsort(request.outer, kind="stable")
        self._sorted = request.outer[self._of_outer]

    def plans(self, indices: Sequence[int]) -> list[Solved]:
        """Plans of the outer strategies of those candidates that have any, in order; all that were made until the
        search was cancelled.

        Optimizer states are kept in all ways: of the best strategies each way has a plan that is not far behind the
        fastest, of others the fastest has. A template that is far behind is the plan.
        """
        outer = self._request.outer
        made: dict[int, Solved] = {}
        firsts = {int(outer[index]): index for index in reversed(indices)}
        order = {number: place for place, number in enumerate(dict.fromkeys(int(outer[index]) for index in indices))}
        ways = {number: self._ways(number) for number in order}
        found = {number: self._looks.templates(of_outer) for number, of_outer in ways.items()}
        times = {index: plan[1].step_s for ones in found.values() for index, plan in ones}
        fastest_s = min(times.values(), default=math.inf)
        for number, ones in found.items():
            close = [one for one in ones if times[one[0]] <= (1.0 + WAYS_MARGIN) * fastest_s]
            kept = close or ones[:1]
            self.in_every_way |= {number} if close else set()
            made |= {index: self._looks.solved(index, plan) for index, plan in kept}
            promising = [index for index, _ in kept if times[index] <= (1.0 + TEMPLATE_MARGIN) * fastest_s]
            if not ones:
                promising = [*dict.fromkeys((firsts[number], self._lightest(ways[number])))]
            for index, plan in self._looks.in_full(promising):
                if plan[1].plan is not None and plan[1].step_s <= times.get(index, math.inf):
                    made[index] = self._looks.solved(index, plan)
        in_order = sorted(made, key=lambda index: (order[int(outer[index])], made[index].solution.step_s, index))
        return [self._at_home(made[index]) for index in in_order]

    def _at_home(self, solved: Solved) -> Solved:
        return replace(solved, context=self._request.contexts(solved.index))

    def _ways(self, number: int) -> list[int]:
        """Candidates of an outer strategy, those that are faster with nothing recomputed first; of two that nothing
        tells apart but their dispatcher's name, the first.
        """
        candidates, swept = self._request.candidates, self._request.swept
        start, end = np.searchsorted(self._sorted, [number, number + 1])
        seen: dict[tuple[float, ...], int] = {}
        for index in self._of_outer[start:end].tolist():
            states = (float(getattr(candidates, name)[index]) for name in ("sequence_parallel", *OPTIMIZER_STATE_AXES))
            sizes = (swept.step_time_s[index], swept.after_recompute_s[index], swept.least_bytes[index])
            seen.setdefault((*states, *map(float, sizes)), index)
        return sorted(seen.values(), key=lambda index: (float(swept.step_time_s[index]), index))

    def _lightest(self, ways: Sequence[int]) -> int:
        least = self._request.swept.least_bytes
        return min(ways, key=lambda index: (float(least[index]), index))

    def refined(self, solved: Solved, effort: Effort) -> Solved:
        """A plan solved in full from what it is; itself where that finds nothing faster."""
        problem, better = self._looks.refined(solved, effort)
        return replace(solved, problem=problem, solution=better) if better.step_s < solved.solution.step_s else solved

    def card_bytes(self, solved: Solved) -> float:
        """`card_bytes` of a plan that was made here."""
        return card_bytes(replace(solved, context=self._limited(solved.index)))
