"""From a layer's cost to its share of a step: static bytes, and what it adds after the pipeline has drained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autodeploy.costs.inputs.machine import replica_groups, stage_stride
from autodeploy.costs.layers.exchanges import shard_times
from autodeploy.costs.workload.adapters import SENT_OF_A_SEQUENCE
from autodeploy.space.candidates import Candidates, of_schedules
from autodeploy.space.tree import distinct
from cost_models import data_parallel
from cost_models.collectives import (
    GatherRate,
    Group,
    all_reduce_s,
    gather_rate,
    leaf_hop_factor,
    point_to_point_s,
    ring_pass_s,
)
from cost_models.expert_migration import migration_s
from cost_models.hbm import FULL, StateBytes, replica_shards, state_bytes
from cost_models.host_optimizer import host_adam_s
from cost_models.optimizers import owned_share

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.layer_cost import LayerCost
    from cost_models.arrays import Bools, Floats

SHARDED_GRADIENTS = "sharded_gradients"  # a fact of a stack
TAIL_PARTS = ("exposed_dp_s", "optimizer_s", "exposed_swap_s", "imbalance_s")


def take_hidden(parts: dict[str, Any], hidden_s: Floats | float, exchange_s: Floats | float) -> None:
    """Take off parts of a step [n] what pairing hides: expert communication, and waiting for the host or its link.

    Uneven experts lengthen the exchange too: what is hidden beyond the even part comes off the uneven one.
    """
    for names, seconds in (
        (("exposed_ep_s", "imbalance_s"), exchange_s),
        (("exposed_swap_s", "host_bound_s"), hidden_s - exchange_s),
    ):
        left = seconds
        for name in names:
            if name in parts:
                taken = np.minimum(parts[name], left)
                parts[name], left = parts[name] - taken, left - taken


@dataclass(frozen=True, slots=True)
class ParameterGroups:
    """Data-parallel groups of dense and of expert parameters, with their sizes and rates [n].

    dense_shards, expert_shards : ranks that share a parameter's states: of HSDP fewer than the group has.
    """

    dense: Group
    dense_shards: Floats
    expert: Group
    expert_shards: Floats
    dense_rate: GatherRate
    expert_rate: GatherRate

    @classmethod
    def of(cls, candidates: Candidates, context: Context) -> ParameterGroups:
        """Dense parameters are shared by dp x cp ranks, experts by the expert data parallel ranks.

        Where a pipeline holds the parameters twice the ranks of the other stage that has them join both groups; the
        first and the last stage are farthest from each other, and all wait for them.
        """
        dense, expert = replica_groups(candidates, context.machine, context.world)
        holders = (candidates.etp * candidates.ep * candidates.pp).astype(np.float64)
        dense_shards, expert_shards = dense.size, np.maximum(1.0, context.world / holders)
        twice = of_schedules("copies", candidates.schedule) > 1
        copies = np.where(twice, 2.0, 1.0)
        if twice.any():
            # The tier that joins all stages joins the first and the last, and none inside it does.
            stride = np.where(twice, stage_stride(candidates, context.world), 1)
            stages = context.machine.group(stride, np.where(twice, candidates.pp, 1))
            dense, expert = _with_copies(dense, copies, stages), _with_copies(expert, copies, stages)
        return cls(
            dense=dense,
            dense_shards=dense_shards * copies / candidates.dp_replicate,
            expert=expert,
            expert_shards=expert_shards * copies / candidates.dp_replicate,
            dense_rate=gather_rate(dense, context.machine.tiers),
            expert_rate=gather_rate(expert, context.machine.tiers),
        )

    def take(self, index: npt.NDArray[np.int64]) -> ParameterGroups:
        """The groups of the candidates at an index array."""
        return ParameterGroups(
            self.dense.take(index),
            self.dense_shards[index],
            self.expert.take(index),
            self.expert_shards[index],
            self.dense_rate.take(index),
            self.expert_rate.take(index),
        )


def faster_somewhere(candidates: Candidates, others: Candidates, context: Context) -> Bools:
    """Candidates with a send or a collective of replicas faster than in `others`, of another rank order [n]."""
    mine, theirs = (ParameterGroups.of(c, context) for c in (candidates, others))
    faster = p2p_s(candidates, context) < p2p_s(others, context)
    for rate, other in ((mine.dense_rate, theirs.dense_rate), (mine.expert_rate, theirs.expert_rate)):
        faster |= (rate.s_per_byte < other.s_per_byte) | (rate.latency_s < other.latency_s)
    return np.asarray(faster)


def _with_copies(group: Group, copies: Floats, stages: Group) -> Group:
    """A group joined by the ranks of the stage that holds the same parameters, on the tier that joins all `stages`."""
    tier = stages.outermost_tier
    fan_out = tuple(np.where(tier == number, fan * copies, fan) for number, fan in enumerate(group.fan_out))
    near = group.near
    if near is not None and stages.near is not None:
        below = (tier == len(fan_out) - 1) & (stages.near == stages.fan_out[-1])
        near = np.where(below, near * copies, near)
    return Group(group.size * copies, fan_out, near)


@dataclass(frozen=True, slots=True)
class StateRates:
    """Cost of one parameter of a rank in a step [n]: bytes of its states, seconds to update it and to swap them."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    adam: Floats
    host: Floats
    update_s: Floats
    swap_s: Floats

    @property
    def total_bytes(self) -> Floats:
        """Weights, gradients and optimizer states on the device."""
        return np.asarray(self.weights + self.gradients + self.optimizer)


