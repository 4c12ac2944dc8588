"""One outer candidate with its inner problem: plans of it, made quickly or in full, and several of one candidate."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.build_problem import build_problem, under_limit, with_choices
from autodeploy.costs.stages.inner_problem import chunk_times
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.search.bounds.outer_bound import outer_bounds_s
from autodeploy.search.bounds.problem_bound import relax_bound
from autodeploy.search.branch_and_bound.path_bound import PER_SECOND, TupleBounds, Visit
from autodeploy.search.choices.effort import QUICK
from autodeploy.search.choices.layouts import neighbours, templates, to_layout, to_sizes
from autodeploy.search.choices.memory_options import memory_choices, menus
from autodeploy.search.placement.evaluate import MOST_SIMULATED, Evaluator
from autodeploy.search.placement.solve import best_template, solve
from autodeploy.search.placement.stage_choices import StageChoices, fits
from autodeploy.search.placement.uniform import undominated_sets
from autodeploy.space.candidates import concatenate
from autodeploy.stack.memory_choices import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.search.branch_and_bound.frontier import SearchRequest
    from autodeploy.search.branch_and_bound.worker_process import Future, WorkerProcess
    from autodeploy.search.choices.effort import Effort
    from autodeploy.search.placement.evaluate import InnerPlan, InnerSolution
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Floats, Ints

    Quick = tuple[InnerProblem, InnerSolution]


@dataclass(frozen=True)
class Solved:
    """One candidate with its solved inner problem."""

    index: int
    candidate: Candidates
    context: Context
    problem: InnerProblem
    solution: InnerSolution

    @property
    def plan(self) -> InnerPlan:
        """Its plan, which it must have."""
        assert self.solution.plan is not None
        return self.solution.plan

    @property
    def placed(self) -> tuple[Hashable, ...]:
        """The candidate with its layout and memory choices: alike of two plans that are one."""
        axes = (getattr(self.candidate, each.name).tobytes() for each in fields(self.candidate))
        return (id(self.context), *axes, self.plan.layout.tobytes(), self.plan.applied.tobytes())


def by_context(solved: Sequence[Solved]) -> Iterator[tuple[Context, list[int]]]:
    """Every context of solved candidates with the places of its own."""
    for context in {id(each.context): each.context for each in solved}.values():
        yield context, [place for place, each in enumerate(solved) if each.context is context]


def priced_together(solved: Sequence[Solved]) -> list[Priced]:
    """Solved candidates with the costs of their layers, in one batch a context."""
    priced: dict[int, Priced] = {}
    for context, rows in by_context(solved):
        candidates = concatenate([solved[row].candidate for row in rows])
        batch = Priced(step_classes(unit_costs(context, candidates), candidates, context), candidates, context)
        priced |= {row: replace(batch, index=index) for index, row in enumerate(rows)}
    return [priced[row] for row in range(len(solved))]


def refining(solved: Solved, effort: Effort, *, counts: bool) -> Callable[[CandidatePlans], Quick]:
    """Solver of a candidate's problem in full from its plan. counts: with masters of layer counts too."""
    effort = _with_masters(effort, solved.problem.vpp, counts=counts)
    return partial(CandidatePlans.refined, problem=solved.problem, effort=effort, hint=solved.plan)


def _with_masters(effort: Effort, vpp: int, *, counts: bool) -> Effort:
    """With the masters that are worth it. counts: of layer counts too, for stages with several chunks: a short one
    proves less than paths do, and proposes nothing better than the local search.
    """
    return effort if vpp == 1 or counts else replace(effort, rounds=0)


def solve_candidate(
    candidate: Candidates, context: Context, index: int, should_cancel: Callable[[], bool] | None
) -> Solved:
    """One candidate, solved quickly."""
    return Solved(index, candidate, context, *CandidatePlans(candidate, context, should_cancel).quick())


