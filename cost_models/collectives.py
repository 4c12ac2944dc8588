"""Collectives over a tiered network: all-gather, reduce-scatter, all-reduce, point to point.

A group of g ranks spans tiers from the innermost out (die pair, full mesh, supernode, scale-out). Within one instance
of tier t it has r_t members, so tier t adds a fan-out f_t = r_t / r_(t-1), and the fan-outs multiply to g. Collectives
run level by level, so that each rank's slower links carry only what they must.

Parameters
----------
name : what a tier is called.
size : members of a group [ranks].
fan_out : by tier r_t / r_(t-1), members inside one instance over those one tier further in; its product is the size.
index : which entries are taken.
tier : one `Tier` or its number.
inner, outer : `Group`s that make one: each member of `outer` is a group `inner`.
s_per_byte : of an all-gather's output.
output_bytes, payload_bytes : whole output of a gather; input of a reduction or send.
chunk_bytes : what a rank sends on in one step of a ring.
ranks : of the collective [ranks].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number


@dataclass(frozen=True)
class Tier:
    """One level of the network as a rank sees it: of a profile, and of a machine with its factors.

    bytes_per_s : one direction, all of the rank's links of this tier together [B/s].
    links : for a full mesh, its links per rank (instance size - 1); 0 for a switch [links].
    latency_s : per step [s].
    efficiency : fraction of bytes_per_s that large transfers reach [fraction].
    exchange : rate of an All-to-All of experts against that of other collectives [ratio].
    half_size_bytes : what a rank receives in one pass over all its links of this tier when half of that rate is
        reached [B].
    ranks : that one instance joins; None: the whole cluster [ranks].
    leaf_nodes : below one leaf switch; None: no leaf is narrower than what is below it [nodes].
    leaf_oversubscription : bandwidth below a leaf switch over that of its uplinks [ratio].

    Notes
    -----
    s bytes at rate R s / (s + s_half) take (s + s_half) / R: a pass over the tier costs `start_s` before its first
    byte, whatever it carries. A group that owns some links of a mesh waits as long: each link starts at the same time.

    References
    ----------
    Hockney and Jesshope, "Parallel Computers 2", 1988: n_1/2, the length at which half of the peak is reached.
    """

    name: str
    bytes_per_s: Number
    links: int
    latency_s: Number
    efficiency: Number
    half_size_bytes: Number = 0.0
    exchange: Number = 1.0
    leaf_oversubscription: Number = 1.0
    leaf_nodes: int | None = None
    ranks: int | None = None

    @cached_property
    def start_s(self) -> Floats:
        """Seconds that the half size adds to each pass over the tier: half size over the rate of all its links."""
        return np.asarray(self.half_size_bytes / (np.asarray(self.bytes_per_s) * self.efficiency))


@dataclass(frozen=True, slots=True)
class Group:
    """A communication group: fan-out per tier, each an array (candidate first); innermost tier first.

    near : of the outermost tier's fan-out, the members below one leaf switch; None where all ranks are below one
        [instances].
    """

    size: Floats
    fan_out: tuple[Floats, ...]
    near: Floats | None = None

    def take(self, index: npt.NDArray[np.int64] | slice | int) -> Group:
        """The groups at an index of the first axis."""
        near = None if self.near is None else self.near[index]
        return Group(self.size[index], tuple(fan_out[index] for fan_out in self.fan_out), near)

    @property
    def outermost_tier(self) -> npt.NDArray[np.int64]:
        """Number of the outermost tier that each group spans [n]; 0 for a group of one rank."""
        tier = np.zeros(np.shape(self.size), dtype=np.int64)
        for number, fan_out in enumerate(self.fan_out):
            tier = np.where(fan_out > 1, number, tier)
        return tier

    def members_inside(self, tier: int) -> Floats:
        """Members within one instance of a tier [n]: the product of the fan-outs up to it."""
        return np.asarray(np.prod(np.broadcast_arrays(*self.fan_out[: tier + 1]), axis=0))


def nested(inner: Group, outer: Group) -> Group:
    """Groups [n] of which every member of `outer` is one of `inner`: on each tier as many as the two have together."""
    both = None if inner.near is None or outer.near is None else inner.near * outer.near
    fan_out = tuple(one * other for one, other in zip(inner.fan_out, outer.fan_out, strict=True))
    return Group(inner.size * outer.size, fan_out, both)


def _beyond_leaf(group: Group, near: Floats) -> Floats:
    """Share of the bytes over the outermost tier that come from below other leaf switches [n]."""
    fan_out = group.fan_out[-1]
    return np.asarray((fan_out - near) / np.maximum(fan_out - 1.0, 1.0))


def leaf_gather_factor(group: Group, tier: Tier) -> Number:
    """By how much uplinks of leaf switches lengthen the outermost tier's part of an all-gather.

    Of f - 1 blocks f - near come through the uplinks, where all ranks of a leaf share 1 / o of their rate. Steps of a
    halving-doubling tree follow each other, so those blocks take o times as long and the others what they took.
    """
    if group.near is None:
        return 1.0
    return np.asarray(1.0 + (np.asarray(tier.leaf_oversubscription) - 1.0) * _beyond_leaf(group, group.near))


def leaf_exchange_factor(group: Group, tier: Tier) -> Number:
    """The same of an All-to-All, whose messages travel at once: the ports of the ranks or the uplinks set its pace."""
    if group.near is None:
        return 1.0
    return np.maximum(1.0, np.asarray(tier.leaf_oversubscription) * _beyond_leaf(group, group.near))


def leaf_hop_factor(group: Group, tier: Tier) -> Number:
    """The same of a ring's hop or a send: one of the members below a leaf sends through the uplinks of them all."""
    if group.near is None:
        return 1.0
    below = group.near * group.size / group.fan_out[-1]
    crossed = np.maximum(1.0, np.asarray(tier.leaf_oversubscription) / below)
    return np.where(group.fan_out[-1] > group.near, crossed, 1.0)


