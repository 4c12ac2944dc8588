"""What is proven of one outer tuple of candidates: by paths of its schedule, with layers in fractions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.stages.build_problem import build_problem, with_choices
from autodeploy.evaluation.stages.step_classes import step_classes
from autodeploy.solver.bounds.path_bound import PathBound, path_bound_s
from autodeploy.solver.bounds.paths import PathLibrary
from autodeploy.solver.bounds.problem_bound import relax_bound
from autodeploy.solver.inner.memory_options import WHOLE, memory_choices
from autodeploy.solver.inner.uniform import set_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.cut_costs import CutCosts
    from autodeploy.evaluation.stages.inner_problem import InnerProblem, Ints, LayerClass
    from autodeploy.evaluation.stages.step_classes import StepClasses
    from autodeploy.strategies.candidates import Candidates


ROUNDS = (4, 8, 16, 32, 64)
"""Linear programmes of one inner problem, at each visit."""
PER_SECOND = 800
"""Linear programmes that are about as much work as one unit of CP-SAT's deterministic time."""
SETUP = 3
"""Linear programmes that are about as much work as making the first one of a problem."""
COLUMNS = 170.0
"""Columns of a linear programme that takes twice as long as a small one; larger ones take far longer."""
MOST_OPTIONS = 16
"""Of a problem whose options are on for all layers or none: more make too many sets to look at each."""


@dataclass(frozen=True, slots=True)
class Visit:
    """bound_s: no candidate of the tuple is faster; work: in linear programmes of small problems.

    finished: no bound raises it any more.
    """

    bound_s: float
    work: int
    finished: bool = False


@dataclass(eq=False)
class _Open:
    """An outer tuple's relaxed problems, what is proven of each, and how often it was bounded.

    first : no harder than any of them; others_s : bound of what none of them holds.
    """

    first: InnerProblem
    problems: tuple[InnerProblem, ...]
    proven: list[PathBound]
    others_s: float = math.inf
    visits: int = 0

    @property
    def least_s(self) -> float:
        """No candidate of the tuple is faster."""
        return min([self.others_s, *(each.bound_s for each in self.proven)])


class TupleBounds:
    """Lower bounds of outer tuples, one at a time, each visit a stronger one."""

    def __init__(
        self,
        candidates: Candidates,
        contexts: Callable[[int], Context],
        costs: CutCosts,
        should_cancel: Callable[[], bool],
    ) -> None:
        self._candidates, self._contexts, self._costs, self._should_cancel = candidates, contexts, costs, should_cancel
        self._library = PathLibrary()
        self._known: dict[int, _Open] = {}  # by a tuple's first candidate

    def visit(self, rows: Ints, ahead: list[Ints], enough_s: float) -> Visit:
        """Bound the tuple of the candidates at rows once more, up to enough_s.

        ahead : tuples that will probably be visited next: their problems are made together.
        """
        first = int(rows[0])
        if first not in self._known:
            groups = [rows, *(group for group in ahead if int(group[0]) not in self._known)]
            for group, problems in zip(groups, self._relaxed(groups), strict=True):
                self._known[int(group[0])] = _opened(problems, enough_s)
                if self._should_cancel():
                    break
        return self._bounded(self._known[first], enough_s)

    def _bounded(self, tuple_: _Open, enough_s: float) -> Visit:
        tuple_.visits += 1
        if tuple_.least_s >= enough_s:
            return Visit(tuple_.least_s, 0)
        rounds = ROUNDS[min(tuple_.visits, len(ROUNDS)) - 1]
        if tuple_.visits == 1 and len(tuple_.problems) > 1:
            # One problem that is no harder than any serves to tell whether the tuple deserves more.
            found, spent = self._by_paths_s(tuple_.first, PathBound(0.0, over=False), enough_s, rounds)
            return Visit(max(tuple_.least_s, found.bound_s), spent)
        done = 0
        for place, problem in enumerate(tuple_.problems):
            before = tuple_.proven[place]
            if self._should_cancel() or before.bound_s >= enough_s * (1.0 - 1e-6):
                continue
            found, spent = self._by_paths_s(problem, before, enough_s, rounds)
            done += spent
            tuple_.proven[place] = replace(found, bound_s=max(before.bound_s, found.bound_s))
        finished = tuple_.visits >= len(ROUNDS) or all(each.over for each in tuple_.proven)
        return Visit(tuple_.least_s, done, finished)

    def _by_paths_s(
        self, problem: InnerProblem, before: PathBound, enough_s: float, rounds: int
    ) -> tuple[PathBound, int]:
        """One more path bound, and the work done."""
        if before.over:
            return before, 0
        found = self._bound_s(problem, enough_s, rounds)
        columns = problem.pp * problem.vpp * (len(problem.classes) + (3 if problem.pairs else 1))
        return found, math.ceil(SETUP + found.rounds * (1.0 + (columns / COLUMNS) ** 5))

    def _bound_s(self, problem: InnerProblem, enough_s: float, rounds: int) -> PathBound:
        """Bound of one problem, of no interest above enough_s; inf when it can't fit."""
        bound = relax_bound(problem)
        if bound >= enough_s:
            return PathBound(bound, over=True)
        found = path_bound_s(
            problem, self._library, rounds=rounds, enough_s=enough_s, should_cancel=self._should_cancel
        )
        return replace(found, bound_s=max(bound, found.bound_s))

    def _relaxed(self, groups: list[Ints]) -> Iterator[tuple[InnerProblem, ...]]:
        """For each group problems no harder than any of its candidates', which differ in what their states take.

        One without recomputing whole layers and, where that is allowed, one with it.
        """
        costs: dict[int, tuple[StepClasses, Candidates, dict[int, int]]] = {}
        for rows in groups:
            context = self._contexts(int(rows[0]))
            if id(context) not in costs:
                mine = np.concatenate([other for other in groups if self._contexts(int(other[0])) is context])
                some = self._candidates.take(mine)
                classes = step_classes(self._costs.of(mine), some, context)
                costs[id(context)] = classes, some, {int(row): place for place, row in enumerate(mine)}
            classes, some, place_of = costs[id(context)]
            places = [place_of[int(row)] for row in rows]
            allowed = [memory_choices(some.take(slice(place, place + 1)), context) for place in places]
            yield _easiest_of(classes, some, context, places, allowed)


