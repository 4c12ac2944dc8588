"""Cost of data parallelism in a step: gradient reduction, optimizer, parameter gathering.

Parameters
----------
weight_bytes : of an element in the gathering.
layers : of a stage [layers].
ranks : that share the parameters of a stage [ranks].
overlapped, overlap_gather, overlap_reduce : something runs beside it.
shards : ranks that share a parameter's optimizer states: dp cp; for experts world / (etp ep pp) [ranks].
swap_optimizer : all optimizer states are on the host.
virtual_optimizer : moments are in host memory that the device reads in place.
on_host_bytes : optimizer states that a step reads from the host and writes back [B a parameter].
link_bytes_per_s : host link of a device, one direction.
update_s : computation of the update, beside which states come and go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.collectives import GatherRate, Group, Tier, all_gather_s, all_reduce_s, gather_rate
from cost_models.hbm import FULL, OptimizerFormat, Switch, optimizer_moved_bytes
from cost_models.swap import exposed_swap_s

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number


# Parameters of a bucket whose collective overlaps with a pass: at least this many, and this many for each rank, so that
# messages of a ring stay large. Source: Megatron-LM core_v0.12.1, --ddp-bucket-size.
BUCKET_PARAMS = 40e6
BUCKET_PARAMS_A_RANK = 1e6


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Seconds to reduce gradients and to gather updated weights, if nothing hides them [n]."""

    reduce_s: Floats
    gather_s: Floats


def synchronisation(
    params: Number,
    group: Group,
    tiers: tuple[Tier, ...],
    *,
    distributed_optimizer: bool,
    gradient_bytes: Number,
    weight_bytes: float = 2.0,
    operations: Number = 1.0,
    fixed_s: Number = 0.0,
    rate: GatherRate | None = None,
    whole_gradients: bool = False,
) -> Synchronisation:
    """Seconds of the gradient reduce-scatter (or all-reduce) of a rank's `params`, and of the weight all-gather.

    With a distributed optimizer gradients are reduce-scattered and updated weights all-gathered; without, gradients
    are all-reduced and every rank updates everything.

    Parameters
    ----------
    operations : collectives that the reduction is cut into, and as many for the gathering, each with its latency; a
        share of one where a bucket holds more than these parameters [count]. fixed_s : of each collective.
    rate : that of the group, where it is known already.
    whole_gradients : ranks that own whole matrices need whole gradients: these are all-reduced before weights are
        gathered. Source: MindSpeed @028de58c core/optimizer/muon/layer_wise_optimizer.py.

    Source: ZeRO, arXiv:1910.02054, section 7; Megatron-LM docs, distributed optimizer.
    """
    rate = gather_rate(group, tiers) if rate is None else rate
    rate = GatherRate(rate.s_per_byte, np.asarray(rate.latency_s * operations))
    fixed_s = np.asarray(fixed_s) * operations
    gradients = np.asarray(params) * gradient_bytes
    if distributed_optimizer:
        reduce_s = all_reduce_s if whole_gradients else all_gather_s
        return Synchronisation(
            reduce_s(gradients, group, tiers, fixed_s, rate),
            all_gather_s(np.asarray(params) * weight_bytes, group, tiers, fixed_s, rate),
        )
    reduced = all_reduce_s(gradients, group, tiers, fixed_s, rate)
    return Synchronisation(reduced, np.zeros_like(reduced))


def buckets(params: Number, layers: Number, ranks: Number, *, overlapped: Switch) -> Floats:
    """Collectives that synchronise `params` parameters of one layer of `layers` on a rank (count, a share of one too).

    What overlaps with a pass leaves in buckets of max(40e6, 1e6 ranks) parameters, what follows the pass in one that
    holds the whole stage. Source: Megatron-LM core_v0.12.1, distributed_data_parallel.py.
    """
    bucket_params = np.maximum(BUCKET_PARAMS, BUCKET_PARAMS_A_RANK * np.asarray(ranks))
    alone = np.where(np.asarray(params) > 0.0, 1.0 / np.maximum(layers, 1.0), 0.0)
    return np.asarray(np.where(overlapped, np.asarray(params) / bucket_params, alone))


def sharded_pass_s(
    gather_s: Number,
    reduce_s: Number,
    window_s: Number,
    *,
    overlap_gather: bool,
    overlap_reduce: bool,
    contention: Number,
) -> Floats:
    """Exposed seconds of one pass of a layer with sharded parameters (FSDP, ZeRO-3): gathers and reductions.

    Parameters
    ----------
    gather_s : to gather its parameters, before each pass. reduce_s : to reduce its gradients, after its backward pass.
    window_s : computation of the pass: a neighbour's parameters arrive, and another's gradients leave, beside it.

    Notes
    -----
    Layers follow each other, so what overlaps shares one window; what does not stands before or after the pass:
    alone + min(beside, max(0, beside c - window)), c the contention (ratio: a collective beside computation takes this
    much longer; beside no computation nothing contends).

    References
    ----------
    Zhao et al., PyTorch FSDP, arXiv:2304.11277, section 3.3; Megatron-LM custom_fsdp, optim_grads_params.
    """
    gather_s, reduce_s = np.asarray(gather_s, dtype=np.float64), np.asarray(reduce_s, dtype=np.float64)
    zero = np.zeros(1)
    beside = (gather_s if overlap_gather else zero) + (reduce_s if overlap_reduce else zero)
    alone = (zero if overlap_gather else gather_s) + (zero if overlap_reduce else reduce_s)
    return np.asarray(alone + np.minimum(np.maximum(0.0, beside * contention - window_s), beside))


