"""Solve the inner problem of one candidate.

Templates, local search, then a master problem with schedule cuts until the gap closes; where options are on for all
layers or none, so for every set of options that may be the best.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.solver.bounds.paths import path_key
from autodeploy.solver.bounds.problem_bound import RELAXATION, binding_stage, relax_bound, room_for_layers
from autodeploy.solver.effort import DEFAULT, Effort
from autodeploy.solver.inner.evaluate import OPTIMAL_GAP, Evaluator, InnerPlan, InnerSolution, Status
from autodeploy.solver.inner.greedy import greedy, polish
from autodeploy.solver.inner.layouts import (
    distinct_rows,
    most_layers_per_chunk,
    parts_of,
    rounded,
    templates,
    to_layout,
    to_sizes,
    uneven_sizes,
)
from autodeploy.solver.inner.local_search import best_of, improve
from autodeploy.solver.inner.memory_options import legal_options
from autodeploy.solver.inner.stage_choices import StageChoices, fits
from autodeploy.solver.inner.uniform import by_bound, quick_plan, with_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.stages.inner_problem import InnerProblem, Ints
    from autodeploy.solver.cp_sat.model import Proposal
    from cost_models.schedule import SchedulePath

CUTS: Final = "one column a stage under the longest paths of the schedule"
COUNTS: Final = "layer counts under the longest paths of the schedule, without the time of memory options"


@dataclass(eq=False)
class _Search:
    """The state of one search: the best plan, the proven bound, the cuts, the work done."""

    problem: InnerProblem
    choices: StageChoices
    evaluator: Evaluator
    effort: Effort
    seed: int
    should_cancel: Callable[[], bool] | None
    target_s: float  # nothing at or above this is of use
    best: InnerPlan | None = None
    bound_s: float = 0.0
    relaxation: str = RELAXATION
    proven_empty: bool = False
    work: float = 0.0
    cuts: list[SchedulePath] = field(default_factory=list)

    def cancelled(self) -> bool:
        """Whether the caller wants the search to end."""
        return self.should_cancel is not None and self.should_cancel()

    def take(self, plan: InnerPlan | None) -> None:
        """Keep a plan if it is the fastest so far."""
        if plan is not None and (self.best is None or plan.step_s < self.best.step_s):
            self.best = plan

    def closed(self) -> bool:
        """Whether the gap, or the bound against what the caller already has, makes more work useless."""
        if self.proven_empty or self.bound_s >= self.target_s:
            return True
        return self.best is not None and self.bound_s >= self.best.step_s * (1.0 - max(self.effort.gap, OPTIMAL_GAP))


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
    state = _Search(
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
        _search_sets(state, start)
    else:
        _search(state, start)
    return _answer(state, start)


def starts(problem: InnerProblem) -> Ints:
    """Templates, and one in proportion to the layers that each stage's memory can hold."""
    found = templates(problem)
    room = room_for_layers(problem)
    weight = np.array([room[spots[0][0]] for spots in parts_of(problem)], dtype=np.float64)
    row = rounded(weight, problem.total_layers, problem.min_layers_per_chunk, most_layers_per_chunk(problem))
    return found if row is None else distinct_rows(np.concatenate([found, row[None]]))


def _answer(state: _Search, start: Ints) -> InnerSolution:
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


def _search_sets(state: _Search, start: Ints) -> None:
    """Search every undominated set of options in order of its bound, until the next one can't win."""
    problem = state.problem
    masks, low = by_bound(problem)
    known_s = np.inf if state.best is None else state.best.step_s
    # A good plan early rules out most of the rest.
    state.take(quick_plan(state.evaluator, (masks, low), start, known_s, state.effort.moves, state.cancelled))
    open_bounds: list[float] = []
    shares = max(1, int(np.isfinite(low).sum()))
    work, cuts, searched = 0.0, state.cuts, 0
    for row in range(len(masks)):
        best = np.inf if state.best is None else state.best.step_s
        if low[row] >= min(best, state.target_s) or not np.isfinite(low[row]):
            open_bounds.append(float(low[row]))
            continue
        if state.cancelled() or work >= state.effort.deterministic_time or searched >= state.effort.sets:
            open_bounds.append(float(low[row]))
            continue
        part = replace(
            state,
            problem=with_options(problem, masks[row]),
            choices=StageChoices(problem, masks[row]),
            effort=replace(
                state.effort,
                deterministic_time=max(
                    state.effort.deterministic_time - work, state.effort.deterministic_time / shares
                ),
            ),
            bound_s=0.0,
            proven_empty=False,
            work=0.0,
            cuts=list(cuts),
        )
        _search(part, start)
        work += part.work
        searched += 1
        state.take(part.best)
        state.relaxation = part.relaxation
        open_bounds.append(float("inf") if part.proven_empty else part.bound_s)
        cuts = part.cuts
    state.work += work
    state.bound_s = min(open_bounds)
    state.proven_empty = not np.isfinite(state.bound_s)