Rates = tuple[StateRates, StateRates]  # of a dense and of an expert parameter


def state_rates(candidates: Candidates, context: Context, groups: ParameterGroups) -> Rates:
    """Rates of a dense and of an expert parameter."""
    dense, expert = owners(candidates, context, groups)
    of_expert = context.expert_gradient_bytes(candidates)
    return (_rates(candidates, context, dense, context.gradient_bytes), _rates(candidates, context, expert, of_expert))


def owners(candidates: Candidates, context: Context, groups: ParameterGroups) -> tuple[Floats, Floats]:
    """Over how many ranks states of dense and of expert parameters are spread [n]: shards, or owners of whole matrices.

    Owners have at most as many matrices more as whole ones allow: see `optimizers.owned_share`.
    """
    shards = groups.dense_shards, groups.expert_shards
    if context.operators.optimizer.matrix_s is None:
        return shards
    dense, experts = context.matrices
    cut = 1.0 if context.operators.grouped_gemm and not context.operators.group_launches else candidates.ep
    of_stage = np.asarray(dense / candidates.pp), np.asarray(experts / (candidates.pp * cut))
    first, second = (1.0 / owned_share(each, ranks) for each, ranks in zip(of_stage, shards, strict=True))
    return np.asarray(first), np.asarray(second)


@dataclass(frozen=True, slots=True)
class Owned:
    """Additions of updates of whole matrices to what a layer's or piece's parameters take [n]: seconds, and bytes."""

    update_s: Floats
    state_bytes: Floats
    moments_bytes: Floats  # of these, moments


def owned_of(cost: LayerCost, ends: Floats, candidates: Candidates, context: Context, groups: ParameterGroups) -> Owned:
    """Updating its matrices on their owners, and Adam's states of `ends`: embedding or head, on one owner [n].

    An end is one parameter: where owners have whole ones, one of them has it all.
    """
    zero = np.zeros(len(candidates))
    if context.operators.optimizer.matrix_s is None:
        return Owned(zero, zero, zero)
    split = owners(candidates, context, groups) if context.splits_states else (np.ones(1), np.ones(1))
    seconds = zero + sum(each / ranks for each, ranks in zip(cost.orthogonal_s, split, strict=True))
    rates, form, one = context.machine.rates, context.optimizer, np.ones(1)
    memory_rate = rates.hbm_bytes_per_s * np.asarray(rates.hbm_fraction)
    adam = replace(FULL, gradient=form.gradient)
    more = data_parallel.optimizer_s(ends, one, memory_rate, optimizer=adam)
    less = data_parallel.optimizer_s(ends, split[0], memory_rate, optimizer=form)
    moments = adam.moments - form.moments / split[0]
    owned_bytes = adam.master - form.master / split[0] + moments
    return Owned(*(np.asarray(zero + each) for each in (seconds + more - less, ends * owned_bytes, ends * moments)))


