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
    from autodeploy.evaluation.inner_problem import Floats, InnerProblem, Ints, MemoryOption

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
    return float(_relaxed_s(problem, _own_costs(problem))[0])


def relax_bounds(problem: InnerProblem, masks: Ints) -> Floats:
    """`relax_bound` for each set of options [sets, options], built into all layers: no choice is left [sets]."""
    return _relaxed_s(problem, _masked_costs(problem, masks))


@dataclass(frozen=True, eq=False)
class _Costs:
    """Layers by class under several sets of options [sets, classes].

    lean_bytes: activations kept when everything is saved that may be. prices: seconds a byte of each option that is
    still free to use.
    """

    forward_s: Floats
    backward_s: Floats
    kept_bytes: Floats
    lean_bytes: Floats
    prices: Floats


def _own_costs(problem: InnerProblem) -> _Costs:
    forward, backward, kept = (
        np.array([[getattr(c, name) for c in problem.classes]])
        for name in ("forward_s", "backward_s", "activation_bytes")
    )
    saved = np.array([most_saved(problem.options, i) for i in range(len(problem.classes))])
    prices = [o.extra_backward_s / o.saved_bytes for o in problem.options if o.saved_bytes > 0.0]
    return _Costs(forward, backward, kept, kept - saved, np.array(prices))


def _masked_costs(problem: InnerProblem, masks: Ints) -> _Costs:
    own = _own_costs(problem)
    extra, saved = (np.zeros((len(masks), len(problem.classes))) for _ in range(2))
    for number, option in enumerate(problem.options):
        extra[:, option.layer_class] += masks[:, number] * option.extra_backward_s
        saved[:, option.layer_class] += masks[:, number] * option.saved_bytes
    kept = own.kept_bytes - saved
    return _Costs(np.broadcast_to(own.forward_s, kept.shape), own.backward_s + extra, kept, kept, np.zeros(0))


def _relaxed_s(problem: InnerProblem, costs: _Costs) -> Floats:
    whole = _least_work_s(problem, costs)
    bound = _room_bounds(problem, costs, whole)
    if sum(1 for layers in problem.layers if layers) > 1:
        # A cheap class can fill only so much: place each class alone as well.
        for number, layers in enumerate(problem.layers):
            if layers and np.isfinite(bound).any():
                alone = tuple(n if c == number else 0 for c, n in enumerate(problem.layers))
                part = replace(problem, layers=alone, min_layers_per_chunk=0)
                bound = np.maximum(bound, _room_bounds(part, costs, whole))
    return np.asarray(bound + problem.tail_s)


def _room_bounds(problem: InnerProblem, costs: _Costs, whole: Floats) -> Floats:
    """The least makespan [sets] at which the stages have room for all layers."""
    time = _rooms(problem, costs, whole)[0]
    if problem.total_layers == 0:
        return np.asarray(np.maximum(time[:, :, 0].max(axis=1), 0.0))
    least = time[:, :, min(problem.min_layers_per_chunk * problem.vpp, problem.total_layers)].max(axis=1)
    copies = problem.kind.copies
    needed = np.sort(time[:, :, 1:].reshape(len(time), -1), axis=1)
    place = copies * problem.total_layers - 1
    if place >= needed.shape[1]:
        return np.full(len(time), np.inf)
    return np.where(np.isfinite(needed[:, place]), np.maximum(np.maximum(needed[:, place], least), 0.0), np.inf)


def least_work_s(problem: InnerProblem) -> float:
    """Forward and backward of one micro batch through all layers and pieces, without options."""
    return float(_least_work_s(problem, _own_costs(problem))[0])


def _least_work_s(problem: InnerProblem, costs: _Costs) -> Floats:
    layers = (costs.forward_s + costs.backward_s) @ np.array(problem.layers, dtype=np.float64)
    pieces = sum(p.cost.forward_s + p.cost.backward_s for p in problem.pieces)
    return np.asarray(layers + (pieces + 2.0 * problem.blocking_p2p_s * problem.pp * problem.vpp))


def stage_room(problem: InnerProblem) -> StageRoom:
    """What each stage needs at least for any number of layers, whatever its chunks and options."""
    costs = _own_costs(problem)
    time, spare = _rooms(problem, costs, _least_work_s(problem, costs))
    return StageRoom(time[0], spare[0])


def _rooms(problem: InnerProblem, costs: _Costs, whole: Floats) -> tuple[Floats, Floats]:
    """`StageRoom` of several sets of options [sets, pp, layers + 1].

    whole [sets]: one micro batch through the whole pipeline, at least.
    """
    copies = problem.kind.copies
    most = most_layers_per_chunk(problem) * problem.vpp
    layers = np.arange(problem.total_layers * copies + 1)
    counts = problem.in_flight if problem.in_flight.ndim == 3 else problem.in_flight[:, None, :]
    used, missing = _stage_bytes(problem, costs, counts.astype(np.float64), len(layers))
    spare = problem.limit_bytes - used
    saving = costs.prices.min(initial=np.inf) / counts.max(axis=(1, 2)) if len(costs.prices) else np.zeros(problem.pp)
    time = _stage_time(problem, costs, np.maximum(missing, 0.0) * saving[:, None], whole)
    time[spare < 0.0] = np.inf
    time[:, :, layers > most] = np.inf
    # A stage that can hold n layers can be timed with fewer: room grows with T.
    return np.maximum.accumulate(time, axis=2), spare


