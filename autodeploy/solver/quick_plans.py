"""Quick plans of candidates: which are made, in which order, and the best of each outer strategy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.candidate import Solved
from autodeploy.solver.plans_ahead import PlansAhead
from autodeploy.strategies.tree import MODE_AXES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.evaluation.sweep import Sweep
    from autodeploy.solver.frontier import Budget, Frontier
    from autodeploy.solver.open_bounds import OpenBounds

AHEAD = 256
"""Candidates looked at in order for each that may be solved: most share their outer tuple with a better one."""
MOST_TRIED = 8
"""Candidates solved for each that the budget allows, where too few have a plan."""
SOON = 4
"""Candidates that are solved ahead of their turn, where two processes share the work."""


class QuickPlans:
    """Solves candidates quickly and enters them in a frontier: the best of each outer strategy."""

    def __init__(
        self,
        frontier: Frontier,
        open_: OpenBounds,
        swept: Sweep,
        top_k: int,
        gap: float,
        budget: Budget,
        report: Callable[[int], None],
        *,
        prune: bool,
    ) -> None:
        self.frontier, self.open, self.swept, self.report = frontier, open_, swept, report
        self.top_k, self.gap, self.budget, self.prune = top_k, gap, budget, prune
        self._order = swept.fastest(AHEAD * budget.quick)
        later = np.ones(len(open_.candidates), dtype=np.bool_)
        later[self._order] = False
        self._later_s = float(swept.bound_s[later].min()) if later.any() else math.inf
        self._by_tuple = np.argsort(open_.outer, kind="stable")
        self._starts = np.searchsorted(open_.outer[self._by_tuple], np.arange(int(open_.outer.max(initial=-1)) + 2))
        self._solved: dict[int, list[Solved]] = {}  # by outer tuple
        self._slots, self._looked = 0.0, 0
        self._ahead = PlansAhead(open_.here, open_.beside)

    def left(self, kept: int = 0) -> bool:
        """Whether the budget allows another plan, with so many kept for later."""
        made = max(self.frontier.solved, self._looked)
        return made < self.budget.quick - kept and self._slots < self.budget.slots

    def open_with(self, count: int) -> None:
        """The first plans, in the order of their estimate. Outer tuples that bounds rule out by then cost nothing."""
        self.by_estimate(count)
        self._looked = min(self._looked, self.frontier.solved)

    def by_estimate(self, count: int, *, again: bool = False) -> None:
        """Plans in the order of their estimate, until `count` candidates are solved; more where there are none yet.

        With less than K plans it goes on, as long as anything may be feasible. again: also outer tuples that have been
        looked at already, in all ways to keep their optimizer states.
        """
        bounds = self.open.bounds_s[self._order]
        solved = [one.index for each in self._solved.values() for one in each]
        bounds[np.isin(self._order, solved)] = math.inf
        rest = np.minimum.accumulate(np.append(bounds, self._later_s)[::-1])[::-1]
        for position, index in enumerate(map(int, self._order)):
            self.frontier.cancelled |= self.open.cancelled()
            kth = self._kth_s()
            closed = self.prune and rest[position] >= (1.0 - self.gap) * kth
            if self.frontier.cancelled or closed or self._spent(count):
                return
            number = int(self.open.outer[index])
            if again:
                self._try(number, index, (), again=True)
            elif number not in self._solved:
                self._look_at(number, self._next(position, count))

    def _spent(self, count: int) -> bool:
        wanted = 1 if count < self.budget.quick else self.top_k
        if len(self.frontier.best) < wanted:
            return self.frontier.solved >= MOST_TRIED * self.budget.quick
        return self.frontier.solved >= count or not self.left()

    def of_tuple(self, number: int, soon: Sequence[int] = ()) -> None:
        """A plan of an outer tuple: of the candidate that looks fastest, or of lighter ones where that does not fit.

        soon : outer tuples that will probably be next.
        """
        self._look_at(number, [self._candidates(each)[0] for each in soon if each not in self._solved])

    def _look_at(self, number: int, soon: Sequence[int]) -> None:
        self._looked += 1
        for index in self._candidates(number):
            if self.open.cancelled() or (self._solved.get(number) and not self.left()):
                return
            self._try(number, index, soon, again=False)

    def other_ways(self, count: int) -> None:
        """Plans of the best `count` outer tuples with other ways to keep their optimizer states."""
        numbers = [int(self.open.outer[one.index]) for one in self.frontier.best[:count]]
        ways = [(number, index) for number in numbers for index in self._candidates(number)]
        for place, (number, index) in enumerate(ways):
            if not self.open.cancelled():
                rest = [other for of, other in ways[place + 1 :] if not self._useless(self._solved[of], other)]
                self._try(number, index, rest[:SOON], again=True)

    def _candidates(self, number: int) -> list[int]:
        """Of an outer tuple, in the order of their estimate."""
        rows = self._by_tuple[self._starts[number] : self._starts[number + 1]]
        found: list[int] = rows[np.argsort(self.swept.repaired_s[rows], kind="stable")].tolist()
        return found

    def _try(self, number: int, index: int, soon: Sequence[int], *, again: bool) -> None:
        """Solve a candidate unless another one of its tuple, or a bound, makes that useless; soon: the next ones."""
        others = self._solved.setdefault(number, [])
        if self._known(others, index):
            return
        if (self.prune and self._ruled_out(others, index)) or (not again and self._unlikely(others, index)):
            self.frontier.pruned += 1
            return
        candidate, units = self.open.here.candidate(index)
        solved = Solved(index, candidate, self.open.contexts(index), *self._ahead.plan(index, soon), units)
        self._slots += float(solved.problem.pp * solved.problem.vpp * solved.problem.micro_batches)
        others.append(solved)
        self._keep(solved)
        self.report(index)

    def _next(self, position: int, count: int) -> list[int]:
        """Candidates after a place in the order that will probably be solved next, as far as the budget allows it."""
        here = int(self.open.outer[self._order[position]])
        found: dict[int, int] = {}
        most = min(SOON, count - self.frontier.solved - 1)
        for index in map(int, self._order[position + 1 :]):
            if len(found) >= most:
                break
            number = int(self.open.outer[index])
            if number != here and number not in self._solved and not self._useless([], index):
                found.setdefault(number, index)
        return list(found.values())

    def _useless(self, others: list[Solved], index: int) -> bool:
        """Whether a candidate of a tuple will not be solved, as things stand."""
        return self._known(others, index) or (self.prune and self._ruled_out(others, index))

    def _known(self, others: list[Solved], index: int) -> bool:
        """Whether a candidate of a tuple, or one that nothing tells from it but its dispatcher's name, is solved."""
        return any(one.index == index or self._alike(one.index, index) for one in others)

    def _alike(self, first: int, second: int) -> bool:
        """Whether two candidates of an outer tuple keep their states alike and are equal to the bit in the sweep."""
        c, swept = self.open.candidates, self.swept
        columns = [*(getattr(c, name) for name in ("sequence_parallel", *MODE_AXES)), swept.repaired_s, swept.bound_s]
        return all(column[first] == column[second] for column in (*columns, swept.least_bytes))

    def _ruled_out(self, others: list[Solved], index: int) -> bool:
        """Whether a candidate can't be among the K best."""
        best = min((one.solution.step_s for one in others), default=math.inf)
        # Where nothing had to be recomputed another way to keep optimizer states can't be faster.
        settled = any(one.solution.applied is not None and not one.solution.applied.any() for one in others)
        return settled or self.open.bounds_s[index] >= min(best, self._kth_s())

    def _unlikely(self, others: list[Solved], index: int) -> bool:
        """Whether a candidate is not worth a plan before other outer tuples have one."""
        if not others:
            return False
        if any(one.solution.layout is not None for one in others):
            return True
        # None of them fits: one whose states take no less won't either.
        return bool(self.swept.least_bytes[index] >= min(self.swept.least_bytes[one.index] for one in others))

    def _kth_s(self) -> float:
        best = self.frontier.best
        return best[self.top_k - 1].solution.step_s if len(best) >= self.top_k else math.inf

    def enter(self, solved: Solved) -> None:
        """Take over a candidate that was solved elsewhere."""
        self._solved.setdefault(int(self.open.outer[solved.index]), []).append(solved)
        self._keep(solved)

    def _keep(self, solved: Solved) -> None:
        """Keep a solved candidate if it is the best of its outer tuple."""
        self.frontier.solved += 1
        self.open.raise_to(solved.index, solved.solution.bound_s)
        if solved.solution.layout is None:
            return
        kept: dict[int, Solved] = {}
        for each in sorted([*self.frontier.best, solved], key=lambda s: (s.solution.step_s, s.index)):
            kept.setdefault(int(self.open.outer[each.index]), each)
        self.frontier.best = list(kept.values())
