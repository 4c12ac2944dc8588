"""The stage bound of one inner problem: a batch of one, or of one for each set of options that is on for all layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from autodeploy.costs.stages.inner_problem import least_start_bytes
from autodeploy.messages import Message
from autodeploy.search.bounds.paths import pair_overlap_bounds
from autodeploy.search.bounds.stage_bound import Batch, least_bound_s, most_layers
from autodeploy.search.choices.layer_choices import COSTS_OF_PARTS, Choices, Part, choices_of, prices
from autodeploy.search.choices.layouts import most_layers_per_chunk
from cost_models.arrays import product

if TYPE_CHECKING:
    from autodeploy.costs.stages.inner_problem import InnerProblem, LayerClass
    from cost_models.arrays import Floats, Ints


RELAXATION: Final = Message("solver.stage_bound")


def relax_bound(problem: InnerProblem) -> float:
    """Lower bound on `step_s` [s] of every layout and every choice of options; inf when the layers fit on no layout."""
    if least_start_bytes(problem) > problem.limit_bytes:
        return float("inf")
    return float(least_bound_s(batch_of(problem))[0]) + problem.tail_s


def relax_bounds(problem: InnerProblem, masks: Ints) -> Floats:
    """`relax_bound` for each set of options [sets, options], built into all layers: no choice is left [sets]."""
    if least_start_bytes(problem) > problem.limit_bytes:
        return np.full(len(masks), np.inf)
    return least_bound_s(batch_of(problem, masks)) + problem.tail_s


def room_for_layers(problem: InnerProblem, makespan_s: float = float("inf")) -> Ints:
    """Most layers that each stage can hold with everything recomputed or swapped, within a makespan [pp]."""
    return np.asarray(np.maximum(most_layers(batch_of(problem), makespan_s)[0], 0.0), dtype=np.int64)


def batch_of(problem: InnerProblem, masks: Ints | None = None, *, every_class: bool = False) -> Batch:
    """One inner problem as a batch of one, without the classes that have no layers, or with every one.

    masks : instead one for each set of options [sets, options], built into all layers.
    """
    shares = pair_overlap_bounds(problem)
    forward, backward = shares[0] if shares else np.zeros((2, len(problem.classes)))
    n = 1 if masks is None else len(masks)
    none = np.zeros(n)

    def part(cost: LayerClass, choices: Choices, count: int, **of: Any) -> Part:
        same = {name: none + getattr(cost, name) for name in COSTS_OF_PARTS}
        return Part(**(same | {"hidden_forward_s": none, "hidden_backward_s": none} | of), choices=choices, count=count)

    def layer(i: int) -> Part:
        cost = problem.classes[i]
        hidden = {"hidden_forward_s": none + forward[i], "hidden_backward_s": none + backward[i]}
        if masks is None:
            return part(cost, choices_of(problem.options, i), problem.layers[i], **hidden)
        extra_s, saved = _options_on(problem, masks, i)
        on = {"backward_s": cost.backward_s + extra_s, "activation_bytes": cost.activation_bytes - saved}
        return part(cost, Choices.none(n), problem.layers[i], **hidden, **on)

    wanted = [i for i, layers in enumerate(problem.layers) if layers or every_class or not problem.total_layers]
    return Batch(
        problem.schedule,
        problem.pp,
        problem.vpp,
        np.full(n, problem.micro_batches),
        tuple(layer(i) for i in wanted),
        tuple(part(p.cost, Choices.none(n), 1, stage=p.stage, chunk=p.chunk) for p in problem.pieces),
        np.broadcast_to(problem.limit_bytes - problem.fixed_bytes, (n, problem.pp)),
        none + problem.blocking_p2p_s,
        none + problem.p2p_s,
        problem.min_layers_per_chunk,
        most_layers_per_chunk(problem),
    )


def _options_on(problem: InnerProblem, masks: Ints, layer_class: int) -> tuple[Floats, Floats]:
    """Seconds added and bytes freed by each set's options on a layer of a class [sets]."""
    of_class = [i for i, option in enumerate(problem.options) if option.layer_class == layer_class]
    extra_s, saved = (
        [getattr(problem.options[i], name) for i in of_class] for name in ("extra_backward_s", "saved_bytes")
    )
    return product(masks[:, of_class], extra_s), product(masks[:, of_class], saved)


EXCEEDED: Final = 1e-6
"""A row that a solution breaks by less is kept."""