def tier_rate(tier: Tier, fan_out: Number) -> Floats:
    """Bytes per second of one rank towards the peers it has in this tier.

    On a full mesh a group of f ranks owns f - 1 of the rank's links: two ranks get one link, 1/7 of an 8-card
    node's bandwidth.

    References
    ----------
    All-gather of 2 / 4 / 8 ranks on Ascend 910B: 38 / 64 / 149 GB/s (limulidae, CANN 8.0.0.beta1), which is
    57-68 % of 28 GB/s a link.
    """
    fan_out = np.asarray(fan_out, dtype=np.float64)
    share = np.minimum(1.0, (fan_out - 1.0) / tier.links) if tier.links else 1.0
    # A group of one has no link here: its rate is kept above 0 only so that nothing divides by it.
    return np.asarray(tier.bytes_per_s * tier.efficiency * np.maximum(share, 1e-12))


def _steps(tier: Tier, fan_out: Floats) -> Floats:
    """Latency steps of one level: one on a full mesh, a halving-doubling tree's on a switch."""
    if tier.links:
        return np.asarray((fan_out > 1).astype(np.float64))
    return np.asarray(np.ceil(np.log2(np.maximum(fan_out, 1.0))))


@dataclass(frozen=True, slots=True)
class GatherRate:
    """Cost of an all-gather over a group: seconds per byte of its output, and those before any byte [n]."""

    s_per_byte: Floats
    latency_s: Floats

    def take(self, index: npt.NDArray[np.int64] | slice | int) -> GatherRate:
        """The rates at an index of the first axis."""
        return GatherRate(self.s_per_byte[index], self.latency_s[index])


def gather_rate(group: Group, tiers: tuple[Tier, ...]) -> GatherRate:
    """The rate of `all_gather_s`, which is linear in the bytes; a group of one rank has none."""
    g = np.asarray(group.size, dtype=np.float64)
    per_byte, latency = np.zeros(g.shape), np.zeros(g.shape)
    gathered = np.asarray(1.0 / g)
    slow = leaf_gather_factor(group, tiers[-1])  # of the first level here, the outermost
    for tier, fan_out in zip(reversed(tiers), reversed(group.fan_out), strict=True):
        crosses = fan_out > 1
        per_byte = per_byte + np.where(crosses, (fan_out - 1.0) * gathered * slow / tier_rate(tier, fan_out), 0.0)
        slow = 1.0
        latency = latency + np.where(crosses, tier.latency_s * _steps(tier, fan_out) + tier.start_s, 0.0)
        gathered = gathered * fan_out
    return GatherRate(np.asarray(per_byte), np.asarray(latency))