class CandidatePlans:
    """Plans of one candidate, each a problem with a solution.

    priced : gives it with the costs of its layers, where those are known. like : the same candidate under another limit
        of memory, the only difference of their problems. look : its template, where a search has looked at it.
    """

    def __init__(
        self,
        candidate: Candidates,
        context: Context,
        should_cancel: Callable[[], bool] | None,
        priced: Callable[[], Priced] | None = None,
        like: CandidatePlans | None = None,
        look: Quick | None = None,
    ) -> None:
        self.candidate, self.context, self._should_cancel = candidate, context, should_cancel
        self._priced, self._like, self.look = priced, like, look
        self._built: dict[frozenset[str], InnerProblem] = {}

    @cached_property
    def priced(self) -> Priced:
        """With the costs of its layers."""
        if self._like is not None:
            return replace(self._like.priced, context=self.context)
        if self._priced is not None:
            return self._priced()
        classes = step_classes(unit_costs(self.context, self.candidate), self.candidate, self.context)
        return Priced(classes, self.candidate, self.context)

    @cached_property
    def choices(self) -> frozenset[str]:
        """Memory choices that it may use."""
        return memory_choices(self.candidate, self.context) if self._like is None else self._like.choices

    def template(self, known: Ints | None = None) -> Quick:
        """The fastest template, in a fraction of the time of a quick plan, and mostly within 2 % of it; `known` : a
        layout that counts as one.

        Recomputing whole layers is looked at where nothing else fits, and where swaps may wait.

        Without a layout where no template fits, which proves nothing.
        """
        if known is None and (roomier := self._look_with_more_room()) is not None:
            return roomier
        solutions: list[Quick] = []
        for problem in self.problems():
            solutions.append((problem, best_template(problem, known)))
            unsure, plan = _waits_for_swaps if problem.uniform_options else _swaps, solutions[-1][1].plan
            if plan is not None and not unsure(problem, plan):
                break
        return min(solutions, key=lambda each: each[1].step_s)

    def _look_with_more_room(self) -> Quick | None:
        """The look at it under a higher limit, where its template fits below this one: no other that does is faster."""
        like = self._like
        if like is None or like.look is None or like.context.limit_bytes < self.context.limit_bytes:
            return None
        problem, solution = under_limit(like.look[0], self.priced), like.look[1]
        plan = solution.plan
        if plan is None or not fits(problem, plan.layout[None], plan.applied[None])[0]:
            return None
        return problem, solution

    def quick(self) -> Quick:
        """Solved quickly: without recomputing whole layers if that fits and swaps nothing, else with it, and the faster
        of both: a swap that waits may cost more than a layer that runs again.
        """
        problems = self.problems()
        problem = next(problems)
        solution = _solve_quickly(problem, self._should_cancel)
        settled = solution.plan is not None and not _swaps(problem, solution.plan)
        if settled or solution.status == "cancelled" or WHOLE not in self.choices:
            return problem, solution
        # A quick search that found no layout has not always proven that there is none.
        whole = next(problems)
        tried = [_solve_quickly(whole, self._should_cancel)]
        if solution.plan is not None and not whole.uniform_options:
            tried.append(solve(whole, effort=QUICK, should_cancel=self._should_cancel))
        faster = min(tried, key=lambda each: each.step_s)
        bound_s = min(solution.bound_s, *(each.bound_s for each in tried))
        if solution.plan is not None and solution.step_s < faster.step_s:
            return problem, replace(solution, bound_s=bound_s)
        return whole, replace(faster, bound_s=bound_s)

    def exact(self, effort: Effort, target_bound_s: float) -> Quick:
        """The best plan, and a bound of the candidate, of no interest above target_bound_s.

        With whole layers recomputed and without: of equal plans the one without.
        """
        solved = [
            (problem, solve(problem, effort=effort, upper_bound_s=target_bound_s, should_cancel=self._should_cancel))
            for problem in self.problems()
        ]
        problem, solution = min(solved, key=lambda each: each[1].step_s)
        work = sum(each.deterministic_work for _, each in solved)
        return problem, replace(solution, bound_s=min(each.bound_s for _, each in solved), deterministic_work=work)

    def refined(self, problem: InnerProblem, effort: Effort, hint: InnerPlan) -> Quick:
        """A quick plan's problem solved in full from it.

        Where the plan swaps, or recomputes whole layers, the other menu of memory choices may hold a faster one.
        """
        solution = solve(problem, effort=effort, hint=hint, should_cancel=self._should_cancel)
        whole = any(option.name == WHOLE for option in problem.options)
        unsure = whole or (solution.plan is not None and _swaps(problem, solution.plan))
        if solution.status == "cancelled" or not unsure or WHOLE not in self.choices:
            return problem, solution
        other = self._problem(self.choices - {WHOLE} if whole else self.choices)
        rival = solve(other, effort=effort, upper_bound_s=solution.step_s, should_cancel=self._should_cancel)
        bound_s = min(solution.bound_s, rival.bound_s)
        if rival.step_s < solution.step_s:
            return other, replace(rival, bound_s=bound_s)
        return problem, replace(solution, bound_s=bound_s)

    def _problem(self, choices: frozenset[str]) -> InnerProblem:
        built = self._built
        if choices not in built:
            if self._like is not None:
                built[choices] = under_limit(self._like._problem(choices), self.priced)
            elif built:
                built[choices] = with_choices(next(iter(built.values())), self.priced, choices, menu=True)
            else:
                built[choices] = build_problem(self.priced, choices=choices)
        return built[choices]

    def problems(self) -> Iterator[InnerProblem]:
        """Without recomputing whole layers and, where that is allowed, with it."""
        return (self._problem(choices) for choices in reversed(menus(self.choices)))