def _stage_time(problem: InnerProblem, costs: _Costs, extra: Floats, whole: Floats) -> Floats:
    """Makespan [sets, pp, layers + 1]; extra: what a micro batch adds to save memory [sets, pp, layers + 1]."""
    m = problem.chunk_micro_batches  # with two copies those of one direction
    own, forward = np.zeros(problem.pp), np.zeros(problem.pp)
    for piece in problem.pieces:
        own[piece.stage] += piece.cost.forward_s + piece.cost.backward_s
        forward[piece.stage] += piece.cost.forward_s
    own += 2.0 * problem.blocking_p2p_s * problem.vpp
    both = costs.forward_s + costs.backward_s - most_hidden_s(problem)
    count = extra.shape[2]
    work = _cheapest(problem, both, count)[:, None]
    time = m * (work + own[:, None] + extra) + _ramp_s(problem, costs)[..., None]
    if problem.kind.alternates and m > problem.pp:
        deeper = np.arange(problem.pp - 1, -1, -1, dtype=np.float64)
        layer = (m - 1) * (costs.forward_s + costs.backward_s)
        path = _cheapest(problem, layer[:, None] - deeper[:, None] * costs.forward_s[:, None], count)
        path = path + (m - 1) * (own[:, None] + extra)
        path -= (deeper * (forward + problem.blocking_p2p_s))[:, None]
        time = np.maximum(time, whole[:, None, None] + path)
    return np.asarray(time)


def _ramp_s(problem: InnerProblem, costs: _Costs) -> Floats:
    """First forward down to a stage and last backward up from it, through the chunk 0 of the stages before, at least.

    [sets, pp]. Neither is ever in a pair. Where micro batches enter from both ends the nearer one may be the other, so
    nothing counts; nor does it under an order of its own, whose weight gradients may run after the way back.
    """
    ramp = np.zeros((len(costs.forward_s), problem.pp))
    if problem.kind.copies > 1 or problem.kind.own_order:
        return ramp
    some = np.array(problem.layers) > 0
    each = np.full(len(ramp), 2.0 * (problem.p2p_s + problem.blocking_p2p_s))
    if some.any():
        each += problem.min_layers_per_chunk * (costs.forward_s + costs.backward_s)[:, some].min(axis=1)
    ramp += np.arange(problem.pp) * each[:, None]
    for piece in problem.pieces:
        if piece.chunk == 0:
            ramp[:, piece.stage + 1 :] += piece.cost.forward_s + piece.cost.backward_s
    return ramp


def _stage_bytes(problem: InnerProblem, costs: _Costs, moments: Floats, count: int) -> tuple[Floats, Floats]:
    """Least bytes with all savings, and least bytes above the limit without any [sets, pp, count].

    moments [pp, moments, vpp]: micro batches in flight.
    """
    fixed = np.repeat(np.asarray(problem.fixed_bytes, dtype=np.float64)[:, None], moments.shape[1], axis=1)
    for p in problem.pieces:
        fixed[p.stage] += p.cost.static_bytes + p.cost.activation_bytes * moments[p.stage, :, p.chunk]
    low, high = (reduced[None, :, :, None] for reduced in (moments.min(axis=2), moments.max(axis=2)))
    own = np.array([c.static_bytes for c in problem.classes])
    kept, lean = (values[:, None, None] for values in (costs.kept_bytes, costs.lean_bytes))
    weights = own + np.minimum(0.0, lean) * high + np.maximum(0.0, lean) * low
    used = (fixed[..., None] + _cheapest(problem, weights, count)).max(axis=2)
    if costs.kept_bytes is costs.lean_bytes:
        missing = used
    else:
        missing = (fixed[..., None] + _cheapest(problem, own + kept * low, count)).max(axis=2)
    return used, missing - problem.limit_bytes


def _cheapest(problem: InnerProblem, weights: Floats, count: int) -> Floats:
    """Sum of the n smallest layer weights, n = 0 .. count - 1; each class offers as many layers as it has.

    weights [..., classes] -> [..., count].
    """
    copies = problem.kind.copies
    order = np.argsort(weights, axis=-1, kind="stable")
    offered = (np.array(problem.layers) * copies)[order]
    before = np.cumsum(offered, axis=-1) - offered
    cost, total = np.take_along_axis(weights, order, -1), np.zeros((*weights.shape[:-1], count))
    layers = np.arange(count)
    for place in range(weights.shape[-1]):
        taken = np.clip(layers - before[..., place, None], 0, offered[..., place, None])
        total += taken * cost[..., place, None]
    return total


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