def exposed_s(
    communication_s: Number, window_s: Number, *, overlapped: bool, contention: Number, last_share: Number
) -> Floats:
    """Exposed seconds of a gradient reduction (or weight gather) that overlaps with a pass.

    Parameters
    ----------
    window_s : computation of the pass that buckets may run beside [s].
    contention : a collective beside computation takes this much longer [ratio].
    last_share : share of the bytes in the bucket that is complete only when the pass ends [fraction].

    Notes
    -----
    min(N, max(0, N (1 - l) c - window) + N l), N seconds of communication, l the last share, c the contention (ratio).

    Source: Megatron-LM --overlap-grad-reduce, --overlap-param-gather.
    """
    communication_s = np.asarray(communication_s)
    if not overlapped:
        return communication_s
    hidden_rest = np.maximum(0.0, communication_s * (1.0 - last_share) * contention - window_s)
    # Beside no computation nothing contends.
    return np.asarray(np.minimum(hidden_rest + communication_s * last_share, communication_s))


def optimizer_s(
    params: Number,
    shards: Number,
    hbm_bytes_per_s: Number,
    *,
    optimizer: OptimizerFormat = FULL,
    virtual_optimizer: Switch = False,
    fused: bool = True,
) -> Floats:
    """Seconds of the optimizer step, Adam of `params` parameters over `shards` ranks, bound by device memory.

    hbm_bytes_per_s : what streaming operators reach [B/s]. Bytes and their source: `hbm.optimizer_moved_bytes`.
    """
    moved = optimizer_moved_bytes(shards, optimizer=optimizer, virtual_optimizer=virtual_optimizer, fused=fused)
    return np.asarray(np.asarray(params) * moved / hbm_bytes_per_s)


def states_on_host_bytes(
    shards: Number,
    *,
    swap_optimizer: Switch = False,
    virtual_optimizer: Switch = False,
    optimizer: OptimizerFormat = FULL,
) -> Floats:
    """Bytes per parameter that a step reads from the host and writes back: all states, or the moments alone.

    12 / D and 8 / D. Source: MindSpeed swap-optimizer, virtual-optimizer.
    """
    bytes_per_param = np.where(
        swap_optimizer, optimizer.master + optimizer.moments, np.where(virtual_optimizer, optimizer.moments, 0.0)
    )
    return np.asarray(bytes_per_param / np.asarray(shards, dtype=np.float64))


def host_optimizer_s(params: Number, on_host_bytes: Number, link_bytes_per_s: Number, update_s: Number) -> Floats:
    """Exposed seconds of optimizer states on the host, `on_host_bytes` a parameter in, and out, beside the update.

    Both directions of the host link run at the same time. Source: MindSpeed swap-optimizer, virtual-optimizer.
    """
    return exposed_swap_s(np.asarray(params) * np.asarray(on_host_bytes), link_bytes_per_s, np.asarray(update_s))


# PyTorch FSDP2: what gathering and reducing sharded parameters moves in device memory beside the links.
def copy_out_s(params: Number, copies: Number, weight_bytes: Number, memory_bytes_per_s: Number) -> Floats:
    """Seconds of FSDP2's copy-out of gathered weights from the buffer: each copy reads and writes them [n].

    Parameters
    ----------
    params : of the unit on a rank [parameters]. copies : 1 where shards are rows, 2 where they are columns: those are
        put together once more. weight_bytes : of one gathered weight. memory_bytes_per_s : what streaming operators
        reach [B/s].

    References
    ----------
    PyTorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_all_gather_copy_out, on the stream of the
    computation: nothing hides it.
    """
    moved = 2.0 * np.asarray(weight_bytes) * np.asarray(params) * np.asarray(copies)
    return np.asarray(moved / np.asarray(memory_bytes_per_s))


def copy_in_s(
    params: Number, copies: Number, weight_bytes: Number, gradient_bytes: Number, memory_bytes_per_s: Number
) -> Floats:
    """Seconds to copy gradients into the reduction's buffer, in its format [n]; parameters as in `copy_out_s`.

    The last copy reads the format of the product that made them and writes that of the reduction; one of columns before
    it reads and writes the former. Source: the same file, foreach_reduce_scatter_copy_in.
    """
    weight, gradient, copies = (np.asarray(each, dtype=np.float64) for each in (weight_bytes, gradient_bytes, copies))
    each = np.where(copies > 0.0, weight + gradient + 2.0 * weight * (copies - 1.0), 0.0)
    return np.asarray(each * np.asarray(params) / np.asarray(memory_bytes_per_s))


def added_s(params: Number, weight_bytes: Number, gradient_bytes: Number, memory_bytes_per_s: Number) -> Floats:
    """Seconds to add a micro batch's whole gradients to those that are reduced once a step [n].

    Reads the gradient as its product wrote it, reads and writes the sum, which has the format of the reduction.

    Parameters
    ----------
    params : of the unit on a rank. weight_bytes : of a gradient as it comes. gradient_bytes : of the sum's [B].
    memory_bytes_per_s : what streaming operators reach [B/s].

    References
    ----------
    PyTorch torch/distributed/fsdp/_fully_shard/_fsdp_param.py, accumulate_unsharded_grad_if_needed.
    """
    moved = np.asarray(weight_bytes) + 2.0 * np.asarray(gradient_bytes)
    return np.asarray(moved * np.asarray(params) / np.asarray(memory_bytes_per_s))
