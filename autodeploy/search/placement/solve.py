"""Solve the inner problem of one candidate.

Templates, local search, then a master problem with schedule cuts until the gap closes; where options are on for all
layers or none, so for every set of options that may be the best. Beside it a first look, at templates alone; and the
articles' method, which takes options one layer at a time by the best ratio until a stage fits and then removes what is
not needed: the same removal serves any plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.stages.inner_problem import chunk_times, least_start_bytes, over_chunks, step_bytes
from autodeploy.messages import Message
from autodeploy.search.bounds.paths import path_key
from autodeploy.search.bounds.problem_bound import RELAXATION, relax_bound, room_for_layers
from autodeploy.search.choices.effort import DEFAULT, Effort
from autodeploy.search.choices.layouts import templates, to_layout, to_sizes, uneven_sizes, with_shares
from autodeploy.search.choices.memory_options import legal_options
from autodeploy.search.placement.evaluate import (
    OPTIMAL_GAP,
    ROUNDING,
    Evaluator,
    InnerPlan,
    InnerSolution,
    Status,
    best_of,
    improve,
)
from autodeploy.search.placement.stage_choices import StageChoices, fits, stage_fits
from autodeploy.search.placement.uniform import by_bound, promising_sets, quick_plan, under_sets, with_options
from autodeploy.stack.memory_choices import WHOLE
from cost_models.arrays import product

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.search.cp_sat.model import Proposal
    from cost_models.arrays import Floats, Ints
    from cost_models.schedule import SchedulePath


CUTS: Final = Message("solver.column_bound")
COUNTS: Final = Message("solver.layer_count_bound")


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
    start = starts(problem, room_for_layers(problem))
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


def starts(problem: InnerProblem, room: Ints) -> Ints:
    """Templates, and one in proportion to the layers that each stage's memory can hold [pp]."""
    weight = np.array([room[spots[0][0]] for spots in problem.parts], dtype=np.float64)
    return with_shares(problem, templates(problem), weight)


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
        return InnerSolution(status, None, bound_s, state.relaxation, state.work)
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
    promising = masks[np.isfinite(low)]
    state.take(quick_plan(state.evaluator, promising, start, known_s, state.effort.moves, state.cancelled))
    left_bounds: list[float] = []
    shares = max(1, int(np.isfinite(low).sum()))
    work, cuts, searched = 0.0, state.cuts, 0
    for row in range(len(masks)):
        best = np.inf if state.best is None else state.best.step_s
        if low[row] >= min(best, state.target_s) or not np.isfinite(low[row]):
            left_bounds.append(float(low[row]))
            continue
        if state.cancelled() or work >= state.effort.deterministic_time or searched >= state.effort.sets:
            left_bounds.append(float(low[row]))
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
        left_bounds.append(float("inf") if part.proven_empty else part.bound_s)
        cuts = part.cuts
    state.work += work
    state.bound_s = min(left_bounds)
    state.proven_empty = not np.isfinite(state.bound_s)


def _search(state: _Search, start: Ints) -> None:
    """Run all steps on layouts [n, parts] to start from."""
    state.choices.stop = lambda: state.best is not None and state.cancelled()
    state.choices.hurry = state.should_cancel
    state.bound_s = max(state.bound_s, relax_bound(state.problem))
    if not np.isfinite(state.bound_s):
        state.proven_empty = True
        return
    initial = state.best if state.problem.options == () else None
    below = state.best.step_s if state.best is not None else np.inf
    state.take(best_of(state.evaluator, state.choices, start, below, state.cancelled))
    if state.closed():
        return
    if state.best is None:
        _any_layout(state)
    if state.best is None or state.closed() or state.cancelled():
        return
    if state.best is not initial:
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
    seen = {path_key(cut) for cut in state.cuts}
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
        if path_key(cut) in seen:
            return  # the columns' times are lower bounds: the master can't be told more
        fresh = [cut]
        if state.problem.vpp > 1:
            fresh += state.evaluator.paced_paths(layout, applied[0])
        new = {path_key(path): path for path in fresh if path_key(path) not in seen}
        state.cuts += new.values()
        seen |= new.keys()


def _ask_master(state: _Search, upper_s: float, budget: float) -> Proposal:
    """The layout that is best under the cuts so far: one column for each stage, or layer counts for several chunks.

    Nothing where there are too many columns.
    """
    from autodeploy.search.cp_sat.model import Proposal, solve_model
    from autodeploy.search.placement.master import columns, solve_counts, solve_master

    problem, effort = state.problem, state.effort
    ask = partial(solve_model, seed=state.seed, should_cancel=state.should_cancel, workers=effort.workers)
    if problem.vpp > 1 and state.best is not None:
        share = min(budget, max(effort.deterministic_time / 6, budget / 3))
        return solve_counts(problem, state.cuts, upper_s, state.best.layout, partial(ask, deterministic_time=share))
    by_stage = columns(problem, state.choices, upper_s, effort.most_choices)
    if by_stage is None:
        return Proposal(0.0, None, False, 0.0)
    hint = None if state.best is None else state.best.layout
    return solve_master(problem, by_stage, state.cuts, upper_s, hint, partial(ask, deterministic_time=budget))


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