def _swaps(problem: InnerProblem, plan: InnerPlan) -> bool:
    """Whether a plan swaps what layers keep."""
    counts = plan.applied.sum(axis=0)
    return any(option.kind == "swap" and count > 0 for option, count in zip(problem.options, counts, strict=True))


def _waits_for_swaps(problem: InnerProblem, plan: InnerPlan) -> bool:
    """Whether passes of a plan wait for what it swaps."""
    return bool(chunk_times(problem, plan.layout[None], plan.applied[None]).exposed_swap_s.any())


def _solve_quickly(problem: InnerProblem, should_cancel: Callable[[], bool] | None) -> InnerSolution:
    """A plan with the same memory options on every stage: legal for every target, and far fewer to look at.

    Where the options may differ between stages the bound is that of the freer problem.
    """
    even = replace(problem, uniform_options=True)
    solution = solve(even, effort=QUICK, should_cancel=should_cancel)
    if problem.uniform_options:
        return solution
    free = relax_bound(problem)
    if solution.plan is None and np.isfinite(free):
        return solve(problem, effort=QUICK, should_cancel=should_cancel)
    return replace(solution, bound_s=min(solution.bound_s, free))


LIKELY = 8_192
"""Candidates that may be planned, the first by their estimate."""
BATCH_SIZE = 16
"""Of these, so many are priced in one batch: that takes little longer than one."""
MOST_BATCHES = 16
KEPT_PLANS = 1024
"""Candidates whose problems are kept: they are looked at again with less room."""


class PricedTogether:
    """Prices candidates that are mostly planned one after the other: the first of outer tuples in the order of their
    estimate, and the others of a tuple. What a candidate costs does not depend on those beside it.
    """

    def __init__(self, request: SearchRequest) -> None:
        self._request = request
        likely = request.swept.fastest(LIKELY)
        outer = request.outer[likely]
        key = outer + 1
        key[np.unique(outer, return_index=True)[1]] = 0
        self._rows = likely[np.argsort(key, kind="stable")]
        self._place_of = {index: place for place, index in enumerate(self._rows.tolist())}
        self._batches: dict[tuple[bytes, int], Priced] = {}

    def at(self, index: int, context: Context) -> Priced:
        """A candidate of a context, with the costs of its layers."""
        rows = self._batch_of(index)
        rows = rows[[self._request.contexts(row) is context for row in rows.tolist()]]
        key = rows.tobytes(), id(context)
        if key not in self._batches:
            if len(self._batches) == MOST_BATCHES:
                del self._batches[next(iter(self._batches))]
            self._batches[key] = self._priced(rows, context)
        return replace(self._batches[key], index=rows.tolist().index(index))

    def _batch_of(self, index: int) -> Ints:
        """Candidates that are priced with one, itself among them: its neighbours, or where it has none its tuple."""
        place = self._place_of.get(index)
        if place is None:
            outer = self._request.outer
            return np.flatnonzero(outer == outer[index])
        start = place - place % BATCH_SIZE
        return self._rows[start : start + BATCH_SIZE]

    def _priced(self, rows: Ints, context: Context) -> Priced:
        candidates = self._request.candidates.take(rows)
        return Priced(step_classes(self._request.costs.of(rows), candidates, context), candidates, context)


