"""Memory options one layer at a time: the articles' method, which adds by the best ratio until the stage fits and then
removes what isn't needed, and the same removal for any plan, whose stages then share settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.inner.memory_options import legal_options
from autodeploy.solver.inner.stage_choices import fits, stage_fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.evaluation.stages.inner_problem import InnerProblem, Ints
    from autodeploy.solver.inner.evaluate import Evaluator, InnerPlan


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
            for _ in range(int(layout[stage, :, problem.options[index].layer_class].sum())):
                if one_fits(problem, layout, applied, stage):
                    break
                applied[stage, index] += 1
                if not _legal(problem, layout, applied):
                    applied[stage, index] -= 1
                    break
        if not one_fits(problem, layout, applied, stage):
            return None
        drop_excess(problem, layout, applied, stage, list(reversed(cheap_first)))
    return applied


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
        while applied[stage, index]:
            applied[stage, index] -= 1
            if not one_fits(problem, layout, applied, stage):
                applied[stage, index] += 1
                break


def one_fits(problem: InnerProblem, layout: Ints, applied: Ints, stage: int) -> bool:
    """Whether a stage of one plan is within the card's and the host's memory."""
    return bool(stage_fits(problem, layout[None], applied[None])[0, stage])


def _share_settings(evaluator: Evaluator, plan: InnerPlan) -> InnerPlan:
    """Give a stage the setting that most other stages have, if the step stays as fast."""
    settings, counts = np.unique(plan.applied, axis=0, return_counts=True)
    best, problem = plan, evaluator.problem
    for common in settings[np.argsort(-counts, kind="stable")]:
        for stage in range(problem.pp):
            if (best.applied[stage] == common).all() or not best.applied[stage].any():
                continue
            applied = best.applied.copy()
            applied[stage] = common
            if not (one_fits(problem, best.layout, applied, stage) and _legal(problem, best.layout, applied)):
                continue
            before, after = (len(np.unique(a, axis=0)) for a in (best.applied, applied))
            if after < before:
                plan = evaluator.plan(best.layout, applied)
                if plan.step_s <= best.step_s:
                    best = plan
    return best


def _legal(problem: InnerProblem, layout: Ints, applied: Ints) -> bool:
    return bool(legal_options(problem, layout[None], applied[None])[0])
