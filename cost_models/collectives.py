"""Collectives over a tiered network: all-gather, reduce-scatter, all-reduce, point to point.

A group of g ranks spans tiers from the innermost out (die pair, full mesh, supernode, scale-out). Within one instance
of tier t it has r_t members, so tier t adds a fan-out f_t = r_t / r_(t-1), and the fan-outs multiply to g. Collectives
run level by level, so that each rank's slower links carry only what they must.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Number = Floats | float | int


@dataclass(frozen=True, slots=True)
class Tier:
    """One level of the network as a rank sees it.

    bytes_per_s : one direction, all of the rank's links of this tier together [B/s].
    links : for a full mesh, its links per rank (instance size - 1); 0 for a switch.
    latency_s : per step [s].
    efficiency : fraction of bytes_per_s that large transfers reach.
    """

    name: str
    bytes_per_s: Number
    links: int
    latency_s: Number
    efficiency: Number


@dataclass(frozen=True, slots=True)
class Group:
    """A communication group: fan-out per tier, each an array (candidate first); innermost tier first."""

    size: Floats
    fan_out: tuple[Floats, ...]

    def members_inside(self, tier: int) -> Floats:
        """Members within one instance of a tier: the product of the fan-outs up to it."""
        return np.asarray(np.prod(np.broadcast_arrays(*self.fan_out[: tier + 1]), axis=0))


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
    return np.asarray(tier.bytes_per_s * tier.efficiency * np.maximum(share, 1e-12))


def _steps(tier: Tier, fan_out: Floats) -> Floats:
    """Latency steps of one level: one on a full mesh, a halving-doubling tree's on a switch."""
    if tier.links:
        return np.asarray((fan_out > 1).astype(np.float64))
    return np.asarray(np.ceil(np.log2(np.maximum(fan_out, 1.0))))


def all_gather_s(output_bytes: Number, group: Group, tiers: tuple[Tier, ...], fixed_s: Number) -> Floats:
    """Seconds until every rank of the group holds all `output_bytes`; reduce-scatter takes as long.

    Notes
    -----
    Outermost level first: at tier t a rank receives (f_t - 1) * S / g * prod(f_u, u > t) bytes. A group of one rank
    costs nothing.
    """
    g = np.asarray(group.size, dtype=np.float64)
    total = np.zeros(np.broadcast_shapes(np.shape(output_bytes), g.shape))
    gathered = np.asarray(output_bytes / g)
    for tier, fan_out in zip(reversed(tiers), reversed(group.fan_out), strict=True):
        received = (fan_out - 1.0) * gathered
        total = total + np.where(
            fan_out > 1, received / tier_rate(tier, fan_out) + tier.latency_s * _steps(tier, fan_out), 0.0
        )
        gathered = gathered * fan_out
    return np.asarray(np.where(g > 1, total + fixed_s, 0.0))


def all_reduce_s(payload_bytes: Number, group: Group, tiers: tuple[Tier, ...], fixed_s: Number) -> Floats:
    """Seconds of an all-reduce of `payload_bytes` on every rank: reduce-scatter, then all-gather."""
    one_way = all_gather_s(payload_bytes, group, tiers, 0.0)
    return np.asarray(np.where(np.asarray(group.size) > 1, 2.0 * one_way + fixed_s, 0.0))


def point_to_point_s(payload_bytes: Number, tier: Tier, fixed_s: Number) -> Floats:
    """Seconds to send `payload_bytes` to one peer of this tier; on a full mesh that is one link."""
    rate = tier_rate(tier, 2.0)
    return np.asarray(payload_bytes / rate + tier.latency_s + fixed_s)


def ring_pass_s(chunk_bytes: Number, group: Group, tiers: tuple[Tier, ...], fixed_s: Number) -> Floats:
    """Seconds of one step of a ring: every rank sends a chunk on, and the slowest hop sets the pace."""
    slowest = np.zeros(np.broadcast_shapes(np.shape(chunk_bytes), np.shape(group.size)))
    for tier, fan_out in zip(tiers, group.fan_out, strict=True):
        hop = point_to_point_s(chunk_bytes, tier, fixed_s)
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