class CandidateSolver:
    """Bounds and plans of candidates.

    together : whether candidates are priced before they are planned, with others: contexts are the same objects then.
    like : gives each candidate under another limit of memory, where those are known: it need not be priced again.
    """

    def __init__(
        self,
        request: SearchRequest,
        *,
        together: bool = False,
        like: Callable[[int], CandidatePlans] | None = None,
    ) -> None:
        self._candidates, self._contexts, self._costs = request.candidates, request.contexts, request.costs
        self._outer = request.outer
        self.stopped: Callable[[], bool] = request.cancelled
        self._kept: dict[int, CandidatePlans] = {}
        self._looks: dict[int, Quick] = {}
        self._like = like
        self._together = PricedTogether(request) if together and like is None else None
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

    def visit(self, rows: Ints, ahead: list[Ints], target_bound_s: float) -> Visit:
        """`TupleBounds.visit`."""
        return self._tuples.visit(rows, ahead, target_bound_s)

    def exact(self, index: int, effort: Effort, target_bound_s: float, counts: bool) -> Quick:
        """`CandidatePlans.exact`; of stages with several chunks its bound is raised by paths of the candidate's own
        problems. counts : with masters of layer counts too.
        """
        plans = self.plans(index)
        vpp = int(plans.candidate.vpp[0])
        problem, solution = plans.exact(_with_masters(effort, vpp, counts=counts), target_bound_s)
        if vpp == 1 or solution.bound_s >= min(target_bound_s, solution.step_s):
            return problem, solution
        by_paths = self._tuples.of_candidate(tuple(plans.problems()), target_bound_s)
        bound_s = min(solution.step_s, max(solution.bound_s, by_paths.bound_s))
        work = solution.deterministic_work + by_paths.work / PER_SECOND
        return problem, replace(solution, bound_s=bound_s, deterministic_work=work)

    def solved(self, index: int, plan: Quick) -> Solved:
        """A candidate with a plan of it, whoever made it."""
        of = self.plans(index)
        return Solved(index, of.candidate, of.context, *plan)

    def looked(self, index: int, template: Quick) -> Solved:
        """A candidate with its template, whoever made it: the look that is known of it from now on."""
        self._looks[index] = self.plans(index).look = template
        return self.solved(index, template)

    def plan(self, index: int, how: Callable[[CandidatePlans], Quick]) -> Quick:
        """One of a candidate's plans."""
        return how(self.plans(index))

    def plans(self, index: int) -> CandidatePlans:
        """What makes plans of a candidate; that of the last ones is kept."""
        if index not in self._kept:
            if len(self._kept) == KEPT_PLANS:
                del self._kept[next(iter(self._kept))]
            candidate, context = self._candidates.take(slice(index, index + 1)), self._contexts(index)
            priced = self._alone if self._together is None else self._together.at
            like = None if self._like is None else self._like(index)
            self._kept[index] = CandidatePlans(
                candidate,
                context,
                lambda: self.stopped(),
                partial(priced, index, context),
                like,
                self._looks.get(index),
            )
        return self._kept[index]

    def _alone(self, index: int, context: Context) -> Priced:
        candidate = self._candidates.take(slice(index, index + 1))
        return Priced(step_classes(self._costs.at(index), candidate, context), candidate, context)


WAITING = 2
"""Candidates that the worker has before it."""


