"""Plans of candidates: which are looked at, which are made in full, and the best of each outer strategy."""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.search.branch_and_bound.candidate import CandidatePlans, PlansAhead
from autodeploy.search.placement.solve import is_free
from autodeploy.space.tree import OPTIMIZER_STATE_AXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.search.branch_and_bound.candidate_bounds import CandidateBounds
    from autodeploy.search.branch_and_bound.frontier import SearchRequest, SearchState
    from cost_models.arrays import Ints

CANDIDATES_PER_PLAN = 256
"""Candidates of the order for each that may have a quick plan: most share their outer tuple with a better one."""
MOST_WORK = 8
"""Of the work that the budget allows, where too few have a plan."""
LOOKAHEAD_CANDIDATES = 4
"""Candidates that are planned ahead of their turn, where two processes share the work."""
LOOKAHEAD_WINDOW = 32
"""Candidates among which these are looked for."""
TEMPLATE_WORK = 0.25
"""What a look at a candidate, its fastest template, takes of the work of a quick plan."""
TEMPLATE_MARGIN = 0.06
"""A quick plan is hardly ever faster by more than its template: one that is slower than the K best by more has none."""


class QuickPlans:
    """Looks at candidates, makes quick plans of the best, and enters them in a frontier: the best of each outer tuple.

    Work is counted in quick plans.
    """

    def __init__(
        self,
        frontier: SearchState,
        bounding: CandidateBounds,
        request: SearchRequest,
        report: Callable[[int], None],
        *,
        prune: bool,
    ) -> None:
        swept, budget = request.swept, request.budget
        self.frontier, self.bounding, self.swept, self.report = frontier, bounding, swept, report
        self.top_k, self.gap, self.budget, self.prune = request.top_k, request.gap, budget, prune
        self.work = 0.0
        self._order = swept.fastest(CANDIDATES_PER_PLAN * budget.quick)
        later = np.ones(len(bounding.candidates), dtype=np.bool_)
        later[self._order] = False
        self._later_s = float(swept.bound_s[later].min()) if later.any() else math.inf
        self._by_tuple = np.argsort(bounding.outer, kind="stable")
        self._starts = np.searchsorted(
            bounding.outer[self._by_tuple], np.arange(int(bounding.outer.max(initial=-1)) + 2)
        )
        self._solved: dict[int, list[Solved]] = {}  # by outer tuple
        self._passed: set[int] = set()  # candidates that were hopeless when their turn came
        self._full: set[int] = set()  # candidates whose quick plan is made
        self._every_way: set[int] = set()  # outer tuples that were looked at in all ways to keep their states
        self._free: dict[int, tuple[Solved, bool]] = {}
        self._slots = 0.0
        self._looks = PlansAhead(bounding.local, bounding.remote, CandidatePlans.template)
        self._plans = PlansAhead(bounding.local, bounding.remote)

    def left(self, kept: float = 0.0) -> bool:
        """Whether the budget allows more, with so much work kept for later."""
        return self.work < self.budget.quick - kept and self._slots < self.budget.slots

    def by_estimate(self, until: float, *, again: bool = False) -> None:
        """Looks in the order of estimates, until so much work is done; further where there are too few plans.

        With less than K plans it goes on, as long as anything may be feasible. again: also outer tuples that have been
        looked at already, in all ways to keep their optimizer states.
        """
        bounds = self.bounding.bounds_s[self._order]
        solved = [one.index for each in self._solved.values() for one in each]
        bounds[np.isin(self._order, [*solved, *self._passed])] = math.inf
        rest = np.minimum.accumulate(np.append(bounds, self._later_s)[::-1])[::-1]
        for position, index, number in self._until(until, self._order):
            if self.prune and rest[position] >= (1.0 - self.gap) * self._kth_s():
                return
            if again:
                self._try(number, index, (), again=True)
            elif not self._settled(number):
                self._look_at(number, self._next(self._order, position))

    def _settled(self, number: int) -> bool:
        """Whether an outer tuple needs no look: it had one, or bounds rule out all its candidates, now pruned."""
        if self.prune and number not in self._solved:
            rows = self._candidates(number)
            if self.bounding.bounds_s[rows].min() >= self._kth_s():
                self._solved[number], self.frontier.pruned = [], self.frontier.pruned + len(rows)
        return number in self._solved

    def by_bound(self, until: float) -> None:
        """Looks in the order of the bounds of outer tuples, until so much work is done or no bound is of interest."""
        order = np.argsort(self.bounding.bounds_s, kind="stable")
        for position, index, number in self._until(until, order):
            if self.bounding.bounds_s[index] >= (1.0 - self.gap) * self._best_s():
                return
            if number not in self._solved:
                self._look_at(number, self._next(order, position))

    def _until(self, until: float, order: Ints) -> Iterator[tuple[int, int, int]]:
        """Places in an order of candidates, with the candidate and its outer tuple, until so much work is done."""
        for position, index in enumerate(map(int, order)):
            self.frontier.cancelled |= self.bounding.cancelled()
            if self.frontier.cancelled or self._spent(until):
                return
            yield position, index, int(self.bounding.outer[index])

    def _spent(self, until: float) -> bool:
        wanted = 1 if until < self.budget.quick else self.top_k
        if len(self.frontier.best) < wanted:
            return self.work >= MOST_WORK * self.budget.quick
        return self.work >= until or not self.left()

    def of_tuple(self, number: int, soon: Sequence[int] = ()) -> None:
        """A look at an outer tuple: at the candidate that looks fastest, or at lighter ones where that does not fit.

        soon : outer tuples that will probably be next.
        """
        ahead = [self._candidates(each)[0] for each in soon if each not in self._solved]
        self._look_at(number, ahead, insist=True)

    def _look_at(self, number: int, ahead: Sequence[int], *, insist: bool = False) -> None:
        """insist: on a plan where no template fits, also once there are K plans."""
        for index in self._candidates(number):
            if self.bounding.cancelled() or (self._solved.get(number) and not self.left()):
                return
            self._try(number, index, ahead, again=False)
            if index in self._passed:
                return
        if not self._fits(number) and (insist or len(self.frontier.best) < self.top_k):
            # No template fits: other layouts may.
            lightest = math.inf
            for one in list(self._solved[number]):
                if self.bounding.cancelled() or self._fits(number) or not self._promising(one):
                    return
                if self.swept.least_bytes[one.index] < lightest:
                    lightest = float(self.swept.least_bytes[one.index])
                    self._in_full(one, ())

    def _fits(self, number: int) -> bool:
        return any(one.solution.plan is not None for one in self._solved[number])

    def _promising(self, one: Solved) -> bool:
        """Whether a candidate without a plan that fits is worth more work."""
        if len(self.frontier.best) < self.top_k:
            return True
        return self.left() and bool(self.bounding.bounds_s[one.index] < self._best_s())

    def other_ways(self, numbers: Sequence[int]) -> None:
        """Looks at outer tuples with other ways to keep their optimizer states."""
        ways = [(number, index) for number in numbers for index in self._candidates(number)]
        for place, (number, index) in enumerate(ways):
            if not self.bounding.cancelled():
                rest = [other for of, other in ways[place + 1 :] if not self._useless(self._solved[of], other)]
                self._try(number, index, rest[:LOOKAHEAD_CANDIDATES], again=True)

    def in_full(self, until: float) -> None:
        """Quick plans of the best candidates that were only looked at, until so much work is done.

        Their outer tuples are looked at in all ways to keep their optimizer states first, with half of that work. The K
        best are planned in any case.
        """
        half = (self.work + until) / 2
        while not self.bounding.cancelled() and self.work < half and self.left():
            number = next((each for each in self._close() if each not in self._every_way), None)
            if number is None:
                break
            self._every_way.add(number)
            self.other_ways([number])
        while not self.bounding.cancelled():
            best = {one.index for one in self.frontier.best[: self.top_k]}
            more = self.work < until and self.left()
            rough = [one for one in self._rough() if more or one.index in best]
            if not rough:
                return
            self._in_full(rough[0], [one.index for one in rough[1 : 1 + LOOKAHEAD_CANDIDATES]])

    def _close(self) -> Iterator[int]:
        """Outer tuples that are not much slower than the K best, the best first."""
        limit = self.close_s()
        for one in self.frontier.best:
            if one.solution.step_s >= limit:
                return
            yield int(self.bounding.outer[one.index])

    def _rough(self) -> Iterator[Solved]:
        """The best candidates that were only looked at and may be among the K best, the best first."""
        close = set(self._close())
        for one in self.frontier.best:
            ruled_out = self.prune and self.bounding.bounds_s[one.index] >= self._kth_s()
            if int(self.bounding.outer[one.index]) in close and one.index not in self._full and not ruled_out:
                yield one

    def _in_full(self, look: Solved, soon: Sequence[int]) -> None:
        """The quick plan of a candidate, where it is no slower than what is known of it."""
        self._full.add(look.index)
        problem, solution = self._plans.plan(look.index, soon)
        self._count(look, 1.0)
        self.bounding.raise_to(look.index, solution.bound_s)
        if solution.step_s <= look.solution.step_s:
            planned = replace(look, problem=problem, solution=solution)
            number = int(self.bounding.outer[look.index])
            self._solved[number] = [planned if one.index == look.index else one for one in self._solved[number]]
            self.frontier.best = [one for one in self.frontier.best if one.index != look.index]
            self._keep(planned)
        self.report(look.index)

    def _count(self, solved: Solved, work: float) -> None:
        self._work(float(solved.problem.pp * solved.problem.vpp * solved.problem.micro_batches), work)

    def _work(self, slots: float, work: float) -> None:
        self.work += work
        self._slots += work * slots

    def _candidates(self, number: int) -> list[int]:
        """Of an outer tuple, in the order of their estimate."""
        rows = self._by_tuple[self._starts[number] : self._starts[number + 1]]
        in_order: list[int] = rows[np.argsort(self.swept.after_recompute_s[rows], kind="stable")].tolist()
        return in_order

    def _try(self, number: int, index: int, soon: Sequence[int], *, again: bool) -> None:
        """Solve a candidate unless another one of its tuple, or a bound, makes that useless; soon: the next ones."""
        others = self._solved.setdefault(number, [])
        if self._known(others, index):
            return
        if (self.prune and self._ruled_out(others, index)) or (not again and self._unlikely(others, index)):
            self.frontier.pruned += 1
            return
        if self.prune and self.bounding.hopeless[index]:
            self._pass(index)
            return
        solved = self.bounding.local.looked(index, self._looks.plan(index, soon))
        self._count(solved, TEMPLATE_WORK)
        self.frontier.solved += 1
        others.append(solved)
        self._keep(solved)
        self.report(index)

    def _pass(self, index: int) -> None:
        """Do without a look that would change nothing: it counts, as what comes after it was not to be looked at."""
        c = self.bounding.candidates
        self._passed.add(index)
        self._work(float(c.pp[index] * c.vpp[index] * c.micro_batches[index]), TEMPLATE_WORK)
        self.frontier.pruned += 1

    def _next(self, order: Ints, position: int) -> list[int]:
        """Candidates that will probably be looked at after a place in an order, where a second process plans too."""
        soon: dict[int, int] = {}
        if not self.bounding.remote.parallel:
            return []
        for index in map(int, order[position + 1 : position + 1 + LOOKAHEAD_WINDOW]):
            number = int(self.bounding.outer[index])
            if number not in self._solved and number not in soon:
                first = self._candidates(number)[0]
                if not self._useless([], first):
                    soon[number] = first
            if len(soon) == LOOKAHEAD_CANDIDATES:
                break
        return list(soon.values())

    def _useless(self, others: list[Solved], index: int) -> bool:
        """Whether a candidate of a tuple will not be solved, as things stand."""
        hopeless = bool(self.bounding.hopeless[index])
        return self._known(others, index) or (self.prune and (hopeless or self._ruled_out(others, index)))

    def _known(self, others: list[Solved], index: int) -> bool:
        """Whether a candidate of a tuple, or one that nothing tells from it but its dispatcher's name, is solved."""
        return any(one.index == index or self._alike(one.index, index) for one in others)

    def _alike(self, first: int, second: int) -> bool:
        """Whether two candidates of an outer tuple keep their states alike and are equal to the bit in the sweep."""
        c, swept = self.bounding.candidates, self.swept
        axes = ("sequence_parallel", *OPTIMIZER_STATE_AXES)
        columns = [*(getattr(c, name) for name in axes), swept.after_recompute_s, swept.bound_s]
        return all(column[first] == column[second] for column in (*columns, swept.least_bytes))

    def _ruled_out(self, others: list[Solved], index: int) -> bool:
        """Whether a candidate can't be among the K best."""
        best = min((one.solution.step_s for one in others), default=math.inf)
        if self.bounding.bounds_s[index] >= min(best, self._kth_s()):
            return True
        # Where nothing had to be recomputed, a way to keep optimizer states that takes no less without is no faster,
        # unless it leaves more room and layers could be placed better in it.
        bare_s, room = self.swept.step_time_s, self.swept.least_bytes
        return any(
            one.solution.plan is not None
            and not one.plan.applied.any()
            and bare_s[one.index] <= bare_s[index]
            and (room[index] >= room[one.index] or self._is_free(one))
            for one in others
        )

    def _is_free(self, solved: Solved) -> bool:
        """Whether no more room makes a candidate's plan faster."""
        if id(solved) not in self._free:
            self._free[id(solved)] = solved, is_free(solved.problem, solved.plan)
        return self._free[id(solved)][1]

    def _unlikely(self, others: list[Solved], index: int) -> bool:
        """Whether a candidate is not worth a plan before other outer tuples have one."""
        if not others:
            return False
        if any(one.solution.plan is not None for one in others):
            return True
        # None of them fits: one whose states take no less won't either.
        return bool(self.swept.least_bytes[index] >= min(self.swept.least_bytes[one.index] for one in others))

    def _best_s(self) -> float:
        return self.frontier.best[0].solution.step_s if self.frontier.best else math.inf

    def close_s(self) -> float:
        """Step time from which on a template has no quick plan; inf where there are fewer than K plans."""
        return self._kth_s() * (1.0 + TEMPLATE_MARGIN)

    def _kth_s(self) -> float:
        best = self.frontier.best
        return best[self.top_k - 1].solution.step_s if len(best) >= self.top_k else math.inf

    def enter(self, solved: Solved) -> None:
        """Take over a candidate that was solved elsewhere."""
        self._solved.setdefault(int(self.bounding.outer[solved.index]), []).append(solved)
        self._full.add(solved.index)
        self.frontier.solved += 1
        self.bounding.raise_to(solved.index, solved.solution.bound_s)
        self._keep(solved)

    def _keep(self, solved: Solved) -> None:
        """Keep a solved candidate if it is the best of its outer tuple."""
        if solved.solution.plan is None:
            return
        outer, best = self.bounding.outer, self.frontier.best
        known = next((one for one in best if outer[one.index] == outer[solved.index]), None)
        if known is not None and _rank(known) <= _rank(solved):
            return
        self.frontier.best = [one for one in best if one is not known]
        insort(self.frontier.best, solved, key=_rank)


def _rank(solved: Solved) -> tuple[float, int]:
    return solved.solution.step_s, solved.index