def _rates(candidates: Candidates, context: Context, shards: Floats, gradient_bytes: Floats | float) -> StateRates:
    """Rates of one kind of parameter; gradient_bytes : of a whole gradient that waits for the step's reduction [n]."""
    swap, virtual, form = candidates.swap_optimizer, candidates.virtual_optimizer, context.optimizer
    machine = context.machine
    if "high_availability" in context.mechanisms and not context.fsdp:
        shards = replica_shards(shards)
    split = shards if context.splits_states else np.ones_like(shards)
    each: StateBytes = state_bytes(
        shards,
        distributed_optimizer=context.distributed_optimizer,
        reuse_fp32_param=candidates.reuse_fp32_param,
        swap_optimizer=swap,
        virtual_optimizer=virtual,
        fsdp=context.fsdp,
        sharded_gradients=(context.graph_mode & (candidates.pp == 1)) | (SHARDED_GRADIENTS in context.mechanisms),
        optimizer=form,
    )
    on_host = data_parallel.states_on_host_bytes(split, swap_optimizer=swap, virtual_optimizer=virtual, optimizer=form)
    # Of states that lie on the host, the share that an offloaded fraction leaves on the device.
    stays = np.where(swap, 1.0 - context.host.fraction, 0.0) if context.host.updates else np.zeros_like(split)
    params, owners_of = (1.0 / shards, np.ones_like(shards)) if context.fsdp else (np.ones(1), split)
    update = data_parallel.optimizer_s(
        params,
        owners_of,
        machine.rates.hbm_bytes_per_s * np.asarray(machine.rates.hbm_fraction),
        optimizer=form,
        virtual_optimizer=virtual,
        fused="unfused_optimizer" not in context.mechanisms,
    )
    streamed = data_parallel.host_optimizer_s(1.0, on_host, machine.host.link_bytes_per_s, update)
    if context.host.updates:
        # The host updates what lies there, the device the rest, and nothing streams through it.
        share, zero = np.where(swap, context.host.fraction, 0.0), np.zeros_like(split)
        on_cores = host_adam_s(
            params / owners_of,
            context.host.kernel,
            context.host.threads,
            core_ratio=machine.host.core_ratio,
            host_bytes_per_s=machine.host.memory_bytes_per_s,
            link_bytes_per_s=machine.host.link_bytes_per_s,
        )
        update = np.asarray(share * on_cores + (1.0 - share) * update)
        streamed, on_host = np.where(swap, zero, streamed), np.where(swap, share * on_host, on_host)
    whole = context.whole_through_step(candidates)
    kept = np.where(candidates.keep_gathered | whole, context.operators.element_bytes, 0.0)
    return StateRates(
        weights=np.asarray(each.weights + kept),
        gradients=np.where(whole, gradient_bytes, each.gradients),
        optimizer=each.optimizer + stays * (form.master + form.moments) / split,
        adam=np.where(swap | virtual, stays, 1.0) * np.where(virtual, 0.0, form.moments / split),
        host=on_host,
        update_s=update,
        swap_s=streamed,
    )


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


def of_params(name: str, dense_params: Floats, expert_params: Floats, rates: Rates) -> Floats:
    """A number of `StateRates` for so many dense and expert parameters [n]."""
    dense, expert = rates
    return np.asarray(dense_params * getattr(dense, name) + expert_params * getattr(expert, name))


def static_of(cost: LayerCost, rates: Rates, owned: Owned) -> Static:
    """Static bytes of one layer or piece."""
    names = ("weights", "gradients", "optimizer", "adam", "host")
    weights, gradients, optimizer, adam, host = (
        of_params(name, cost.dense_params, cost.expert_params, rates) for name in names
    )
    return Static(
        np.asarray(weights + cost.frozen_bytes),
        gradients,
        np.asarray(optimizer + owned.state_bytes),
        np.asarray(adam + owned.moments_bytes),
        host,
    )


@dataclass(frozen=True, slots=True)
class Tail:
    """Seconds that one layer or piece adds after the pipeline [n], by part."""

    exposed_dp_s: Floats
    optimizer_s: Floats
    exposed_swap_s: Floats
    imbalance_s: Floats  # moving experts

    @property
    def total_s(self) -> Floats:
        """All of them."""
        return np.asarray(self.exposed_dp_s + self.optimizer_s + self.exposed_swap_s + self.imbalance_s)


def migration_of(moved_params: Floats, candidates: Candidates, context: Context, groups: ParameterGroups) -> Floats:
    """Seconds a step to move experts of a layer, 0 where none move [n]."""
    if not np.any(moved_params > 0.0):
        return np.zeros(len(candidates))
    machine = context.machine
    return migration_s(
        moved_params,
        machine.group(candidates.etp.astype(np.float64), candidates.ep.astype(np.float64)),
        groups.expert,
        machine.tiers,
        machine.comm_op_s,
        distributed_optimizer=context.splits_states,
        interval=context.loads.levelling.interval_steps,
    )