def all_gather_s(
    output_bytes: Number, group: Group, tiers: tuple[Tier, ...], fixed_s: Number, rate: GatherRate | None = None
) -> Floats:
    """Seconds until every rank of the group holds all `output_bytes`; reduce-scatter takes as long.

    rate : that of the group, where it is known already.

    Notes
    -----
    Outermost level first: at tier t a rank receives (f_t - 1) * S / g * prod(f_u, u > t) bytes, (g - 1) / g of S over
    all tiers. Levels follow each other, and each starts up once. A group of one rank costs nothing, an empty message
    its latency.

    References
    ----------
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005: (g - 1) / g S of
    bandwidth, log2 g steps. Level by level: HCCL's algorithms of level 0 (server) and level 1.
    """
    rate = gather_rate(group, tiers) if rate is None else rate
    total = output_bytes * rate.s_per_byte + rate.latency_s
    return np.asarray(np.where(np.asarray(group.size) > 1, total + fixed_s, 0.0))


def all_reduce_s(
    payload_bytes: Number, group: Group, tiers: tuple[Tier, ...], fixed_s: Number, rate: GatherRate | None = None
) -> Floats:
    """Seconds of an all-reduce of `payload_bytes` on every rank: reduce-scatter, then all-gather.

    2 (g - 1) / g S of bandwidth: Rabenseifner's algorithm, as in the reference of `all_gather_s`.
    """
    one_way = all_gather_s(payload_bytes, group, tiers, 0.0, rate)
    return np.asarray(np.where(np.asarray(group.size) > 1, 2.0 * one_way + fixed_s, 0.0))


def point_to_point_s(payload_bytes: Number, tier: Tier, fixed_s: Number) -> Floats:
    """Seconds of a point-to-point send of `payload_bytes` to one peer of this tier; on a full mesh that is one link.

    Latency and bandwidth, T = a + S / B: Hockney, "The communication challenge for MPP", 1994; a includes the start of
    the tier's links.
    """
    rate = tier_rate(tier, 2.0)
    return np.asarray(payload_bytes / rate + tier.latency_s + tier.start_s + fixed_s)


def ring_pass_s(chunk_bytes: Number, group: Group, tiers: tuple[Tier, ...], fixed_s: Number) -> Floats:
    """Seconds of one step of ring attention: every rank sends a chunk on, and the slowest hop sets the pace.

    Source: ring attention, arXiv:2310.01889; MindSpeed megatron_cp_algo.
    """
    slowest = np.zeros(np.broadcast_shapes(np.shape(chunk_bytes), np.shape(group.size)))
    for number, (tier, fan_out) in enumerate(zip(tiers, group.fan_out, strict=True)):
        slow = leaf_hop_factor(group, tier) if number == len(tiers) - 1 else 1.0
        hop = point_to_point_s(chunk_bytes * slow, tier, fixed_s)
        slowest = np.where(fan_out > 1, np.maximum(slowest, hop), slowest)
    return np.asarray(slowest)


# A fused kernel cuts no piece below this many multiply-adds, no piece below one tile of rows a rank, and at most 16.
# Source: CANN ops-adv, mc2/common: matmul_performance.cpp (GetLinearThresholdLen), hccl_formulaic_tiling.h.
LEAST_PIECE_PRODUCTS = 10.0 * 2**30
LEAST_PIECE_ROWS = 128.0
MOST_PIECES = 16.0


def fused_pieces(m: Number, n: Number, k: Number, ranks: Number) -> Floats:
    """Pieces in which a kernel that fuses C[m, n] = A[m, k] B[k, n] with its collective over `ranks` runs both."""
    pieces = np.minimum(np.asarray(m) * n * k / LEAST_PIECE_PRODUCTS, np.asarray(m) / (LEAST_PIECE_ROWS * ranks))
    return np.asarray(np.clip(np.floor(pieces), 1.0, MOST_PIECES))


def overlapped_s(compute_s: Number, communication_s: Number, chunks: Number) -> Floats:
    """Seconds of a matrix multiplication and its collective cut into `chunks` that overlap.

    Notes
    -----
    T = max(C, N) (c - 1) / c + (C + N) / c: the first chunk's computation and the last chunk's communication stand
    alone.

    References
    ----------
    MindSpeed, communication over computation (CoC): LLaMA2-70B +7.85 %, BLOOM-176B +5.47 %.
    """
    compute_s, communication_s = np.asarray(compute_s), np.asarray(communication_s)
    return np.asarray(
        np.maximum(compute_s, communication_s) * (chunks - 1.0) / chunks + (compute_s + communication_s) / chunks
    )
