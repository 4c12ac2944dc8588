"""Plans by two processes: the candidate that is asked for, and meanwhile those that will probably be next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.solver.candidate_solver import CandidateSolver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.solver.candidate import Quick
    from autodeploy.solver.companion import Begun, Companion

WAITING = 2
"""Candidates that the companion has before it."""


class PlansAhead:
    """Makes each plan when it is asked for, or before: who makes it does not change it. how : the kind of plan."""

    def __init__(
        self,
        here: CandidateSolver,
        beside: Companion[CandidateSolver],
        how: Callable[[CandidateSolver, int], Quick] = CandidateSolver.quick_plan,
    ) -> None:
        self._here, self._beside, self._how = here, beside, how
        self._begun: dict[int, Begun[Quick]] = {}
        self._made: dict[int, Quick] = {}
        self._first = True

    def plan(self, index: int, soon: Sequence[int]) -> Quick:
        """The plan of a candidate; soon: candidates that will probably be asked for next, in order."""
        if self._first or not self._beside.beside:
            # The first plan loads compiled code, which a process made after it has too.
            self._first = False
            return self._how(self._here, index)
        while index not in self._made:
            self._collect()
            wanted = [each for each in (index, *soon) if each not in self._made and each not in self._begun]
            mine = wanted[:1]
            for other in wanted[1 : 1 + WAITING - len(self._begun)]:
                self._begun[other] = self._beside.begin(self._how, other)
            if mine:
                self._made[mine[0]] = self._how(self._here, mine[0])
            elif index in self._begun:
                # Nothing else is left to do meanwhile; when the search is cancelled the plan says so.
                self._made[index] = self._begun.pop(index).result() or self._how(self._here, index)
        return self._made.pop(index)

    def _collect(self) -> None:
        for index in [index for index, begun in self._begun.items() if begun.ready()]:
            made = self._begun.pop(index).result()
            if made is not None:
                self._made[index] = made
