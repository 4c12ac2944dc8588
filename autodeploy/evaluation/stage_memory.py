"""Bytes of a stage beside weights and activations: workspace, communication buffers, runtime, fragmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.entries import at

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.stage_classes import StepClasses
    from autodeploy.strategies.candidates import Candidates
    from autodeploy.workload.operators import Floats

# Beside what is kept, a backward pass holds gradients of the tensors around one operator: about a quarter of a layer.
GRADIENT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class StageBuffers:
    """What every stage holds whatever its layers [pp] but workspace, and the limit that is left for the allocator.

    limit_bytes is the card's usable memory scaled so that sum(stage) <= limit_bytes means that the allocator's peak
    with fragmentation, communication buffers and runtime fit the card.
    """

    workspace_bytes: Floats
    communication_bytes: float
    runtime_bytes: float
    fragmentation: float
    card_limit_bytes: float

    @property
    def fixed_bytes(self) -> Floats:
        """Bytes [pp] that count against limit_bytes for every stage."""
        return self.workspace_bytes

    @property
    def limit_bytes(self) -> float:
        """Bytes that weights, gradients, optimizer, activations and workspace may take together."""
        room = self.card_limit_bytes - self.communication_bytes - self.runtime_bytes
        return room / (1.0 + self.fragmentation)

    def card_bytes(self, allocator_bytes: Floats) -> Floats:
        """Bytes on the card when the allocator holds `allocator_bytes` at its peak."""
        return np.asarray(allocator_bytes * (1.0 + self.fragmentation) + self.communication_bytes + self.runtime_bytes)


def communicator_counts(candidates: Candidates) -> Floats:
    """Communicators that a rank of each candidate is in [n], each with buffers of its own.

    World, data parallel (with and without context parallel), tensor, pipeline (two streams, embedding), context,
    model, expert, expert data and expert tensor groups, where their size is above one.
    """
    c = candidates
    count = 1 + (c.dp > 1).astype(np.float64) + (c.cp * c.dp > 1) + (c.tp > 1) + 3 * (c.pp > 1) + (c.cp > 1)
    return np.asarray(count + (c.tp * c.pp > 1) + 2 * (c.ep > 1) + (c.etp > 1))


def workspace_bytes(classes: StepClasses, index: int, *, recomputes_layers: bool) -> float:
    """Allocator bytes beyond what is kept: gradients in flight, and one whole layer where layers are recomputed."""
    widest = max(at(c.cost.activation_bytes, index) for c in classes.layers)
    return widest * (GRADIENT_SHARE + (1.0 if recomputes_layers else 0.0))


def stage_buffers(
    classes: StepClasses, candidates: Candidates, context: Context, index: int, *, recomputes_layers: bool
) -> StageBuffers:
    """Buffers of candidate `index` on each of its stages."""
    machine = context.machine
    pp = int(candidates.pp[index])
    workspace = workspace_bytes(classes, index, recomputes_layers=recomputes_layers)
    return StageBuffers(
        workspace_bytes=np.full(pp, workspace),
        communication_bytes=float(communicator_counts(candidates)[index]) * machine.communicator_bytes,
        runtime_bytes=machine.runtime_bytes,
        fragmentation=machine.fragmentation,
        card_limit_bytes=context.limit_bytes,
    )
