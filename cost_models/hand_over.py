"""The weights' way from training to generation, and what leaves the device meanwhile: bytes by route and tier.

Colocated, every die receives what generation needs of it and training did not leave there. Separate, the trainers send
whole models, or what changed of them, over the links to the generators. Rates and their efficiencies are the caller's:
the `Tier`s of a hardware profile, whose entries name their sources.

Parameters
----------
trained, generating : `WeightLayout` before and after.
received_bytes : that a die receives.
replicas : of generation [count].
from_bytes, to_bytes : of a parameter, before and after a cast.
hbm_bytes_per_s : what casts reach of device memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.collectives import tier_rate
from cost_models.swap import transfer_s

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cost_models.arrays import Floats, Number
    from cost_models.collectives import Group, Tier


@dataclass(frozen=True)
class WeightLayout:
    """Layout of a model's weights on dies [n].

    dense, experts : parameters of the model outside and inside routed experts [parameters]. tensor, pipeline : ranks
        that cut the dense part and the layers [ranks]. expert : ranks over which a layer's experts and their slices are
        spread [ranks]. weight_bytes : of a parameter.
    """

    dense: Number
    experts: Number
    tensor: Number
    pipeline: Number
    expert: Number
    weight_bytes: Number

    @property
    def die_bytes(self) -> Floats:
        """Weights of one die [B]."""
        params = np.asarray(self.dense) / self.tensor + np.asarray(self.experts) / self.expert
        return np.asarray(params * self.weight_bytes / self.pipeline)

    @property
    def model_bytes(self) -> Floats:
        """Weights of the whole model [B]."""
        return np.asarray((np.asarray(self.dense, dtype=np.float64) + self.experts) * self.weight_bytes)


def colocated_bytes(trained: WeightLayout, generating: WeightLayout, nested: Number = 1.0) -> dict[str, Floats]:
    """Bytes that a die receives so that it can generate, by route [B]; in the trained weights' format, cast on arrival.

    Parameters
    ----------
    nested : share of what a die holds of a layer that it also needs there: 1 where the ranks of generation are laid out
        so that the smaller slice lies in the larger, 0 where nothing is kept [fraction].

    Notes
    -----
    tensor: the dense slices of its own stage that it lacks, from the tensor-parallel group; expert: the same of
    experts; pipeline: its slices of all other stages' layers. Their sum is what it needs less what it keeps.

    References
    ----------
    HybridFlow, arXiv:2409.19256, section 5: the generation groups for which resharding is without redundancy.
    MindSpeed-RL, resharding: gathered a pipeline stage at a time.
    """
    own, sent = 1.0 / np.asarray(trained.pipeline, dtype=np.float64), trained.weight_bytes

    def lacking(params: Number, has: Number, needs: Number) -> Floats:
        needed, held = 1.0 / np.asarray(needs, dtype=np.float64), 1.0 / np.asarray(has, dtype=np.float64)
        return np.asarray(params * sent * own * (needed - nested * np.minimum(needed, held)))

    whole = np.asarray(generating.dense) / generating.tensor + np.asarray(generating.experts) / generating.expert
    return {
        "tensor": lacking(trained.dense, trained.tensor, generating.tensor),
        "expert": lacking(trained.experts, trained.expert, generating.expert),
        "pipeline": np.asarray((1.0 - own) * whole * sent),
    }


def bytes_by_tier(received_bytes: Number, group: Group, copies: Number = 1.0) -> tuple[Floats, ...]:
    """Bytes that a die receives over each tier, innermost first, of bytes spread over the other ranks of a group [B].

    copies : dies within one instance of the outermost tier that need the same: it enters once, and they pass it on.

    Notes
    -----
    (r_t - r_(t-1)) / (g - 1) of the bytes come over tier t, with r_t members within one instance of it. A relayed share
    (copies - 1) / copies of the outermost tier's bytes comes over the tier below instead.
    """
    others = np.maximum(np.asarray(group.size, dtype=np.float64) - 1.0, 1.0)
    inside, moved = np.ones_like(others), []
    for tier in range(len(group.fan_out)):
        members = group.members_inside(tier)
        moved.append(np.asarray(received_bytes * (members - inside) / others))
        inside = members
    if len(moved) > 1:
        relayed = moved[-1] * (1.0 - 1.0 / np.asarray(copies, dtype=np.float64))
        moved[-2], moved[-1] = moved[-2] + relayed, moved[-1] - relayed
    return tuple(moved)


def reshard_s(
    routes: Mapping[str, Number],
    groups: Mapping[str, Group],
    tiers: tuple[Tier, ...],
    bucket_bytes: float,
    *,
    copies: Mapping[str, Number] | None = None,
    pipelined: bool = True,
) -> Floats:
    """Seconds of weight resharding from training to generation on the same devices.

    Parameters
    ----------
    routes : bytes that a die receives by route [B]; groups : the ranks from which they come, by the same names.
    copies : by route, as in `bytes_by_tier`; 1 where absent.
    bucket_bytes : that move at a time: verl's update_weights_bucket_megabytes, a stage under MindSpeed-RL.
    pipelined : buckets follow each other, so that tiers, disjoint links, work at once and the slowest counts.

    Notes
    -----
    Each bucket starts every tier that it crosses once.
    """
    seconds: list[Floats] = [np.asarray(0.0) for _ in tiers]
    starts = np.asarray(0.0)
    for name, received in routes.items():
        buckets = np.ceil(np.asarray(received, dtype=np.float64) / bucket_bytes)
        shared = (copies or {}).get(name, 1.0)
        by_tier = bytes_by_tier(received, groups[name], shared)
        for number, (tier, moved, fan_out) in enumerate(zip(tiers, by_tier, groups[name].fan_out, strict=True)):
            # What is relayed inside goes between all dies that need it, also where the group has one rank there.
            width = np.maximum(fan_out, np.maximum(shared, 2.0))
            seconds[number] = seconds[number] + moved / tier_rate(tier, width)
            starts = starts + np.where(moved > 0.0, buckets * (tier.latency_s + tier.start_s), 0.0)
    stacked = np.stack(np.broadcast_arrays(*seconds))
    return np.asarray((stacked.max(axis=0) if pipelined else stacked.sum(axis=0)) + starts)


def send_s(
    model_bytes: Number,
    die_bytes: Number,
    replicas: Number,
    senders: Number,
    link_bytes_per_s: Number,
    *,
    forwarded: bool = False,
) -> Floats:
    """Seconds until all replicas of generation on other dies have new weights.

    Parameters
    ----------
    model_bytes, die_bytes : of a replica, of one of its dies; both times the changed share where only that is sent.
    senders : dies of training that send: all of them where each sends its own shards, 1 where one gathers and sends
        [dies].
    link_bytes_per_s : of one die towards the others, what it reaches, one direction.
    forwarded : replicas pass weights on as they come, so that each byte leaves the senders once.

    Notes
    -----
    max(receiving, sending): a die takes its own part in; the senders share out what leaves them.

    References
    ----------
    Perplexity, "Weight transfer for RL post-training in under 2 seconds", 2025: all trainers write point to point,
    after a schedule that is made once. One sender: NCCL broadcast from rank 0.
    """
    out = np.asarray(model_bytes, dtype=np.float64) * (1.0 if forwarded else replicas) / senders
    return np.asarray(np.maximum(out, die_bytes) / link_bytes_per_s)


def recast_s(params: Number, from_bytes: Number, to_bytes: Number, hbm_bytes_per_s: Number) -> Floats:
    """Seconds to bring a die's parameters into another number format, read and written once; 0 for the same format."""
    moved = np.asarray(params, dtype=np.float64) * (np.asarray(from_bytes) + to_bytes) / hbm_bytes_per_s
    return np.asarray(np.where(np.asarray(from_bytes) == to_bytes, 0.0, moved))


STATES = ("optimizer", "gradients", "parameters")


def host_moves_s(
    state_bytes: Mapping[str, Number],
    offload: Collection[str],
    link_bytes_per_s: Number,
    *,
    copied_gradients: bool = False,
) -> Floats:
    """Seconds to bring a die's training states to the host before it generates; as long again to bring them back.

    Parameters
    ----------
    state_bytes : of the die, by the names of STATES. offload : those that leave. link_bytes_per_s : the die's share of
        its host's links, what it reaches, one direction.
    copied_gradients : else their memory is given up and taken again: after an update there is nothing in them to keep.

    References
    ----------
    verl, utils/megatron_utils.py @1dda039b, offload_megatron_model_to_cpu: gradient buffers are resized to 0,
    parameters and states are copied to pinned memory.
    """
    unknown = sorted(set(offload) - set(STATES))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no state of a training; known: {', '.join(STATES)}")
    kept = () if copied_gradients else ("gradients",)
    leaving = np.asarray(0.0)
    for name in sorted(set(offload) - set(kept)):
        leaving = leaving + np.asarray(state_bytes[name], dtype=np.float64)
    return transfer_s(leaving, link_bytes_per_s)
