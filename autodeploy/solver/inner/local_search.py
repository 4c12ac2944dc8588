"""From a layout to better ones: move one layer at a time, with the simulated schedule as the judge."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.solver.inner.layouts import moved, moves, to_layout, to_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.stages.inner_problem import Floats, Ints
    from autodeploy.solver.inner.evaluate import Evaluator, InnerPlan
    from autodeploy.solver.inner.stage_choices import StageChoices

BATCH: Final = 64
MOST: Final = 192
"""Layouts simulated a move: the closed form of the rest is worse."""


CHUNK: Final = 4_000_000
"""Layers counted at once, over layouts, stages, chunks and classes: what they need stays below some 300 MB."""


def best_of(
    evaluator: Evaluator, choices: StageChoices, sizes: Ints, below_s: float, stop: Callable[[], bool] | None = None
) -> InnerPlan | None:
    """The fastest of some layouts [n, parts] that fits and is faster than below_s; ties go to the first.

    Layouts come in the order of their closed form without options, which no choice of options can beat; at most MOST of
    them get options and a simulation. Once `stop` says so, the best of those that were looked at.
    """
    return _best_of(evaluator, choices, len(sizes), lambda rows: sizes[rows], below_s, stop or (lambda: False))


def _best_of(
    evaluator: Evaluator,
    choices: StageChoices,
    count: int,
    sizes_of: Callable[[Ints], Ints],
    below_s: float,
    stop: Callable[[], bool],
) -> InnerPlan | None:
    """`best_of` layouts that are made when they are looked at: [rows, parts] of row numbers below count."""
    problem = evaluator.problem
    bare = _bare_s(evaluator, count, sizes_of, stop)
    order = np.argsort(bare, kind="stable")[:MOST]
    best: InnerPlan | None = None
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        rows = rows[bare[rows] < below_s]
        if not len(rows) or (start and stop()):
            break
        layout = to_layout(problem, sizes_of(rows))
        applied, ok = choices.complete(layout)
        if not ok.any():
            continue
        plans = evaluator.timed(layout[ok], applied[ok])
        found = evaluator.fastest(plans, np.arange(len(plans.least_s)), below_s)
        if found is not None:
            best = found[1]
            below_s = best.step_s
    return best


def _bare_s(evaluator: Evaluator, count: int, sizes_of: Callable[[Ints], Ints], stop: Callable[[], bool]) -> Floats:
    """Closed forms of layouts without options [count], some at a time; inf of those that no time was left for."""
    problem = evaluator.problem
    at_once = max(1, CHUNK // (problem.pp * problem.vpp * (problem.vpp + len(problem.classes) + len(problem.options))))
    bare = np.full(count, np.inf)
    for start in range(0, count, at_once):
        if start and stop():
            break
        rows = np.arange(start, min(start + at_once, count))
        bare[rows] = evaluator.bare_s(to_layout(problem, sizes_of(rows)))
    return bare


def improve(
    evaluator: Evaluator, choices: StageChoices, start: InnerPlan, most: int, stop: Callable[[], bool]
) -> InnerPlan:
    """Steepest descent over single-layer moves, at most `most` of them."""
    best = start
    for _ in range(most):
        if stop():
            break
        sizes = to_sizes(evaluator.problem, best.layout)
        near = moves(evaluator.problem, sizes)
        # A tie is no improvement, whatever the last bits say.
        below_s = best.step_s * (1.0 - 1e-12)
        better = _best_of(evaluator, choices, len(near), partial(_after, sizes, near), below_s, stop)
        if better is None:
            break
        best = better
    return best


def _after(sizes: Ints, near: Ints, rows: Ints) -> Ints:
    return moved(sizes, near[rows])
