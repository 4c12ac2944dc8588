"""Bytes of a stage beside weights and activations: workspace, communication buffers, runtime, fragmentation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.inputs.expert_balance import worst_imbalance
from autodeploy.costs.workload.adapters import SENT_OF_A_SEQUENCE
from cost_models.hbm import MIB, communicator_bytes, warm_up_bytes

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Bools, Floats

# Beside what is kept, a backward pass holds gradients of the tensors around one operator: about a quarter of a layer.
GRADIENT_SHARE = 0.25
ADAPTIVE_BUFFERS = "adaptive_comm_buffers"
PARAMETER_BUFFERS = "parameter_buffers"
WARM_UP = "gelu_warm_up"


def on_card_bytes(allocator_bytes: Floats, outside_bytes: Floats | float, fragmentation: float) -> Floats:
    """Bytes on the card [n]: the allocator's with its fragmentation, and what is outside of it."""
    return np.asarray(allocator_bytes * (1.0 + fragmentation) + outside_bytes)


def allocator_limit_bytes(limit_bytes: float, outside_bytes: Floats | float, fragmentation: float) -> Floats:
    """Bytes that the allocator may hold so that no more than `limit_bytes` are on the card [n]."""
    return np.asarray((limit_bytes - outside_bytes) / (1.0 + fragmentation))


def builds_buffers(context: Context) -> bool:
    """Whether a run's start makes contiguous buffers of all parameters: sharded states, and nothing frozen."""
    sharded = context.distributed_optimizer and not context.fsdp
    return sharded and not context.operators.lora_rank and PARAMETER_BUFFERS in context.mechanisms


def tried_out_bytes(candidates: Candidates, context: Context) -> Floats:
    """Allocator bytes of the functions that a run's start tries out [n]; 0 where the stack tries none."""
    if WARM_UP not in context.mechanisms:
        return np.zeros(len(candidates))
    model = context.model
    width = (model.intermediate_size or 4 * model.hidden_size) / candidates.tp
    tokens = candidates.micro_batch_size.astype(np.float64) * context.sample_tokens
    return warm_up_bytes(tokens, np.asarray(width, dtype=np.float64), context.operators.element_bytes)


def communicators(candidates: Candidates, context: Context) -> list[tuple[Bools, Floats | float | None]]:
    """Communicators that a rank of each candidate may be in: where it exists [n], and bytes of its message.

    World, data parallel (with and without context parallel), tensor, pipeline (two streams, embedding), context,
    model, expert, expert data and expert tensor groups, where their size is above one. Message None: buckets of any
    size, the default buffer. Source of the messages: MindSpeed hccl_adaptive_func.py.
    """
    c, model = candidates, context.model
    tokens = c.micro_batch_size * context.sample_tokens / c.cp
    element = context.operators.element_bytes
    hidden = element * tokens * model.hidden_size
    cut = hidden / np.where(c.sequence_parallel, c.tp, 1)
    key_value = 2.0 * element * tokens * model.num_key_value_heads * model.head_dim / c.tp
    context_message = np.where(c.ulysses > 1, hidden / c.tp, 0.0) + np.where(c.cp > c.ulysses, key_value, 0.0)
    # Padded to the capacity, or at the worst moment.
    sized = ADAPTIVE_BUFFERS in context.mechanisms and model.capacity_factor is None
    most = worst_imbalance(context.loads, context.expert_ranks(c)) if sized else model.capacity_factor or 1.0
    routed = cut * model.computing_experts_per_tok * most
    small, always = 10.0 * MIB, np.ones(len(c), dtype=np.bool_)
    return [
        (always, None),
        (c.dp > 1, None),
        (c.cp * c.dp > 1, None),
        (c.tp > 1, hidden),
        *[(c.pp > 1, cut * model.residual_streams * (SENT_OF_A_SEQUENCE if context.operators.reference else 1))] * 3,
        (c.cp > 1, context_message),
        (c.tp * c.pp > 1, small),
        (c.ep > 1, routed),
        (c.ep > 1, None),
        (c.etp > 1, hidden),
        (c.dp_replicate > 1, None),
        ((c.dp_replicate > 1) & (c.ep > 1), None),
    ]


def communication_bytes(candidates: Candidates, context: Context) -> Floats:
    """Bytes of all communicators' buffers [n]: the default for each, or sized by its message where that is less."""
    default = context.machine.communicator_bytes
    groups = communicators(candidates, context)
    plain = np.asarray(sum(exists * default for exists, _ in groups), dtype=np.float64)
    if ADAPTIVE_BUFFERS not in context.mechanisms:
        return plain
    sized = sum(exists * (default if message is None else communicator_bytes(message)) for exists, message in groups)
    return np.asarray(np.minimum(plain, sized))


def saves_buffers(candidates: Candidates, context: Context) -> bool:
    """Whether sizing buffers by their messages saves the first candidate anything."""
    plain = replace(context, features=context.features - {ADAPTIVE_BUFFERS})
    return bool(communication_bytes(candidates, context)[0] < communication_bytes(candidates, plain)[0])


@dataclass(frozen=True, slots=True)
class LossBytes:
    """The loss on the stage that has it, 0 elsewhere [n]: what it needs while it runs beside what the head keeps, and
    what of that is gone when the backward pass of the stage's layers begins.
    """

    beside: Floats | float = 0.0
    passing: Floats | float = 0.0


def workspace_bytes(
    widest_bytes: Floats, gathered: Floats, *, recomputes_layers: bool, pairs: bool, loss: LossBytes | None = None
) -> Floats:
    """Allocator bytes beyond what is kept [n] at a stage's worst moment: in a layer's backward pass, or in the loss.

    A layer's: gradients in flight, and a whole layer where layers are recomputed, or where a forward hands over to a
    backward (`pairs`): the backward's layer goes when the forward's has come. Beside either, the layers whose sharded
    parameters are gathered. widest_bytes : activations of the layer that keeps most.
    """
    layer = widest_bytes * (GRADIENT_SHARE + (1.0 if recomputes_layers or pairs else 0.0))
    if loss is not None:
        layer = np.maximum(layer - loss.passing, loss.beside)
    return np.asarray(layer + gathered)


def gathered_bytes(largest_params: Floats, context: Context, keeps_gathered: Bools | bool = False) -> Floats:
    """Bytes of sharded parameters that are whole for a moment [n]: 16-bit weights of the layer at work and of those
    gathered ahead of it, where they don't stay, and the gradient of one until it is reduced.

    Source: Megatron-LM custom_fsdp, double buffers of units; PyTorch FSDP2 gathers `prefetch` units ahead and copies a
    unit's gradient into the reduction's buffer.
    """
    if not context.fsdp:
        return np.zeros(1)
    gradient = 0.0 if context.operators.lora_rank else context.gradient_bytes  # a frozen unit has none
    if not context.each_parameter_sharded:
        return np.asarray((2.0 * context.optimizer.weights + gradient) * largest_params)
    element = context.operators.element_bytes
    whole = np.where(keeps_gathered, 0.0, (1.0 + context.prefetched_units) * element)
    return np.asarray((whole + (element + gradient if gradient else 0.0)) * largest_params)
