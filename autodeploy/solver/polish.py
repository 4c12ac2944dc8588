"""Make a plan simpler without making it slower: fewer layers recomputed or swapped, fewer distinct settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.memory_options import legal_options
from autodeploy.solver.stage_choices import fits, stage_fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.evaluation.inner_problem import InnerProblem, Ints
    from autodeploy.solver.evaluate import Evaluator, Incumbent


def polish(evaluator: Evaluator, plan: Incumbent) -> Incumbent:
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
    slim = evaluator.incumbent(plan.layout, applied)
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


def _share_settings(evaluator: Evaluator, plan: Incumbent) -> Incumbent:
    """Give a stage the setting that most other stages have, if the step stays as fast."""
    settings, counts = np.unique(plan.applied, axis=0, return_counts=True)
    best = plan
    for common in settings[np.argsort(-counts, kind="stable")]:
        for stage in range(evaluator.problem.pp):
            if (best.applied[stage] == common).all() or not best.applied[stage].any():
                continue
            applied = best.applied.copy()
            applied[stage] = common
            if not _allowed(evaluator, best.layout, applied):
                continue
            before, after = (len(np.unique(a, axis=0)) for a in (best.applied, applied))
            if after < before:
                plan = evaluator.incumbent(best.layout, applied)
                if plan.step_s <= best.step_s:
                    best = plan
    return best


def _allowed(evaluator: Evaluator, layout: Ints, applied: Ints) -> bool:
    problem = evaluator.problem
    return bool(
        fits(problem, layout[None], applied[None])[0] and legal_options(problem, layout[None], applied[None])[0]
    )