def synchronised_of(
    cost: LayerCost,
    candidates: Candidates,
    context: Context,
    groups: ParameterGroups,
    layers: Floats,
) -> Floats:
    """Seconds of reducing gradients and gathering weights that nothing hides [n].

    cost : of a layer or a piece.
    layers : layers of a stage [n]: the bucket that completes last holds about one of them.

    Notes
    -----
    A layer's gradients are complete after its last backward pass, so the reduction of the layers above it runs beside
    the backward passes below: the window of a stage is one micro batch's backward pass, of which each layer brings
    its own. Gathering runs beside the forward pass of the next step's first micro batch in the same way.
    """
    machine, on = context.machine, context.mechanisms
    overlap_reduce = "overlap_grad_reduce" in on
    # Gathering beside the forward pass rides on the buckets of the overlapped reduction.
    overlap_gather = overlap_reduce and "overlap_param_gather" in on and context.distributed_optimizer
    exposed = np.zeros(len(candidates))
    last = 1.0 / np.maximum(layers, 1.0)
    if context.fsdp:
        whole = context.whole_through_step(candidates)
        # Else every micro batch has reduced and gathered in its passes.
        return np.where(whole, _once_a_step_s(cost, candidates, context, last), 0.0) if whole.any() else exposed
    all_params = np.maximum(cost.dense_params + cost.expert_params, 1.0)
    for params, group, rate in (
        (cost.dense_params, groups.dense, groups.dense_rate),
        (cost.expert_params, groups.expert, groups.expert_rate),
    ):
        if not np.any(params):
            continue
        sync = data_parallel.synchronisation(
            params,
            group,
            machine.tiers,
            distributed_optimizer=context.distributed_optimizer,
            gradient_bytes=context.gradient_bytes,
            weight_bytes=context.optimizer.weights,
            whole_gradients=context.operators.optimizer.matrix_s is not None,
            operations=data_parallel.buckets(
                params, layers, groups.dense.size, overlapped=overlap_reduce & ~candidates.paired
            ),
            fixed_s=machine.comm_op_s,
            rate=rate,
        )
        share = params / all_params
        for seconds, window, overlapped in (
            (sync.reduce_s, cost.backward.compute_s, overlap_reduce),
            (sync.gather_s, cost.forward.compute_s, overlap_gather),
        ):
            behind = data_parallel.exposed_s(
                seconds,
                window * share * machine.overlap,
                overlapped=overlapped,
                contention=machine.contention,
                last_share=last,
            )
            exposed = exposed + np.where(candidates.paired, seconds, behind)
    return np.asarray(exposed)


def _once_a_step_s(cost: LayerCost, candidates: Candidates, context: Context, last: Floats) -> Floats:
    """Seconds of gathering sharded weights and reducing whole gradients once a step that nothing hides [n].

    Weights arrive beside the first forward pass, all but those of the first layer (`last`, a share). Gradients leave
    together when the stage's last backward pass is over. Source: PyTorch, torch/distributed/pipelining/stage.py,
    run_post_backward.
    """
    machine, sharded = context.machine, context.sharded(candidates)
    times = shard_times(cost.dense_params, cost.expert_params, sharded, machine, gathers=1.0, reduces=True)
    gathered = data_parallel.exposed_s(
        times.gather_s,
        cost.forward.compute_s * machine.overlap,
        overlapped=sharded.overlap_gather,
        contention=machine.contention,
        last_share=last,
    )
    return np.asarray(gathered + times.reduce_s + times.copied_s)


def p2p_bytes(candidates: Candidates, context: Context) -> Floats:
    """Bytes of one micro batch's activations that a rank sends to the next stage [n]: 2 n h in 16 bits a model.

    Residuals in several streams are all sent (MindSpeed-LLM @c77308a1 deepseek4/mhc.py, get_tensor_shapes_in_mhc).
    """
    tokens = candidates.micro_batch_size * (context.sample_tokens / candidates.cp)
    if context.operators.reference:
        tokens = tokens * SENT_OF_A_SEQUENCE
    # Stages send 1/tp each and gather it inside the node: Megatron-LM scatter-gather, before SP.
    cut = candidates.sequence_parallel | ("scatter_gather_sends" in context.features)
    parts = np.where(cut, candidates.tp, 1)
    width = context.model.hidden_size * context.model.residual_streams
    return np.asarray(context.operators.element_bytes * tokens * width / parts)


def shared_sum_s(copied: Floats, candidates: Candidates, context: Context) -> Floats:
    """Seconds of adding up the gradient of an embedding that the first and the last stage hold [n].

    All of it, between two ranks, behind the reductions of replicas.
    Source: Megatron-LM finalize_model_grads.py, _allreduce_word_embedding_grads.

    copied : its parameters on a rank [n].
    """
    if context.fsdp or context.operators.frozen or not np.any(copied):
        return np.zeros_like(copied)
    machine, apart = context.machine, stage_stride(candidates, context.world) * np.maximum(candidates.pp - 1, 1)
    rows, which = distinct([apart])
    both = machine.group(apart[rows].astype(np.float64), np.full(len(rows), 2.0)).take(which)
    seconds = all_reduce_s(context.gradient_bytes * copied, both, machine.tiers, machine.comm_op_s)
    return np.where(copied > 0.0, seconds, 0.0)


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