def best_template(problem: InnerProblem, known: Ints | None = None) -> InnerSolution:
    """The fastest template of a problem; nothing is proven of it, nor where none fits.

    All layers of a stage have the same memory choices, or all of the model where the problem's options are uniform.
    known : a layout [pp, vpp, classes] that counts as a template.
    """
    room = room_for_layers(problem)
    if room.sum() < problem.kind.copies * problem.total_layers or least_start_bytes(problem) > problem.limit_bytes:
        return InnerSolution("pruned", None)
    evaluator, sizes = Evaluator(problem), starts(problem, room)
    if known is not None:
        sizes = np.concatenate([sizes, to_sizes(problem, known)[None]])
    masks = promising_sets(replace(problem, uniform_options=True), len(sizes))
    if problem.uniform_options:
        best = quick_plan(evaluator, masks, sizes)
    else:
        layout, applied = _by_stage(problem, masks, to_layout(problem, sizes))
        fastest = evaluator.fastest(evaluator.timed(layout, applied), np.arange(len(layout))) if len(layout) else None
        best = None if fastest is None else fastest[1]
    return InnerSolution("pruned" if best is None else "feasible", best)


def is_free(problem: InnerProblem, plan: InnerPlan) -> bool:
    """True where no template is faster than a plan without memory options, whatever the template holds."""
    layouts = to_layout(problem, templates(problem))
    none = np.zeros((*layouts.shape[:2], len(problem.options)), dtype=np.int64)
    return not (Evaluator(problem).step_s(layouts, none, plan.step_s) < plan.step_s * (1.0 - ROUNDING)).any()


def _by_stage(problem: InnerProblem, masks: Ints, layouts: Ints) -> tuple[Ints, Ints]:
    """Layouts on which every stage fits under one of some sets of options, and for each stage the set that adds least
    time, on no more layers than it takes.
    """
    layout, applied = under_sets(problem, masks, layouts)
    sets = len(masks)
    whole = [number for number, option in enumerate(problem.options) if option.name == WHOLE]
    if whole and problem.vpp == 1:
        partly = ~applied[..., whole].any(axis=(1, 2))
        mixed = _with_whole_layers(problem, whole, layout[partly], applied[partly])
        layout, applied = np.concatenate([layout, layout[partly]]), np.concatenate([applied, mixed])
        sets = len(layout) // len(layouts)
    times = chunk_times(problem, layout, applied)
    added = over_chunks(times.forward_s + times.backward_s)
    added[~stage_fits(problem, layout, applied)] = np.inf
    added = added.reshape(sets, len(layouts), problem.pp)
    chosen = added.argmin(axis=0)
    fit = np.isfinite(added.min(axis=0)).all(axis=1)
    every = applied.reshape(sets, len(layouts), *applied.shape[1:])
    lightest = np.take_along_axis(every, chosen[None, :, :, None], axis=0)[0][fit]
    return layouts[fit], _lightened(problem, layouts[fit], lightest)


def _with_whole_layers(problem: InnerProblem, whole: list[int], layout: Ints, applied: Ints) -> Ints:
    """Options [n, pp, options] of stages with one chunk, whole layers recomputed instead on as many as don't fit."""
    in_flight, applied = _held(problem), applied.copy()
    over = step_bytes(problem, layout, applied) - problem.limit_bytes
    totals = over_chunks(layout)
    saved = np.array([option.saved_bytes for option in problem.options])
    for number in sorted(whole, key=lambda each: -problem.layers[problem.options[each].layer_class]):
        layers = totals[..., problem.options[number].layer_class]
        others = [
            other
            for other, option in enumerate(problem.options)
            if option.layer_class == problem.options[number].layer_class and other != number
        ]
        kept = saved[number] - product(applied[..., others], saved[others]) / np.maximum(layers, 1)
        gain = np.maximum(kept * in_flight, 1.0)
        count = np.clip(np.ceil(over / gain), 0, layers).astype(np.int64)
        applied[..., number] = count
        applied[..., others] = np.minimum(applied[..., others], (layers - count)[..., None])
        over -= count * gain
    return applied


def _held(problem: InnerProblem) -> Floats:
    """Micro batches in flight in the chunk that holds most, on each stage [pp]."""
    return np.asarray(problem.moments.max(axis=(1, 2)))


def _lightened(problem: InnerProblem, layout: Ints, applied: Ints) -> Ints:
    """Options on no more layers than it takes, those that cost most a byte first [n, pp, options].

    A layer less is counted in the chunk that holds most micro batches.
    """
    if not len(layout):
        return applied
    in_flight = _held(problem)
    link = problem.host_link_bytes_per_s
    price = [max(o.extra_backward_s, o.swap_bytes / link) / max(o.saved_bytes, 1.0) for o in problem.options]
    spare = problem.limit_bytes - step_bytes(problem, layout, applied)
    applied = applied.copy()
    for option in np.argsort(price, kind="stable")[::-1]:
        each = np.maximum(problem.options[option].saved_bytes * in_flight, 1.0)
        less = np.minimum(np.floor(spare / each), applied[..., option]).astype(np.int64)
        applied[..., option] -= less
        spare -= less * each
    return applied


