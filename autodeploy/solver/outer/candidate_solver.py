"""What one process computes for a search over outer candidates: bounds and plans, each from what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.solver.bounds.outer_bound import outer_bounds_s
from autodeploy.solver.bounds.tuple_bounds import TupleBounds, Visit
from autodeploy.solver.outer.candidate import CandidatePlans, Solved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.solver.outer.candidate import Quick
    from autodeploy.solver.outer.companion import Begun, Companion
    from autodeploy.solver.outer.request import SearchRequest
    from cost_models.arrays import Floats, Ints


class CandidateSolver:
    """Bounds and plans of candidates."""

    def __init__(self, request: SearchRequest) -> None:
        self._candidates, self._contexts, self._costs = request.candidates, request.contexts, request.costs
        self._outer = request.outer
        self.stopped: Callable[[], bool] = request.cancelled
        self._last: tuple[int, CandidatePlans] | None = None
        self._tuples = TupleBounds(self._candidates, self._contexts, self._costs, lambda: self.stopped())

    def stage_bounds_s(self, rows: Ints, low_s: Floats, high_s: float) -> Floats:
        """`outer_bounds_s` of candidates at rows of one context, of which low_s is known [rows]."""
        return outer_bounds_s(
            self._candidates.take(rows),
            self._contexts(int(rows[0])),
            self._costs.take(rows),
            self._outer[rows],
            low_s,
            high_s,
            should_cancel=lambda: self.stopped(),
        )

    def visit(self, rows: Ints, ahead: list[Ints], enough_s: float) -> Visit:
        """`TupleBounds.visit`."""
        return self._tuples.visit(rows, ahead, enough_s)

    def solved(self, index: int, plan: Quick) -> Solved:
        """A candidate with a plan of it, whoever made it."""
        of = self.plans(index)
        return Solved(index, of.candidate, of.context, *plan, of.units)

    def plan(self, index: int, how: Callable[[CandidatePlans], Quick]) -> Quick:
        """One of a candidate's plans."""
        return how(self.plans(index))

    def plans(self, index: int) -> CandidatePlans:
        """What makes plans of a candidate: the last one's is kept."""
        if self._last is None or self._last[0] != index:
            row = slice(index, index + 1)
            candidate, context = self._candidates.take(row), self._contexts(index)
            self._last = index, CandidatePlans(candidate, context, lambda: self.stopped(), self._costs.at(index))
        return self._last[1]


WAITING = 2
"""Candidates that the companion has before it."""


class PlansAhead:
    """Makes each plan when it is asked for, or before: who makes it does not change it.

    Parameters
    ----------
    how : the kind of plan. loaded : whether this process has made such plans.
    """

    def __init__(
        self,
        here: CandidateSolver,
        beside: Companion[CandidateSolver],
        how: Callable[[CandidatePlans], Quick] = CandidatePlans.quick,
        *,
        loaded: bool = False,
    ) -> None:
        self._here, self._beside, self._how = here, beside, how
        self._begun: dict[int, Begun[Quick]] = {}
        self._made: dict[int, Quick] = {}
        self._first = not loaded

    def plan(self, index: int, soon: Sequence[int]) -> Quick:
        """The plan of a candidate; soon: candidates that will probably be asked for next, in order."""
        if self._first or not self._beside.beside:
            # The first plan loads compiled code, which a process made after it has too.
            self._first = False
            return self._here.plan(index, self._how)
        while index not in self._made:
            self._collect()
            wanted = [each for each in (index, *soon) if each not in self._made and each not in self._begun]
            mine = wanted[:1]
            for other in wanted[1 : 1 + WAITING - len(self._begun)]:
                self._begun[other] = self._beside.begin(CandidateSolver.plan, other, self._how)
            if mine:
                self._made[mine[0]] = self._here.plan(mine[0], self._how)
            elif index in self._begun:
                # Nothing else is left to do meanwhile; when the search is cancelled the plan says so.
                self._made[index] = self._begun.pop(index).result() or self._here.plan(index, self._how)
        return self._made.pop(index)

    def _collect(self) -> None:
        for index in [index for index, begun in self._begun.items() if begun.ready()]:
            made = self._begun.pop(index).result()
            if made is not None:
                self._made[index] = made
