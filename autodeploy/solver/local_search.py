"""From a layout to better ones: move one layer at a time, with the simulated schedule as the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.layouts import neighbours, to_layout, to_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.inner_problem import Ints
    from autodeploy.solver.evaluate import Evaluator, Incumbent
    from autodeploy.solver.stage_choices import StageChoices


def best_of(evaluator: Evaluator, choices: StageChoices, sizes: Ints, below_s: float) -> Incumbent | None:
    """The fastest of some layouts [n, parts] that fits and is faster than below_s; ties go to the first."""
    if not len(sizes):
        return None
    layout = to_layout(evaluator.problem, sizes)
    applied, ok = choices.complete(layout)
    rows = np.flatnonzero(ok)
    if not len(rows):
        return None
    step = evaluator.step_s(layout[rows], applied[rows], below_s)
    best = int(np.argmin(step))
    if not step[best] < below_s:
        return None
    return evaluator.incumbent(layout[rows[best]], applied[rows[best]])


def improve(
    evaluator: Evaluator, choices: StageChoices, start: Incumbent, moves: int, stop: Callable[[], bool]
) -> Incumbent:
    """Steepest descent over single-layer moves, at most `moves` of them."""
    best = start
    for _ in range(moves):
        if stop():
            break
        # A tie is no improvement, whatever the last bits say.
        better = best_of(
            evaluator, choices, neighbours(evaluator.problem, to_sizes(evaluator.problem, best.layout)),
            best.step_s * (1.0 - 1e-12),
        )
        if better is None:
            break
        best = better
    return best
