"""Sets of memory options that are on for all layers or none, as some targets launch them: which may be the best."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.stages.inner_problem import over_chunks
from autodeploy.search.bounds.problem_bound import relax_bounds
from autodeploy.search.choices.layouts import to_layout
from autodeploy.search.choices.memory_options import uniform_choices
from autodeploy.search.placement.evaluate import improve
from autodeploy.search.placement.stage_choices import StageChoices, fits
from autodeploy.stack.memory_choices import WHOLE
from cost_models.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.search.placement.evaluate import Evaluator, InnerPlan
    from cost_models.arrays import Bools, Floats, Ints
    from cost_models.schedule import SchedulePath

MOST_TEMPLATE_ROWS = 2048
FIRST_BATCH, NEXT_BATCHES = 8, 64
"""Simulated at once, the most promising first: the first few rule out most of the rest."""


def by_bound(problem: InnerProblem) -> tuple[Ints, Floats]:
    """`undominated_sets` with a bound of each, the least first: masks [sets, options], seconds [sets]."""
    return _ordered(problem, undominated_sets(problem))


def _ordered(problem: InnerProblem, masks: Ints) -> tuple[Ints, Floats]:
    low = relax_bounds(problem, masks)
    order = np.argsort(low, kind="stable")
    return masks[order], low[order]


def promising_sets(problem: InnerProblem, layouts: int) -> Ints:
    """`undominated_sets` for one batch of so many layouts: all, or those of the least bounds of too many."""
    masks, most = undominated_sets(problem), _most_sets(layouts)
    if len(masks) <= most:
        return masks
    masks, low = _ordered(problem, masks)
    return masks[:most][np.isfinite(low[:most])]


def _most_sets(layouts: int) -> int:
    return max(1, MOST_TEMPLATE_ROWS // max(1, layouts))


def quick_plan(
    evaluator: Evaluator,
    masks: Ints,
    sizes: Ints,
    below_s: float = float("inf"),
    moves: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> InnerPlan | None:
    """The fastest of some layouts [n, parts] under sets of options, the first in one batch, after some moves.

    masks : sets [sets, options], the most promising first. None where nothing is faster than below_s.
    """
    problem, masks = evaluator.problem, masks[: _most_sets(len(sizes))]
    if not len(masks):
        return None
    layout, applied = under_sets(problem, masks, to_layout(problem, sizes))
    ok = np.flatnonzero(fits(problem, layout, applied))
    plans = evaluator.timed(layout[ok], applied[ok])
    fastest: tuple[int, InnerPlan] | None = None
    cuts: list[SchedulePath] = []
    order = np.argsort(plans.least_s, kind="stable")
    for batch in np.split(order, range(FIRST_BATCH, len(order), NEXT_BATCHES)) if len(ok) else ():
        if plans.least_s[batch[0]] >= below_s or stop():
            break
        if fastest is not None and not cuts:
            cuts.append(evaluator.critical_path(fastest[1].layout, fastest[1].applied))
        faster = evaluator.fastest(plans, batch, below_s, cuts)
        if faster is not None:
            fastest, below_s = faster, faster[1].step_s
            cuts.clear()
    if fastest is None:
        return None
    chosen, plan = fastest
    return improve(evaluator, StageChoices(problem, masks[ok[chosen] // len(sizes)]), plan, moves, stop)


def under_sets(problem: InnerProblem, masks: Ints, layouts: Ints) -> tuple[Ints, Ints]:
    """All layouts under each set of options on all their layers: layout [sets x n, ...], applied [sets x n, ...]."""
    applied = masks[:, None, None, :] * over_chunks(layouts)[..., problem.classes_of_options]
    return np.tile(layouts, (len(masks), 1, 1, 1)), applied.reshape(len(masks) * len(layouts), *applied.shape[2:])


def with_options(problem: InnerProblem, mask: Ints) -> InnerProblem:
    """The problem whose layers have the options of a mask built in: no choice is left.

    The time of swapping that computation doesn't hide stays out of the layers: it depends on what a chunk holds.
    """
    classes = list(problem.classes)
    for option, on in zip(problem.options, mask, strict=True):
        if on:
            layer = classes[option.layer_class]
            classes[option.layer_class] = layer._replace(
                backward_s=layer.backward_s + option.extra_backward_s,
                activation_bytes=layer.activation_bytes - option.saved_bytes,
            )
    return replace(problem, classes=tuple(classes), options=())


def set_problems(
    problems: Sequence[InnerProblem], target_bound_s: float
) -> tuple[list[tuple[float, InnerProblem]], float]:
    """One problem with each set of options that may be faster than target_bound_s, and the bound of all other sets.

    problems : the same candidate without recomputing whole layers and, maybe, with it. Problems come with their bounds,
    the least first.
    """
    with_sets, others_s = [], float("inf")
    for number, problem in enumerate(problems):
        masks = undominated_sets(problem)
        if number:
            # Without whole layers the first problem, which needs less room for them, has the same sets.
            whole = np.array([option.name == WHOLE for option in problem.options], dtype=np.bool_)
            masks = masks[masks[:, whole].any(axis=1)]
        low = relax_bounds(problem, masks)
        with_sets += [
            (float(low[row]), with_options(problem, masks[row])) for row in np.flatnonzero(low < target_bound_s)
        ]
        others_s = min(others_s, float(low[low >= target_bound_s].min(initial=np.inf)))
    return sorted(with_sets, key=lambda each: each[0]), others_s


def undominated_sets(problem: InnerProblem) -> Ints:
    """Masks [sets, options] of options that no other set beats in time, swap and memory of every class."""
    masks = uniform_choices(problem)
    saved = np.zeros((len(masks), len(problem.classes)))
    cost = np.zeros((len(masks), 2 * len(problem.classes)))
    for index, option in enumerate(problem.options):
        on = masks[:, index]
        saved[:, option.layer_class] += on * option.saved_bytes
        cost[:, 2 * option.layer_class] += on * option.extra_backward_s
        cost[:, 2 * option.layer_class + 1] += on * option.swap_bytes
    order = np.lexsort((masks.sum(axis=1), -saved.sum(axis=1), cost.sum(axis=1)))
    sets: Ints = masks[order[_undominated(np.concatenate([cost, -saved], axis=1)[order])]]
    return sets


@compiled
def _undominated(price: Floats) -> Bools:
    """Rows [n] that no row before is as low as in every column of price [n, columns]."""
    n, columns = price.shape
    kept = np.ones(n, dtype=np.bool_)
    for row in range(n):
        for other in range(row):
            column = 0
            while kept[other] and column < columns and price[other, column] <= price[row, column]:
                column += 1
            if kept[other] and column == columns:
                kept[row] = False
                break
    return kept
