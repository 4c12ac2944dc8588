"""What a stage sends to the next one, for every reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.inputs.rank_order import stage_stride
from autodeploy.strategies.tree import distinct
from autodeploy.workload.reference_model import SENT_OF_A_SEQUENCE
from cost_models.collectives import leaf_hop_factor, point_to_point_s, ring_pass_s

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Floats


def p2p_bytes(candidates: Candidates, context: Context) -> Floats:
    """Bytes of one micro batch's activations that a rank sends to the next stage [n]: 2 n h in 16 bits a model."""
    tokens = candidates.micro_batch_size * (context.sample_tokens / candidates.cp)
    if context.operators.reference:
        tokens = tokens * SENT_OF_A_SEQUENCE
    parts = np.where(candidates.sequence_parallel | context.cuts_sends, candidates.tp, 1)
    return np.asarray(context.operators.element_bytes * tokens * context.model.hidden_size / parts)


def p2p_s(candidates: Candidates, context: Context) -> Floats:
    """Seconds of such a send to the same rank of the next stage [n]; 0 without a pipeline.

    Stages that lie inside the replicas may be unevenly far from each other: the slowest hop counts, as in a ring.
    """
    machine, sent = context.machine, p2p_bytes(candidates, context)
    stride, inside = stage_stride(candidates, context.world), candidates.tp_pp_dp_mapping
    rows, which = distinct([candidates.pp, stride])
    apart, pp = stride[rows], candidates.pp[rows]
    outermost = machine.topology.place(apart, np.full(len(rows), 2)).outermost_tier[which]
    # All stages send at once: below one leaf, one of them sends through its uplinks.
    stages = machine.group(apart.astype(np.float64), pp.astype(np.float64)).take(which)
    seconds = np.zeros(len(candidates))
    for number, tier in enumerate(machine.tiers):
        slow = leaf_hop_factor(stages, tier) if number == len(machine.tiers) - 1 else 1.0
        seconds = np.where(outermost == number, point_to_point_s(sent * slow, tier, machine.comm_op_s), seconds)
    if inside.any():
        seconds = np.where(inside, ring_pass_s(sent, stages, machine.tiers, machine.comm_op_s), seconds)
    return np.where(candidates.pp > 1, seconds, 0.0)
