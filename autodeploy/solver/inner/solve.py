"""Solve the inner problem of one candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.bounds.problem_bound import binding_stage, room_for_layers
from autodeploy.solver.effort import DEFAULT, Effort
from autodeploy.solver.inner.evaluate import Evaluator
from autodeploy.solver.inner.greedy import greedy, polish
from autodeploy.solver.inner.layouts import (
    distinct_rows,
    most_layers_per_chunk,
    parts_of,
    rounded,
    templates,
    to_layout,
    to_sizes,
)
from autodeploy.solver.inner.memory_options import legal_options
from autodeploy.solver.inner.search import Search, search
from autodeploy.solver.inner.solution import OPTIMAL_GAP, InnerPlan, InnerSolution, Status
from autodeploy.solver.inner.stage_choices import StageChoices, fits
from autodeploy.solver.inner.uniform import search_uniform

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.stages.inner_problem import InnerProblem, Ints


def solve(
    problem: InnerProblem,
    *,
    effort: Effort = DEFAULT,
    upper_bound_s: float | None = None,
    hint: InnerPlan | None = None,
    should_cancel: Callable[[], bool] | None = None,
    seed: int = 0,
) -> InnerSolution:
    """Best layout and memory options of one candidate, with a proven bound.

    Parameters
    ----------
    upper_bound_s : step time of a plan already known; the search stops once it can't do better ("pruned" when it has
        no plan of its own by then).
    hint : a plan to start from, whatever its time is said to be; ignored where it doesn't fit.
    should_cancel : polled at least every 0.1 s; the best plan so far is returned.

    The same arguments give the same solution, bit for bit.
    """
    state = Search(
        problem,
        StageChoices(problem),
        Evaluator(problem),
        effort,
        seed,
        should_cancel,
        float("inf") if upper_bound_s is None else upper_bound_s,
    )
    start = starts(problem)
    if hint is not None:
        start = np.concatenate([start, to_sizes(problem, hint.layout)[None]])
        layout, applied = hint.layout[None], hint.applied[None]
        if fits(problem, layout, applied)[0] and legal_options(problem, layout, applied)[0]:
            state.take(state.evaluator.plan(hint.layout, hint.applied))
    if problem.uniform_options and problem.options:
        search_uniform(state, start)
    else:
        search(state, start)
    return _answer(state, start)


def starts(problem: InnerProblem) -> Ints:
    """Templates, and one in proportion to the layers that each stage's memory can hold."""
    found = templates(problem)
    room = room_for_layers(problem)
    weight = np.array([room[spots[0][0]] for spots in parts_of(problem)], dtype=np.float64)
    row = rounded(weight, problem.total_layers, problem.min_layers_per_chunk, most_layers_per_chunk(problem))
    return found if row is None else distinct_rows(np.concatenate([found, row[None]]))


def _answer(state: Search, start: Ints) -> InnerSolution:
    problem = state.problem
    if state.best is not None and not state.cancelled() and not problem.uniform_options and state.best.applied.any():
        rows = np.unique(np.concatenate([to_layout(problem, start)[:1], state.best.layout[None]]), axis=0)
        state.take(greedy(state.evaluator, rows))
        state.take(polish(state.evaluator, state.best))  # a faster plan may have more that it doesn't need
        polished = polish(state.evaluator, state.best)
        if polished.step_s <= state.best.step_s:
            state.best = polished
    best = state.best
    if best is None:
        status: Status = "infeasible" if state.proven_empty else "cancelled" if state.cancelled() else "pruned"
        bound_s = float("inf") if state.proven_empty else state.bound_s
        lacking = binding_stage(problem) if state.proven_empty else (None, 0.0)
        return InnerSolution(status, None, bound_s, state.relaxation, state.work, *lacking)
    bound_s = min(state.bound_s, best.step_s)
    proven = bound_s >= best.step_s * (1.0 - OPTIMAL_GAP)
    status = "optimal" if proven else "cancelled" if state.cancelled() else "feasible"
    return InnerSolution(status, best, bound_s, state.relaxation, state.work)
