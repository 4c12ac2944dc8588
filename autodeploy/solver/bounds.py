"""A lower bound on the step time of every layout and every choice of options, cheap enough for every candidate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.solver.hidden_shares import most_hidden_s
from autodeploy.solver.layouts import most_layers_per_chunk
from autodeploy.solver.memory_options import conflicts

if TYPE_CHECKING:
    from autodeploy.evaluation.inner_problem import Floats, InnerProblem, MemoryOption

RELAXATION: Final = "each stage alone with its cheapest layers: its work and ramp, memory by the best option"


@dataclass(frozen=True, eq=False)
class StageRoom:
    """time_s [pp, layers + 1]: makespan if the stage held so many layers, at least; inf where they don't fit.

    spare_bytes [pp, layers + 1]: memory left with everything recomputed or swapped, at most.
    """

    time_s: Floats
    spare_bytes: Floats


def relax_bound(problem: InnerProblem) -> float:
    """Lower bound on `step_s` [s]; inf when the layers fit on no layout.

    Every layer must be somewhere: the bound is the least T for which the stages together have room for all layers
    within T. A stage with n layers needs M times its work and the ramp before it (the first forward comes down, the
    last backward goes up through the first chunks of the stages before), or with 1f1b and M > P the path
    X + (M - 1) x_p - (P - 1 - p) F_p (X: one micro batch through the whole pipeline); each with its n cheapest layers.
    """
    bound = _room_bound(problem, problem.layers)
    if sum(1 for layers in problem.layers if layers) > 1:
        # A cheap class can fill only so much: place each class alone as well.
        for number, layers in enumerate(problem.layers):
            if layers and np.isfinite(bound):
                alone = tuple(n if c == number else 0 for c, n in enumerate(problem.layers))
                bound = max(bound, _room_bound(replace(problem, layers=alone, min_layers_per_chunk=0), problem.layers))
    return bound + problem.tail_s


def _room_bound(problem: InnerProblem, all_layers: tuple[int, ...]) -> float:
    whole = least_work_s(replace(problem, layers=all_layers))
    room = stage_room(problem, whole)
    if problem.total_layers == 0:
        return float(max(room.time_s[:, 0].max(), 0.0))
    least = room.time_s[:, min(problem.min_layers_per_chunk * problem.vpp, problem.total_layers)].max()
    copies = 2 if problem.schedule == "dualpipe" else 1
    needed = np.sort(room.time_s[:, 1:], axis=None)
    place = copies * problem.total_layers - 1
    if place >= len(needed) or not np.isfinite(needed[place]):
        return float("inf")
    return float(max(needed[place], least, 0.0))


def least_work_s(problem: InnerProblem) -> float:
    """Forward and backward of one micro batch through all layers and pieces, without options."""
    layers = sum(n * (c.forward_s + c.backward_s) for n, c in zip(problem.layers, problem.classes, strict=True))
    pieces = sum(p.cost.forward_s + p.cost.backward_s for p in problem.pieces)
    return layers + pieces + 2.0 * problem.blocking_p2p_s * problem.pp * problem.vpp


def stage_room(problem: InnerProblem, whole_s: float | None = None) -> StageRoom:
    """What each stage needs at least for any number of layers, whatever its chunks and options.

    whole_s: one micro batch through the whole pipeline, at least (None: that of the problem's own layers).
    """
    whole = least_work_s(problem) if whole_s is None else whole_s
    copies = 2 if problem.schedule == "dualpipe" else 1
    most = most_layers_per_chunk(problem) * problem.vpp
    layers = np.arange(problem.total_layers * (copies if problem.total_layers else 1) + 1)
    time = np.empty((problem.pp, len(layers)))
    spare = np.empty_like(time)
    counts = problem.in_flight if problem.in_flight.ndim == 3 else problem.in_flight[:, None, :]
    for stage in range(problem.pp):
        used, missing, saving = _stage_bytes(
            problem, stage, np.unique(counts[stage], axis=0).astype(np.float64), len(layers)
        )
        spare[stage] = problem.limit_bytes - used
        extra = np.maximum(missing, 0.0) * saving
        time[stage] = _stage_time(problem, stage, len(layers), extra, whole)
    time[spare < 0.0] = np.inf
    time[:, layers > most] = np.inf
    # A stage that can hold n layers can be timed with fewer: room grows with T.
    return StageRoom(np.maximum.accumulate(time, axis=1), spare)


def _stage_time(problem: InnerProblem, stage: int, count: int, extra: Floats, whole: float) -> Floats:
    # A DualPipe chunk sees the micro batches of one direction.
    m = problem.micro_batches // 2 if problem.schedule == "dualpipe" else problem.micro_batches
    pieces = [p.cost for p in problem.pieces if p.stage == stage]
    send = 2.0 * problem.blocking_p2p_s * problem.vpp
    hidden = most_hidden_s(problem)
    work = _cheapest(problem, np.array([c.forward_s + c.backward_s for c in problem.classes]) - hidden, count)
    own = sum(p.forward_s + p.backward_s for p in pieces) + send
    time = m * (work + own + extra) + ramp_s(problem, stage)
    if problem.schedule == "1f1b" and m > problem.pp:
        deeper = problem.pp - 1 - stage
        weights = [(m - 1) * (c.forward_s + c.backward_s) - deeper * c.forward_s for c in problem.classes]
        path = _cheapest(problem, np.array(weights), count) + (m - 1) * (own + extra)
        path -= deeper * (sum(p.forward_s for p in pieces) + problem.blocking_p2p_s)
        time = np.maximum(time, whole + path)
    return time


def ramp_s(problem: InnerProblem, stage: int) -> float:
    """First forward down to a stage and last backward up from it, through the chunk 0 of the stages before, at least.

    Neither is ever in a pair. dualpipe enters from both ends: its nearer half may be the other one, so nothing counts.
    """
    if problem.schedule == "dualpipe" or not stage:
        return 0.0
    layers = [c.forward_s + c.backward_s for c, n in zip(problem.classes, problem.layers, strict=True) if n]
    each = problem.min_layers_per_chunk * min(layers, default=0.0)
    each += 2.0 * (problem.p2p_s + problem.blocking_p2p_s)
    pieces = [p.cost for p in problem.pieces if p.stage < stage and p.chunk == 0]
    first = sum(p.forward_s + p.backward_s for p in pieces)
    return float(stage * each + first)


def _stage_bytes(problem: InnerProblem, stage: int, moments: Floats, count: int) -> tuple[Floats, Floats, float]:
    """Least bytes [n] with all savings, least bytes above the limit without any [n], and seconds per byte saved."""
    pieces = [p for p in problem.pieces if p.stage == stage]
    static = problem.fixed_bytes[stage] + sum(p.cost.static_bytes for p in pieces)
    fixed = np.full(len(moments), static)
    for p in pieces:
        fixed += p.cost.activation_bytes * moments[:, p.chunk]
    low, high = moments.min(axis=1)[:, None], moments.max(axis=1)[:, None]
    own = np.array([c.static_bytes for c in problem.classes])
    kept = np.array([c.activation_bytes for c in problem.classes])
    lean = kept - np.array([most_saved(problem.options, i) for i in range(len(problem.classes))])
    weights = own + np.minimum(0.0, lean) * high + np.maximum(0.0, lean) * low
    used = (fixed[:, None] + _cheapest(problem, weights, count)).max(axis=0)
    missing = (fixed[:, None] + _cheapest(problem, own + kept * low, count)).max(axis=0) - problem.limit_bytes
    ratios = [o.extra_backward_s / (o.saved_bytes * moments.max()) for o in problem.options if o.saved_bytes > 0.0]
    return used, missing, min(ratios, default=0.0)


def _cheapest(problem: InnerProblem, weights: Floats, count: int) -> Floats:
    """Sum of the n smallest layer weights, n = 0 .. count - 1; each class offers as many layers as it has.

    weights [..., classes] -> [..., count].
    """
    copies = 2 if problem.schedule == "dualpipe" else 1
    each = np.sort(np.repeat(weights, np.array(problem.layers) * copies, axis=-1), axis=-1)
    sums = np.cumsum(each, axis=-1)
    return np.asarray(np.concatenate([np.zeros((*sums.shape[:-1], 1)), sums], axis=-1)[..., :count])


def most_saved(options: tuple[MemoryOption, ...], layer_class: int) -> float:
    """Most bytes that one layer of a class can free: the heaviest set of options that don't compete."""
    return _most_saved(options)[layer_class] if options else 0.0


@lru_cache(maxsize=512)
def _most_saved(options: tuple[MemoryOption, ...]) -> dict[int, float]:
    rival = conflicts(options)

    def heaviest(left: frozenset[int]) -> float:
        if not left:
            return 0.0
        option = max(left, key=lambda i: (len(rival[i] & left), -i))
        without = left - {option}
        taken = options[option].saved_bytes + heaviest(without - rival[option])
        return taken if not rival[option] & left else max(taken, heaviest(without))

    classes = {option.layer_class for option in options}
    found = {c: heaviest(frozenset(i for i, o in enumerate(options) if o.layer_class == c)) for c in classes}
    return _Zero(found)


class _Zero(dict[int, float]):
    """Classes without options save nothing."""

    def __missing__(self, key: int) -> float:
        return 0.0


def binding_stage(problem: InnerProblem) -> tuple[int, float]:
    """The stage with least memory for an even share of the layers with everything saved, and the bytes it lacks."""
    share = -(-problem.total_layers // problem.pp)
    spare = stage_room(problem).spare_bytes[:, min(share, problem.total_layers)]
    stage = int(np.argmin(spare))
    return stage, max(0.0, -float(spare[stage]))
