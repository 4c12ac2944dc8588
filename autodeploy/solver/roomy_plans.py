"""Plans that leave room: candidates solved quickly, each below a limit of its own under the card's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autodeploy.solver.candidate_solver import CandidateSolver
from autodeploy.solver.companion import Companion
from autodeploy.solver.least_memory import card_bytes
from autodeploy.solver.plans_ahead import PlansAhead
from autodeploy.solver.quick_plans import SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.cut_costs import CutCosts
    from autodeploy.evaluation.inner_problem import Ints
    from autodeploy.solver.candidate import Solved
    from autodeploy.solver.effort import Effort
    from autodeploy.strategies.candidates import Candidates


class RoomyPlans:
    """Solves candidates of a search below limits of their own.

    Parameters
    ----------
    limit_bytes : what a candidate may take of a card, by its index.
    """

    def __init__(
        self,
        candidates: Candidates,
        contexts: Callable[[int], Context],
        costs: CutCosts,
        outer: Ints,
        limit_bytes: Callable[[int], float],
        *,
        beside: bool,
        should_cancel: Callable[[], bool] | None,
    ) -> None:
        def limited(index: int) -> Context:
            return replace(contexts(index), limit_bytes=limit_bytes(index))

        self._contexts, self._limited, self._beside, self._should_cancel = contexts, limited, beside, should_cancel
        self._here, self._there = (CandidateSolver(candidates, limited, costs, outer, should_cancel) for _ in range(2))

    def plans(self, indices: Sequence[int]) -> list[Solved]:
        """The plans of those candidates that have one; all that were made until the search was cancelled."""
        found = []
        with Companion(self._there, beside=self._beside, should_cancel=self._should_cancel) as companion:
            ahead = PlansAhead(self._here, companion)
            for place, index in enumerate(indices):
                if self._should_cancel is not None and self._should_cancel():
                    break
                plan = ahead.plan(index, indices[place + 1 : place + 1 + SOON])
                if plan[1].layout is not None:
                    found.append(replace(self._here.solved(index, plan), context=self._contexts(index)))
        return found

    def refined(self, solved: Solved, effort: Effort) -> Solved:
        """A plan solved in earnest from what it is; itself where that finds nothing faster."""
        assert solved.solution.layout is not None
        assert solved.solution.applied is not None
        hint = (solved.solution.layout, solved.solution.applied)
        if solved.problem.vpp > 1:
            effort = replace(effort, rounds=0)  # masters of layer counts propose nothing better than the local search
        problem, better = self._here.refined(solved.index, solved.problem, effort, hint)
        if better.layout is None or better.step_s >= solved.solution.step_s:
            return solved
        return replace(solved, problem=problem, solution=better)

    def card_bytes(self, solved: Solved) -> float:
        """`card_bytes` of a plan that was made here."""
        return card_bytes(replace(solved, context=self._limited(solved.index)))
