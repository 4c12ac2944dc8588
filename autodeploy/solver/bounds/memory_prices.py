"""What memory costs a stage in time, as rows of a linear programme over its layer counts.

The prices and the reasoning are those of `stage_bound`; here the layers of each chunk are apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.solver.bounds.problem_bound import batch_of
from autodeploy.solver.inner.layer_choices import prices

if TYPE_CHECKING:
    from autodeploy.evaluation.stages.inner_problem import Floats, InnerProblem, Ints
    from autodeploy.solver.bounds.stage_bound import Batch

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
        """What each row's left side is for a layout [pp, vpp, classes]."""
        return np.asarray(self.constant + np.einsum("nvc,nvc->n", self.layer, layout[self.stage]))

    def broken(self, layout: Floats, extra: Floats) -> Ints:
        """Of every stage the row of seconds and the row of bytes that a fractional layout breaks most.

        layout [pp, vpp, classes]; extra [pp]: what a micro batch adds to each stage.
        """
        left = self.left(layout) - np.where(self.seconds, extra[self.stage], 0.0)
        rows = np.flatnonzero(left > EXCEEDED)
        if not len(rows):
            return rows
        kind = self.stage[rows] * 2 + self.seconds[rows]
        order = np.lexsort((-left[rows], kind))
        _, first = np.unique(kind[order], return_index=True)
        return np.asarray(rows[order[first]])


def surcharges(problem: InnerProblem, time_unit_s: float) -> Surcharges | None:
    """Rows of every stage and peak moment: everything saved must fit, and at each price what saving costs.

    None where memory has no limit.
    """
    if not np.isfinite(problem.limit_bytes):
        return None
    batch = batch_of(problem, empty_classes=True)
    unique = [np.unique(row, axis=0) for row in problem.moments]
    stage = np.repeat(np.arange(problem.pp), [len(rows) for rows in unique])
    held = np.concatenate(unique)
    constant = problem.fixed_bytes[stage] - problem.limit_bytes
    for piece in problem.pieces:
        own = piece.cost.static_bytes + piece.cost.activation_bytes * held[:, piece.chunk]
        constant = constant + np.where(stage == piece.stage, own, 0.0)
    return _rows(problem, batch, stage, held, constant, time_unit_s)


def _rows(
    problem: InnerProblem, batch: Batch, stage: Ints, held: Floats, constant: Floats, time_unit_s: float
) -> Surcharges:
    """Rows of moments held [k, vpp] of stages [k] with `constant` [k] bytes above the limit without layers."""
    static = np.array([c.static_bytes for c in problem.classes])
    kept = np.array([c.activation_bytes for c in problem.classes])
    saved = np.array([part.choices.most_saved_bytes[0] for part in batch.layers])
    limit = max(problem.limit_bytes, 1.0)
    lean = static + held[..., None] * (kept - saved)
    parts = [(stage, constant / limit, lean / limit, np.zeros(len(stage), dtype=np.bool_))]
    # At these prices it pays some layer to free more, in some chunk.
    corners = prices([part.choices for part in batch.layers])
    if len(corners):
        often = np.where(held > 0.0, held, np.maximum(held.max(axis=1, keepdims=True), 1.0))
        mu = (corners[:, None] / often[:, None]).reshape(len(stage), -1)  # [k, prices]
        paid = (mu[..., None] * held[:, None]).reshape(1, -1)
        shape = (*mu.shape, problem.vpp)
        gains = np.stack([part.choices.gained_s(paid)[0].reshape(shape) for part in batch.layers], axis=-1)
        layer = mu[..., None, None] * (static + held[..., None] * kept)[:, None] - gains
        parts.append(
            (
                np.repeat(stage, mu.shape[1]),
                (mu * constant[:, None]).ravel() / time_unit_s,
                layer.reshape(-1, *lean.shape[1:]) / time_unit_s,
                np.ones(mu.size, dtype=np.bool_),
            )
        )
    return Surcharges(*(np.concatenate(column) for column in zip(*parts, strict=True)))
