"""A pass over a layer whose parameters are sharded: they are gathered before it, gradients are reduced after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.collectives import GatherRate, all_reduce_s, gather_rate
from cost_models.data_parallel import sharded_pass_s, synchronisation
from cost_models.fsdp2 import copy_in_s, copy_out_s

if TYPE_CHECKING:
    from autodeploy.evaluation.layers.exchanges import LayerInputs
    from cost_models.arrays import Floats


def sharded_s(layer: LayerInputs, work_s: Floats, *, backward: bool) -> Floats:
    """Seconds of a pass in which sharded parameters are gathered or their gradients reduced, and nothing hides it.

    What stays gathered after the forward pass is there for the backward pass. Copies in device memory run on the
    computation's own stream. Where several groups hold all shards (HSDP), those that hold the same one add up its
    gradients after they were reduced: an all-reduce of 1 / D of them.
    """
    table, machine, sharded = layer.table, layer.machine, layer.features.sharded
    if sharded is None:
        return np.zeros(1)
    memory = machine.rates.hbm_bytes_per_s * np.asarray(machine.rates.hbm_fraction)
    element = machine.rates.element_bytes
    gathers = 1.0 - sharded.keeps_gathered if backward else np.ones(1)
    gather, reduce, copied = np.zeros(1), np.zeros(1), np.zeros(1)
    for params, group, holders, gradient, copies in (
        (table.dense_params, sharded.dense, sharded.dense_copies, sharded.gradient_bytes, sharded.copies),
        (
            *(table.expert_params, sharded.expert, sharded.expert_copies_group),
            *(sharded.expert_gradient_bytes, sharded.expert_copies),
        ),
    ):
        sync = synchronisation(
            params,
            group,
            machine.tiers,
            distributed_optimizer=True,
            gradient_bytes=gradient,
            weight_bytes=element,
            operations=np.where(np.asarray(params) > 0.0, 1.0, 0.0),
            fixed_s=machine.comm_op_s,
        )
        gather, reduce = gather + sync.gather_s * gathers, reduce + sync.reduce_s
        if np.any(holders.size > 1):
            shard = np.asarray(params) * gradient / group.size
            once = np.where(np.asarray(params) > 0.0, machine.comm_op_s, 0.0)
            rate = gather_rate(holders, machine.tiers)
            rate = GatherRate(rate.s_per_byte, np.asarray(rate.latency_s * (np.asarray(params) > 0.0)))
            reduce = reduce + all_reduce_s(shard, holders, machine.tiers, once, rate)
        copied = copied + copy_out_s(params, copies, element, memory) * gathers
        if backward:
            copied = copied + copy_in_s(params, copies, element, gradient, memory)
    passing = sharded_pass_s(
        gather,
        reduce if backward else 0.0,
        work_s * machine.overlap,
        overlap_gather=sharded.overlap_gather,
        overlap_reduce=sharded.overlap_reduce,
        contention=machine.contention,
    )
    return np.asarray(passing + copied)
