"""The inner search: templates, local search, then a master problem with schedule cuts until the gap closes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.solver.bounds.paths import path_key
from autodeploy.solver.bounds.problem_bound import RELAXATION, relax_bound
from autodeploy.solver.inner.layouts import to_layout, to_sizes, uneven_sizes
from autodeploy.solver.inner.local_search import best_of, improve
from autodeploy.solver.inner.solution import OPTIMAL_GAP

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.stages.inner_problem import InnerProblem, Ints
    from autodeploy.solver.cp_sat.model import Proposal
    from autodeploy.solver.effort import Effort
    from autodeploy.solver.inner.evaluate import Evaluator
    from autodeploy.solver.inner.solution import InnerPlan
    from autodeploy.solver.inner.stage_choices import StageChoices
    from cost_models.schedule import SchedulePath

CUTS: Final = "one column a stage under the longest paths of the schedule"
COUNTS: Final = "layer counts under the longest paths of the schedule, without the time of memory options"


@dataclass(eq=False)
class Search:
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


def search(state: Search, start: Ints) -> None:
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


def _any_layout(state: Search) -> None:
    """No template fits: ask the master for any columns that do."""
    problem = state.problem
    if problem.kind.copies > 1:
        return
    proposal = _choose_columns(state, np.inf, state.effort.deterministic_time)
    state.work += proposal.deterministic_time
    if proposal.layout is not None:
        sizes = to_sizes(problem, proposal.layout)[None]
        state.take(best_of(state.evaluator, state.choices, sizes, np.inf, state.cancelled))
    elif proposal.proven:
        state.proven_empty = True


def _close_gap(state: Search) -> None:
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


def _ask_master(state: Search, upper_s: float, budget: float) -> Proposal:
    """The layout that is best under the cuts so far: columns for one chunk a stage, layer counts for more."""
    assert state.best is not None
    from autodeploy.solver.cp_sat.count_master import solve_counts

    effort = state.effort
    if state.problem.vpp == 1:
        return _choose_columns(state, upper_s, budget)
    return solve_counts(
        state.problem,
        state.cuts,
        upper_s,
        hint=state.best.layout,
        deterministic_time=min(budget, max(effort.deterministic_time / 6, budget / 3)),
        seed=state.seed,
        should_cancel=state.should_cancel,
        workers=effort.workers,
    )


def _choose_columns(state: Search, upper_s: float, budget: float) -> Proposal:
    """One column a stage, the best under the cuts so far; nothing where there are too many."""
    from autodeploy.solver.cp_sat.master import columns, solve_master
    from autodeploy.solver.cp_sat.model import Proposal

    found = columns(state.problem, state.choices, upper_s, state.effort.most_choices)
    if found is None:
        return Proposal(0.0, None, False, 0.0)
    return solve_master(
        state.problem,
        found,
        state.cuts,
        upper_s,
        hint=None if state.best is None else state.best.layout,
        deterministic_time=budget,
        seed=state.seed,
        should_cancel=state.should_cancel,
        workers=state.effort.workers,
    )


def _first_cuts(state: Search) -> None:
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