def _easiest_of(
    classes: StepClasses, candidates: Candidates, context: Context, places: list[int], allowed: list[frozenset[str]]
) -> tuple[InnerProblem, ...]:
    """Of candidates of one outer tuple that may use some memory choices: without whole layers, and with."""
    plain = [build_problem(classes, candidates, context, place, choices=frozenset()) for place in places]
    lean = list(range(len(places)))
    heavy = [member for member, choices in enumerate(allowed) if WHOLE in choices]
    found = []
    for members, whole in ((lean, frozenset()), (heavy, frozenset({WHOLE}))):
        if members:
            # The easiest has the options of the first; the others' say what workspace they leave.
            used = [allowed[members[0]] - ({WHOLE} - whole), *(whole for _ in members[1:])]
            problems = [
                with_choices(plain[member], classes, candidates, context, places[member], choices)
                for member, choices in zip(members, used, strict=True)
            ]
            found.append(easiest(problems))
    return tuple(found)


def _opened(problems: tuple[InnerProblem, ...], enough_s: float) -> _Open:
    """A tuple that nothing is proven of; where options are on for all layers or none, one problem for each set."""
    free = tuple(replace(problem, uniform_options=False) for problem in problems)
    # They differ in their options and in what stages hold besides.
    first = easiest(sorted(free, key=lambda problem: -len(problem.options)))
    if not problems[0].uniform_options or max(len(problem.options) for problem in problems) > MOST_OPTIONS:
        return _Open(first, free, [PathBound(0.0, over=False)] * len(problems))
    found, others_s = set_problems(problems, enough_s)
    proven = [PathBound(bound_s, over=False) for bound_s, _ in found]
    return _Open(first, tuple(problem for _, problem in found), proven, others_s)


def easiest(problems: Sequence[InnerProblem]) -> InnerProblem:
    """The first problem with the least seconds and bytes of all, and the largest limit."""

    def least(costs: list[LayerClass]) -> LayerClass:
        return replace(
            costs[0],
            forward_s=min(c.forward_s for c in costs),
            backward_s=min(c.backward_s for c in costs),
            static_bytes=min(c.static_bytes for c in costs),
            activation_bytes=min(c.activation_bytes for c in costs),
            tail_s=min(c.tail_s for c in costs),
        )

    one = problems[0]
    return replace(
        one,
        classes=tuple(least(list(costs)) for costs in zip(*(p.classes for p in problems), strict=True)),
        pieces=tuple(
            replace(pieces[0], cost=least([p.cost for p in pieces]))
            for pieces in zip(*(p.pieces for p in problems), strict=True)
        ),
        limit_bytes=max(p.limit_bytes for p in problems),
        fixed_bytes=np.min([p.fixed_bytes for p in problems], axis=0),
        tail_s=min(p.tail_s for p in problems),
    )
