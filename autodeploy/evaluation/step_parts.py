"""From a layer's cost to its share of a step: static bytes, and what it adds after the pipeline has drained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autodeploy.strategies.candidates import PAIRED, SCHEDULES, Candidates
from cost_models import data_parallel
from cost_models.collectives import Group
from cost_models.expert_migration import migration_s
from cost_models.hbm import StateBytes, state_bytes

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.layer_cost import LayerCost
    from autodeploy.workload.operators import Floats


TAIL_PARTS = ("exposed_dp_s", "optimizer_s", "exposed_swap_s", "imbalance_s")


@dataclass(frozen=True, slots=True)
class ParameterGroups:
    """Data-parallel groups of dense and of expert parameters, with their sizes [n]."""

    dense: Group
    dense_shards: Floats
    expert: Group
    expert_shards: Floats

    @classmethod
    def of(cls, candidates: Candidates, context: Context) -> ParameterGroups:
        """Dense parameters are shared by dp x cp ranks, experts by the expert data parallel ranks.

        Under dualpipe the ranks of the other stage that holds the same parameters join both groups; the first and the
        last stage are farthest from each other, and all wait for them.
        """
        tp, cp, dp = (c.astype(np.float64) for c in (candidates.tp, candidates.cp, candidates.dp))
        etp, ep, pp = (c.astype(np.float64) for c in (candidates.etp, candidates.ep, candidates.pp))
        expert_shards = np.maximum(1.0, context.world / (etp * ep * pp))
        twice = candidates.schedule == SCHEDULES.index("dualpipe")
        copies = np.where(twice, 2.0, 1.0)
        far = context.machine.topology.place(
            np.where(twice, (candidates.pp - 1) * (context.world // candidates.pp), 1), np.where(twice, 2, 1)
        ).outermost_tier
        return cls(
            dense=_with_copies(context.machine.group(tp, cp * dp), copies, far),
            dense_shards=cp * dp * copies,
            expert=_with_copies(context.machine.group(etp * ep, expert_shards), copies, far),
            expert_shards=expert_shards * copies,
        )


def _with_copies(group: Group, copies: Floats, tier: npt.NDArray[np.int64]) -> Group:
    """A group joined by the ranks of the stage that holds the same parameters, across `tier`."""
    if np.all(copies == 1.0):
        return group
    fan_out = tuple(np.where(tier == number, fan * copies, fan) for number, fan in enumerate(group.fan_out))
    return Group(group.size * copies, fan_out)


@dataclass(frozen=True, slots=True)
class Static:
    """Bytes of a layer's weights, gradients and optimizer states on a rank [n]."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    adam: Floats  # the moments alone, absent before the first update
    host: Floats  # optimizer states kept in host memory

    @property
    def total(self) -> Floats:
        """All of them."""
        return np.asarray(self.weights + self.gradients + self.optimizer)