class PlansAhead:
    """Makes each plan when it is asked for, or before: who makes it does not change it.

    how : the kind of plan.
    """

    def __init__(
        self,
        local: CandidateSolver,
        remote: WorkerProcess[CandidateSolver],
        how: Callable[[CandidatePlans], Quick] = CandidatePlans.quick,
    ) -> None:
        self._local, self._remote, self._how = local, remote, how
        self._begun: dict[int, Future[Quick]] = {}
        self._made: dict[int, Quick] = {}

    def plan(self, index: int, soon: Sequence[int]) -> Quick:
        """The plan of a candidate; soon: candidates that will probably be asked for next, in order."""
        if not self._remote.parallel:
            return self._local.plan(index, self._how)
        while index not in self._made:
            self._collect()
            wanted = [each for each in (index, *soon) if each not in self._made and each not in self._begun]
            own = wanted[:1]
            for other in wanted[1 : 1 + WAITING - len(self._begun)]:
                self._begun[other] = self._remote.begin(CandidateSolver.plan, other, self._how)
            if own:
                self._made[own[0]] = self._local.plan(own[0], self._how)
            elif index in self._begun:
                # Nothing else is left to do meanwhile; when the search is cancelled the plan says so.
                self._made[index] = self._begun.pop(index).result() or self._local.plan(index, self._how)
        return self._made.pop(index)

    def _collect(self) -> None:
        for index in [index for index, begun in self._begun.items() if begun.ready()]:
            made = self._begun.pop(index).result()
            if made is not None:
                self._made[index] = made


MOST_SETS = 16
"""Sets of options that are tried on the best placement where a target's flags hold for all layers."""


def with_placements(best: Sequence[Solved], count: int, should_cancel: Callable[[], bool] | None) -> list[Solved]:
    """The `count` fastest plans of solved candidates, however many of one candidate; the fastest first.

    Looked at are each candidate's own plan, what moves one of its layers, the templates, and other memory options. What
    is proven of a candidate holds for all its plans.
    """
    plans = list(best)
    for solved in best:
        order = sorted(each.solution.step_s for each in plans)
        below_s = order[count - 1] if len(order) >= count else float("inf")
        if solved.solution.step_s >= below_s or (should_cancel is not None and should_cancel()):
            continue
        plans += _others(solved, count - 1, below_s)
    return sorted(plans, key=lambda s: (s.solution.step_s, s.index))[:count]


def _others(solved: Solved, count: int, below_s: float) -> list[Solved]:
    """At most `count` other plans of a candidate that are faster than below_s."""
    own, problem = solved.plan, solved.problem
    evaluator, size = Evaluator(problem), to_sizes(problem, own.layout)
    moved = np.unique(np.concatenate([neighbours(problem, size), templates(problem)]), axis=0)
    layouts, applied = [], []
    for choices, sizes in _choices(problem, own.applied, moved, size[None]):
        tried = to_layout(problem, sizes)
        tried = tried[np.argsort(evaluator.bare_s(tried), kind="stable")[:MOST_SIMULATED]]
        options, ok = choices.complete(tried)
        layouts.append(tried[ok])
        applied.append(options[ok])
    layout, option = np.concatenate(layouts), np.concatenate(applied)
    step = evaluator.step_s(layout, option, below_s)
    seen = {(own.layout.tobytes(), own.applied.tobytes())}
    others: list[Solved] = []
    for row in np.argsort(step, kind="stable"):
        key = (layout[row].tobytes(), option[row].tobytes())
        if len(others) >= count or step[row] >= below_s:
            break
        if key not in seen:
            seen.add(key)
            plan = evaluator.plan(layout[row], option[row])
            bound_s = min(solved.solution.bound_s, plan.step_s)
            other = replace(solved.solution, status="feasible", plan=plan, bound_s=bound_s)
            others.append(replace(solved, solution=other))
    return others


def _choices(problem: InnerProblem, applied: Ints, moved: Ints, own: Ints) -> list[tuple[StageChoices, Ints]]:
    """Chooser of the options, and the placements [n, parts] that it chooses for."""
    if not problem.uniform_options:
        return [(StageChoices(problem), moved)]
    used: Ints = np.asarray(applied.any(axis=0), dtype=np.int64)
    sets = undominated_sets(problem)[:MOST_SETS] if problem.options else np.zeros((0, 0), dtype=np.int64)
    others = [mask for mask in sets if not np.array_equal(mask, used)]
    return [(StageChoices(problem, used), moved), *((StageChoices(problem, mask), own) for mask in others)]