def greedy_options(problem: InnerProblem, layout: Ints) -> Ints | None:
    """Option counts [pp, options] for a layout [pp, vpp, classes] by add-then-remove, None when they don't fit.

    Options are taken one layer at a time in order of seconds per byte saved (a swap costs the host link's time), then
    dropped one layer at a time, dearest first, while the stage still fits.
    """
    applied = np.zeros((problem.pp, len(problem.options)), dtype=np.int64)

    def price(index: int) -> float:
        option = problem.options[index]
        seconds = option.extra_backward_s + 2.0 * option.swap_bytes / problem.host_link_bytes_per_s
        return seconds / max(option.saved_bytes, 1e-30)

    cheap_first = sorted(range(len(problem.options)), key=price)
    for stage in range(problem.pp):
        for index in cheap_first:
            if one_fits(problem, layout, applied, stage):
                break
            applied[stage, index] = _enough(problem, layout, applied, stage, index)
        if not one_fits(problem, layout, applied, stage):
            return None
        drop_excess(problem, layout, applied, stage, list(reversed(cheap_first)))
    return applied


def _enough(problem: InnerProblem, layout: Ints, applied: Ints, stage: int, option: int) -> int:
    """The fewest layers under an option with which a stage fits, or as many as may be."""
    counts = np.arange(int(layout[stage, :, problem.options[option].layer_class].sum()) + 1)
    layouts, tried = _with_counts(layout, applied, stage, option, counts)
    fit, legal = stage_fits(problem, layouts, tried)[:, stage], legal_options(problem, layouts, tried)
    ends = fit | ~np.append(legal[1:], False)
    return int(ends.argmax())


def _with_counts(layout: Ints, applied: Ints, stage: int, option: int, counts: Ints) -> tuple[Ints, Ints]:
    """A layout [n, ...], and its options with other counts of layers of a stage under one of them [n, pp, options]."""
    tried = np.repeat(applied[None], len(counts), axis=0)
    tried[:, stage, option] = counts
    return np.broadcast_to(layout, (len(counts), *layout.shape)), tried


def greedy(evaluator: Evaluator, layouts: Ints) -> InnerPlan | None:
    """The best layout [n, pp, vpp, classes] under the greedy's options: the baseline to compare with."""
    best: InnerPlan | None = None
    for layout in layouts:
        applied = greedy_options(evaluator.problem, layout)
        if applied is not None and fits(evaluator.problem, layout[None], applied[None])[0]:
            plan = evaluator.plan(layout, applied)
            if best is None or plan.step_s < best.step_s:
                best = plan
    return best


def polish(evaluator: Evaluator, plan: InnerPlan) -> InnerPlan:
    """Drop what memory doesn't need, dearest first; then let stages share settings where the schedule doesn't mind."""
    problem = evaluator.problem
    if problem.uniform_options or not plan.applied.any():
        return plan
    applied = plan.applied.copy()
    order = sorted(
        range(len(problem.options)),
        key=lambda i: (-problem.options[i].extra_backward_s, -problem.options[i].swap_bytes, i),
    )
    for stage in range(problem.pp):
        drop_excess(problem, plan.layout, applied, stage, order)
    slim = evaluator.plan(plan.layout, applied)
    return _share_settings(evaluator, slim if slim.step_s <= plan.step_s else plan)


def drop_excess(problem: InnerProblem, layout: Ints, applied: Ints, stage: int, order: Sequence[int]) -> None:
    """Drop layers of a stage's options that memory doesn't need, one at a time, in an order of options."""
    for index in order:
        fewer = np.arange(applied[stage, index])[::-1]
        if len(fewer):
            fit = stage_fits(problem, *_with_counts(layout, applied, stage, index, fewer))[:, stage]
            applied[stage, index] -= np.append(fit, False).argmin()


def one_fits(problem: InnerProblem, layout: Ints, applied: Ints, stage: int) -> bool:
    """Whether a stage of one plan is within the card's and the host's memory."""
    return bool(stage_fits(problem, layout[None], applied[None])[0, stage])


def _share_settings(evaluator: Evaluator, plan: InnerPlan) -> InnerPlan:
    """Give a stage the setting that most other stages have, if the step stays as fast."""
    settings, counts = np.unique(plan.applied, axis=0, return_counts=True)
    best, problem = plan, evaluator.problem
    for common in settings[np.argsort(-counts, kind="stable")]:
        for stage in range(problem.pp):
            alike, others = ((best.applied == setting).all(axis=1) for setting in (best.applied[stage], common))
            if alike.sum() > 1 or not others.any() or others[stage] or not best.applied[stage].any():
                continue  # no setting less
            applied = best.applied.copy()
            applied[stage] = common
            if one_fits(problem, best.layout, applied, stage) and _legal(problem, best.layout, applied):
                plan = evaluator.plan(best.layout, applied)
                if plan.step_s <= best.step_s:
                    best = plan
    return best


def _legal(problem: InnerProblem, layout: Ints, applied: Ints) -> bool:
    return bool(legal_options(problem, layout[None], applied[None])[0])
