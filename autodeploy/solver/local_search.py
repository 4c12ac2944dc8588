"""From a layout to better ones: move one layer at a time, with the simulated schedule as the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.solver.layouts import neighbours, to_layout, to_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.inner_problem import Ints
    from autodeploy.solver.evaluate import Evaluator, Incumbent
    from autodeploy.solver.stage_choices import StageChoices

BATCH: Final = 64
MOST: Final = 192
"""Layouts simulated a move: the closed form of the rest is worse."""


def best_of(evaluator: Evaluator, choices: StageChoices, sizes: Ints, below_s: float) -> Incumbent | None:
    """The fastest of some layouts [n, parts] that fits and is faster than below_s; ties go to the first.

    Layouts come in the order of their closed form without options, which no choice of options can beat; at most MOST of
    them get options and a simulation.
    """
    if not len(sizes):
        return None
    layout = to_layout(evaluator.problem, sizes)
    bare = evaluator.bare_s(layout)
    order = np.argsort(bare, kind="stable")[:MOST]
    best: Incumbent | None = None
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        rows = rows[bare[rows] < below_s]
        if not len(rows):
            break
        applied, ok = choices.complete(layout[rows])
        if not ok.any():
            continue
        rows, applied = rows[ok], applied[ok]
        step = evaluator.step_s(layout[rows], applied, below_s)
        place = int(np.argmin(step))
        if step[place] < below_s:
            best = evaluator.incumbent(layout[rows[place]], applied[place])
            below_s = best.step_s
    return best


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
            evaluator,
            choices,
            neighbours(evaluator.problem, to_sizes(evaluator.problem, best.layout)),
            best.step_s * (1.0 - 1e-12),
        )
        if better is None:
            break
        best = better
    return best
