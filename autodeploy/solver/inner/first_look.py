"""A first look at a candidate: its fastest template, with memory choices that are cheap to find."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.stages.inner_problem import chunk_times, stage_bytes
from autodeploy.solver.inner.evaluate import Evaluator, InnerSolution
from autodeploy.solver.inner.layouts import to_layout
from autodeploy.solver.inner.memory_options import WHOLE
from autodeploy.solver.inner.solve import starts
from autodeploy.solver.inner.stage_choices import stage_fits
from autodeploy.solver.inner.uniform import MOST_TEMPLATE_ROWS, by_bound, quick_plan, under_sets

if TYPE_CHECKING:
    from autodeploy.evaluation.stages.inner_problem import Floats, InnerProblem, Ints


def best_template(problem: InnerProblem) -> InnerSolution:
    """The fastest template of a problem; nothing is proven of it, nor where none fits.

    All layers of a stage have the same memory choices, or all of the model where the problem's options are uniform.
    """
    even = replace(problem, uniform_options=True)
    masks, low = by_bound(even)
    evaluator, sizes = Evaluator(problem), starts(problem)
    if problem.uniform_options:
        best = quick_plan(evaluator, (masks, low), sizes)
    else:
        layout, applied = _by_stage(problem, masks, low, to_layout(problem, sizes))
        found = evaluator.fastest(evaluator.timed(layout, applied), np.arange(len(layout))) if len(layout) else None
        best = None if found is None else found[1]
    return InnerSolution("pruned" if best is None else "feasible", best)


def _by_stage(problem: InnerProblem, masks: Ints, low: Floats, layouts: Ints) -> tuple[Ints, Ints]:
    """Layouts on which every stage fits under some set of options, and for each stage the set that adds least time,
    on no more layers than it takes.
    """
    rows = np.flatnonzero(np.isfinite(low))[: max(1, MOST_TEMPLATE_ROWS // len(layouts))]
    if not len(rows):
        return layouts[:0], np.zeros((0, problem.pp, len(problem.options)), dtype=np.int64)
    layout, applied = under_sets(problem, masks[rows], layouts)
    sets = len(rows)
    whole = [number for number, option in enumerate(problem.options) if option.name == WHOLE]
    if whole and problem.vpp == 1:
        partly = ~applied[..., whole].any(axis=(1, 2))
        mixed = _with_whole_layers(problem, whole, layout[partly], applied[partly])
        layout, applied = np.concatenate([layout, layout[partly]]), np.concatenate([applied, mixed])
        sets = len(layout) // len(layouts)
    times = chunk_times(problem, layout, applied)
    added = (times.forward_s + times.backward_s).sum(axis=-1)
    added[~stage_fits(problem, layout, applied)] = np.inf
    added = added.reshape(sets, len(layouts), problem.pp)
    chosen = added.argmin(axis=0)
    fit = np.isfinite(added.min(axis=0)).all(axis=1)
    every = applied.reshape(sets, len(layouts), *applied.shape[1:])
    found = np.take_along_axis(every, chosen[None, :, :, None], axis=0)[0][fit]
    return layouts[fit], _lightened(problem, layouts[fit], found)


def _with_whole_layers(problem: InnerProblem, whole: list[int], layout: Ints, applied: Ints) -> Ints:
    """Options [n, pp, options] of stages with one chunk, whole layers recomputed instead on as many as don't fit."""
    held, applied = _held(problem), applied.copy()
    over = stage_bytes(problem, layout, applied) - problem.limit_bytes
    totals = layout.sum(axis=2)
    saved = np.array([option.saved_bytes for option in problem.options])
    for number in sorted(whole, key=lambda each: -problem.layers[problem.options[each].layer_class]):
        layers = totals[..., problem.options[number].layer_class]
        others = [
            other
            for other, option in enumerate(problem.options)
            if option.layer_class == problem.options[number].layer_class and other != number
        ]
        kept = saved[number] - (applied[..., others] @ saved[others]) / np.maximum(layers, 1)
        gain = np.maximum(kept * held, 1.0)
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
    held = _held(problem)
    link = problem.host_link_bytes_per_s
    price = [max(o.extra_backward_s, o.swap_bytes / link) / max(o.saved_bytes, 1.0) for o in problem.options]
    spare = problem.limit_bytes - stage_bytes(problem, layout, applied)
    applied = applied.copy()
    for option in np.argsort(price, kind="stable")[::-1]:
        each = np.maximum(problem.options[option].saved_bytes * held, 1.0)
        less = np.minimum(np.floor(spare / each), applied[..., option]).astype(np.int64)
        applied[..., option] -= less
        spare -= less * each
    return applied