@dataclass(frozen=True, eq=False)
class Surcharges:
    """Rows constant [n] + sum of layer [n, vpp, classes] times counts <= what a micro batch adds to stage [n].

    Rows of seconds [n] are in parts of time_unit_s; the others, of bytes, must be no more than zero.
    """

    stage: Ints
    constant: Floats
    layer: Floats
    seconds: np.ndarray

    def left(self, layout: Floats) -> Floats:
        """Left side of each row for a layout [pp, vpp, classes]."""
        return np.asarray(self.constant + np.einsum("nvc,nvc->n", self.layer, layout[self.stage]))

    def broken(self, layout: Floats, extra: Floats, over: float = EXCEEDED) -> Ints:
        """Of every stage the row of seconds and the row of bytes that a fractional layout breaks most, and by
        more than `over`.

        layout [pp, vpp, classes]; extra [pp]: what a micro batch adds to each stage.
        """
        left = self.left(layout) - np.where(self.seconds, extra[self.stage], 0.0)
        rows = np.flatnonzero(left > over)
        if not len(rows):
            return rows
        kind = self.stage[rows] * 2 + self.seconds[rows]
        order = np.lexsort((-left[rows], kind))
        _, first = np.unique(kind[order], return_index=True)
        return np.asarray(rows[order[first]])


def over_limit_bytes(problem: InnerProblem, stage: Ints, in_flight: Floats) -> Floats:
    """Bytes above the limit without layers [k], with held micro batches in flight [k, vpp] in the chunks of stages."""
    over = problem.fixed_bytes[stage] - problem.limit_bytes
    for piece in problem.pieces:
        own = piece.cost.static_bytes + piece.cost.activation_bytes * in_flight[:, piece.chunk]
        over = over + np.where(stage == piece.stage, own, 0.0)
    return np.asarray(over)


def start_rows(problem: InnerProblem) -> tuple[Ints, Floats, Floats]:
    """Rows of the start: stages [k], bytes above the limit without layers [k], and of layers [k, vpp, classes]."""
    start, pp, classes = problem.starting, problem.pp, len(problem.classes)
    if start is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, problem.vpp, classes))
    fixed = np.zeros((len(start.layers), pp))
    for number, piece in enumerate(problem.pieces):
        fixed[:, piece.stage] += start.pieces[:, number]
    each = np.broadcast_to(start.layers[:, None, None], (len(fixed), pp, problem.vpp, classes))
    return np.tile(np.arange(pp), len(fixed)), fixed.ravel() - problem.limit_bytes, each.reshape(-1, *each.shape[2:])


def lean_bytes(problem: InnerProblem, in_flight: Floats) -> Floats:
    """`Part.lean_bytes` of every class at moments held [k, vpp]: [k, vpp, classes]."""
    return np.stack([part.lean_bytes(in_flight)[0] for part in batch_of(problem, every_class=True).layers], axis=-1)


def surcharges(problem: InnerProblem, time_unit_s: float) -> Surcharges | None:
    """Rows of every stage and peak moment: everything saved must fit, and at each price what saving costs.

    None where memory has no limit.
    """
    if not np.isfinite(problem.limit_bytes):
        return None
    moments, limit = problem.moments, max(problem.limit_bytes, 1.0)
    new = np.ones(moments.shape[:2], dtype=np.bool_)
    new[:, 1:] = (moments[:, 1:] != moments[:, :-1]).any(axis=2)  # stages with fewer moments repeat their last
    stage, moment = np.nonzero(new)
    at_moment = moments[stage, moment]
    over = over_limit_bytes(problem, stage, at_moment)
    layers = batch_of(problem, every_class=True).layers
    lean = lean_bytes(problem, at_moment)
    started, over_at_start, of_layers = start_rows(problem)
    parts = [
        (stage, over / limit, lean / limit, np.zeros(len(stage), dtype=np.bool_)),
        (started, over_at_start / limit, of_layers / limit, np.zeros(len(started), dtype=np.bool_)),
    ]
    # At these prices it pays some layer to free more, in some chunk.
    corners = prices(part.choices for part in layers)
    if len(corners):
        often = np.where(at_moment > 0.0, at_moment, np.maximum(at_moment.max(axis=1, keepdims=True), 1.0))
        mu = (corners[:, None] / often[:, None]).reshape(len(stage), -1)  # [k, prices]
        in_flight, place = mu[..., None] * at_moment[:, None], np.arange(mu.size * problem.vpp).reshape(*mu.shape, -1)
        layer = np.stack([part.paid_s(mu[None], in_flight.reshape(1, -1), place)[0] for part in layers], axis=-1)
        parts.append(
            (
                np.repeat(stage, mu.shape[1]),
                (mu * over[:, None]).ravel() / time_unit_s,
                layer.reshape(-1, *lean.shape[1:]) / time_unit_s,
                np.ones(mu.size, dtype=np.bool_),
            )
        )
    return Surcharges(*(np.concatenate(column) for column in zip(*parts, strict=True)))