def _search(state: _Search, start: Ints) -> None:
    """Run all steps on layouts [n, parts] to start from."""
    state.choices.stop = lambda: state.best is not None and state.cancelled()
    state.choices.hurry = state.should_cancel
    state.bound_s = max(state.bound_s, relax_bound(state.problem))
    if not np.isfinite(state.bound_s):
        state.proven_empty = True
        return
    known = state.best if state.problem.options == () else None
    below = state.best.step_s if state.best is not None else np.inf
    state.take(best_of(state.evaluator, state.choices, start, below, state.cancelled))
    if state.closed():
        return
    if state.best is None:
        _any_layout(state)
    if state.best is None or state.closed() or state.cancelled():
        return
    if state.best is not known:
        state.take(improve(state.evaluator, state.choices, state.best, state.effort.moves, state.cancelled))
    if state.effort.rounds and not state.closed() and state.problem.kind.copies == 1:
        _close_gap(state)


def _any_layout(state: _Search) -> None:
    """No template fits: ask the master for any columns that do."""
    problem = state.problem
    if problem.kind.copies > 1:
        return
    proposal = _ask_master(state, np.inf, state.effort.deterministic_time)
    state.work += proposal.deterministic_time
    if proposal.layout is not None:
        sizes = to_sizes(problem, proposal.layout)[None]
        state.take(best_of(state.evaluator, state.choices, sizes, np.inf, state.cancelled))
    elif proposal.proven:
        state.proven_empty = True


def _close_gap(state: _Search) -> None:
    """Master, simulate its proposal, add its critical path as a cut; until the bound meets the best plan."""
    assert state.best is not None
    _first_cuts(state)
    budget = state.effort.deterministic_time
    known = {path_key(cut) for cut in state.cuts}
    for _ in range(state.effort.rounds):
        if state.closed() or state.cancelled() or budget <= 0.0:
            return
        upper = min(state.best.step_s, state.target_s) - state.problem.tail_s
        proposal = _ask_master(state, upper, budget)
        budget -= proposal.deterministic_time
        state.work += proposal.deterministic_time
        if proposal.bound_s + state.problem.tail_s > state.bound_s:
            state.bound_s = proposal.bound_s + state.problem.tail_s
            state.relaxation = CUTS if state.problem.vpp == 1 else COUNTS
        if proposal.layout is None:
            return
        layout = proposal.layout
        applied, ok = state.choices.complete(layout[None])
        if not ok[0]:
            # No options make the proposal fit, or none were found: only its cut without options is of use.
            applied = np.zeros_like(applied)
        plan = state.evaluator.plan(layout, applied[0])
        if ok[0] and plan.step_s < state.best.step_s:
            state.take(plan)
            state.take(improve(state.evaluator, state.choices, plan, 1, state.cancelled))
        cut = state.evaluator.critical_path(layout, applied[0])
        if path_key(cut) in known:
            return  # the columns' times are lower bounds: the master can't be told more
        fresh = [cut]
        if state.problem.vpp > 1:
            fresh += state.evaluator.paced_paths(layout, applied[0])
        new = {path_key(path): path for path in fresh if path_key(path) not in known}
        state.cuts += new.values()
        known |= new.keys()


def _ask_master(state: _Search, upper_s: float, budget: float) -> Proposal:
    """The layout that is best under the cuts so far: one column for each stage, or layer counts for several chunks.

    Nothing where there are too many columns.
    """
    from autodeploy.solver.cp_sat.master import columns, solve_counts, solve_master
    from autodeploy.solver.cp_sat.model import Proposal, solve_model

    problem, effort = state.problem, state.effort
    ask = partial(solve_model, seed=state.seed, should_cancel=state.should_cancel, workers=effort.workers)
    if problem.vpp > 1 and state.best is not None:
        some = min(budget, max(effort.deterministic_time / 6, budget / 3))
        return solve_counts(problem, state.cuts, upper_s, state.best.layout, partial(ask, deterministic_time=some))
    found = columns(problem, state.choices, upper_s, effort.most_choices)
    if found is None:
        return Proposal(0.0, None, False, 0.0)
    hint = None if state.best is None else state.best.layout
    return solve_master(problem, found, state.cuts, upper_s, hint, partial(ask, deterministic_time=budget))


def _first_cuts(state: _Search) -> None:
    """The best plan's own path, and the path that paces on each stage when that stage is slowed."""
    assert state.best is not None
    state.cuts.append(state.evaluator.critical_path(state.best.layout, state.best.applied))
    state.cuts += state.evaluator.paced_paths(state.best.layout, state.best.applied)
    if state.problem.vpp > 1:
        # Layouts that empty a chunk here or there: the master would try them one by one.
        uneven = to_layout(state.problem, uneven_sizes(state.problem, state.seed))
        none = np.zeros((*uneven.shape[:2], len(state.evaluator.problem.options)), dtype=np.int64)
        state.cuts += state.evaluator.critical_paths(uneven, none)
    unique = {path_key(cut): cut for cut in state.cuts}
    state.cuts = list(unique.values())
