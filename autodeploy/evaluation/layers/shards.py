"""Exchanges of sharded parameters: gathering them, reducing their gradients, and what both move in device memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.collectives import GatherRate, all_reduce_s, gather_rate
from cost_models.data_parallel import synchronisation
from cost_models.fsdp2 import added_s, copy_in_s, copy_out_s

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Sharded
    from autodeploy.evaluation.inputs.machine import Machine
    from cost_models.arrays import Floats, Number


@dataclass(frozen=True, slots=True)
class ShardTimes:
    """Seconds [n] to gather a unit's parameters and to reduce its gradients, and of copies in device memory."""

    gather_s: Floats
    reduce_s: Floats
    copied_s: Floats


def shard_times(
    dense_params: Number, expert_params: Number, sharded: Sharded, machine: Machine, *, gathers: Number, reduces: bool
) -> ShardTimes:
    """Exchanges of a unit with so many parameters on a rank.

    Where several groups hold all shards (HSDP), those that hold the same one add up its gradients after they were
    reduced: an all-reduce of 1 / D of them.

    Parameters
    ----------
    gathers : how often parameters are gathered [n]. reduces : whether gradients are copied to their reduction.
    """
    memory = machine.rates.hbm_bytes_per_s * np.asarray(machine.rates.hbm_fraction)
    element = machine.rates.element_bytes
    gather, reduce, copied = np.zeros(1), np.zeros(1), np.zeros(1)
    for params, group, holders, gradient, copies in (
        (dense_params, sharded.dense, sharded.dense_copies, sharded.gradient_bytes, sharded.copies),
        (
            *(expert_params, sharded.expert, sharded.expert_copies_group),
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
        if reduces:
            copied = copied + copy_in_s(params, copies, element, gradient, memory)
    return ShardTimes(gather, reduce, copied)


def accumulated_s(dense_params: Number, expert_params: Number, sharded: Sharded, machine: Machine) -> Floats:
    """Seconds in which a micro batch's gradients are added to those that stay whole until the step's reduction [n]."""
    memory = machine.rates.hbm_bytes_per_s * np.asarray(machine.rates.hbm_fraction)
    element = machine.rates.element_bytes
    return np.asarray(
        added_s(dense_params, element, sharded.gradient_bytes, memory)
        + added_s(expert_params, element, sharded.expert_gradient_bytes, memory)
    )