def static_of(cost: LayerCost, candidates: Candidates, context: Context, groups: ParameterGroups) -> Static:
    """Static bytes of one layer or piece."""
    parts = []
    for params, shards in ((cost.dense_params, groups.dense_shards), (cost.expert_params, groups.expert_shards)):
        each: StateBytes = state_bytes(
            shards,
            distributed_optimizer=context.distributed_optimizer,
            reuse_fp32_param=candidates.reuse_fp32_param,
            swap_optimizer=candidates.swap_optimizer,
            virtual_optimizer=candidates.virtual_optimizer,
            fsdp=context.fsdp,
            sharded_gradients=context.graph_mode & (candidates.pp == 1),
            optimizer=context.optimizer,
        )
        split = shards if context.splits_states else 1.0
        away = candidates.swap_optimizer | candidates.virtual_optimizer
        adam = np.where(away, 0.0, context.optimizer.moments / split)
        on_host = data_parallel.states_on_host_bytes(
            np.asarray(split),
            swap_optimizer=candidates.swap_optimizer,
            virtual_optimizer=candidates.virtual_optimizer,
            optimizer=context.optimizer,
        )
        sizes = (each.weights, each.gradients, each.optimizer, adam, on_host)
        parts.append(tuple(params * size for size in sizes))
    return Static(*(np.asarray(a + b) for a, b in zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True)
class Tail:
    """Seconds that one layer or piece adds after the pipeline [n], by part."""

    exposed_dp_s: Floats
    optimizer_s: Floats
    exposed_swap_s: Floats
    imbalance_s: Floats  # moving experts
    dp_total_s: Floats

    @property
    def total_s(self) -> Floats:
        """All of them."""
        return np.asarray(self.exposed_dp_s + self.optimizer_s + self.exposed_swap_s + self.imbalance_s)


def migration_of(cost: LayerCost, candidates: Candidates, context: Context, groups: ParameterGroups) -> Floats:
    """Seconds a step to move experts of a layer, 0 where none move [n]."""
    if not np.any(cost.moved_params > 0.0):
        return np.zeros(len(candidates))
    machine = context.machine
    return migration_s(
        cost.moved_params,
        machine.group(candidates.etp.astype(np.float64), candidates.ep.astype(np.float64)),
        groups.expert,
        machine.tiers,
        machine.comm_op_s,
        distributed_optimizer=context.splits_states,
    )


def tail_of(cost: LayerCost, candidates: Candidates, context: Context, groups: ParameterGroups, layers: Floats) -> Tail:
    """What a layer adds after the last backward pass.

    Parameters
    ----------
    layers : layers of a stage [n]: the bucket that completes last holds about one of them.

    Notes
    -----
    A layer's gradients are complete after its last backward pass, so the reduction of the layers above it runs beside
    the backward passes below: the window of a stage is one micro batch's backward pass, of which each layer brings
    its own. Gathering runs beside the forward pass of the next step's first micro batch in the same way.
    """
    machine, on = context.machine, context.features
    overlap_reduce = "overlap_grad_reduce" in on
    # Gathering beside the forward pass rides on the buckets of the overlapped reduction.
    overlap_gather = overlap_reduce and "overlap_param_gather" in on and context.distributed_optimizer
    paired = np.isin(candidates.schedule, PAIRED)
    zero = np.zeros(len(candidates))
    exposed, update, swapped, total = zero, zero, zero, zero
    memory_rate = machine.rates.hbm_bytes_per_s * np.asarray(machine.rates.hbm_fraction)
    last = 1.0 / np.maximum(layers, 1.0)
    for params, group, shards in (
        (cost.dense_params, groups.dense, groups.dense_shards),
        (cost.expert_params, groups.expert, groups.expert_shards),
    ):
        sync = data_parallel.synchronisation(
            params,
            group,
            machine.tiers,
            distributed_optimizer=context.distributed_optimizer,
            gradient_bytes=context.gradient_bytes,
        )
        share = params / np.maximum(cost.dense_params + cost.expert_params, 1.0)
        reduce_window = cost.backward.compute_s * share * machine.overlap
        gather_window = cost.forward.compute_s * share * machine.overlap
        alone = data_parallel.exposed_s(
            sync.reduce_s, 0.0, overlapped=False, contention=machine.contention, last_share=last
        )
        behind = data_parallel.exposed_s(
            sync.reduce_s, reduce_window, overlapped=overlap_reduce, contention=machine.contention, last_share=last
        )
        if context.fsdp:
            alone = behind = np.zeros_like(behind)  # every micro batch has reduced and gathered in its passes
            sync = data_parallel.Synchronisation(alone, alone)
        exposed = exposed + np.where(paired, alone, behind)
        gathered = data_parallel.exposed_s(
            sync.gather_s, gather_window, overlapped=overlap_gather, contention=machine.contention, last_share=last
        )
        exposed = exposed + np.where(paired, sync.gather_s, gathered)
        split = shards if context.splits_states else np.ones_like(shards)
        virtual = candidates.virtual_optimizer
        step = data_parallel.optimizer_s(
            params / shards if context.fsdp else params,
            np.ones_like(shards) if context.fsdp else split,
            memory_rate,
            optimizer=context.optimizer,
            virtual_optimizer=virtual,
            fused="unfused_optimizer" not in on,
        )
        update = update + step
        on_host = data_parallel.states_on_host_bytes(
            split, swap_optimizer=candidates.swap_optimizer, virtual_optimizer=virtual, optimizer=context.optimizer
        )
        swapped = swapped + data_parallel.host_optimizer_s(params, on_host, machine.host.link_bytes_per_s, step)
        total = total + sync.reduce_s + sync.gather_s
    moved = migration_of(cost, candidates, context, groups)
    return Tail(np.asarray(exposed), np.asarray(update), np.asarray(swapped), moved, np.asarray(total))
