"""Expert dispatch and combine: the All-to-All of a Mixture-of-Experts layer and what replaces it.

n tokens a rank, each sent to k experts; the routed experts of a layer spread over a group of `ep` ranks. `imbalance`
is max / mean tokens over the ranks of the group: the busiest rank receives that much more.
"""

from __future__ import annotations

import numpy as np

from cost_models.collectives import Floats, Group, Number, Tier, all_gather_s, tier_rate


def distinct_targets(choices: Number, places: Number) -> Floats:
    """Expected number of distinct places that k independent uniform choices hit.

    E = O (1 - (1 - 1 / O)^k): copies of a token that leave once per place instead of once per expert.
    """
    places = np.asarray(places, dtype=np.float64)
    return np.asarray(places * (1.0 - (1.0 - 1.0 / places) ** choices))


def _level_s(received_bytes: Floats, peers: Floats, tier: Tier, fan_out: Floats) -> Floats:
    """Seconds of one tier's share of a pairwise exchange.

    Many peers mean many small messages: beyond 8 peers the rate falls by `exchange_loss` per doubling.
    """
    doublings = np.log2(np.maximum(peers + 1.0, 8.0) / 8.0)
    rate = tier_rate(tier, fan_out) / (1.0 + tier.exchange_loss * doublings)
    steps = 1.0 if tier.links else np.ceil(np.log2(np.maximum(peers + 1.0, 1.0)))
    return np.asarray(np.where(fan_out > 1, received_bytes / rate + steps * tier.latency_s, 0.0))


def flat_s(
    token_bytes: Number,
    choices: Number,
    group: Group,
    tiers: tuple[Tier, ...],
    fixed_s: Number,
    *,
    imbalance: Number = 1.0,
    deduplicate: bool = False,
    groups_limit: Number | None = None,
) -> Floats:
    """Seconds of one pairwise All-to-All (dispatch or combine).

    Parameters
    ----------
    token_bytes : all tokens of a rank, once each [B].
    choices : experts per token, k.
    imbalance : max / mean tokens over ranks of the group.
    deduplicate : a token crosses the outermost tier once per instance it goes to, not once per expert.
    groups_limit : node-limited routing: experts of a token lie in at most this many instances of the outermost tier.

    Notes
    -----
    Tiers are disjoint links and run at the same time: the slowest sets the time. Bytes through tier t are
    (r_t - r_(t-1)) / g of k copies a token.
    """
    g = np.asarray(group.size, dtype=np.float64)
    copies = np.asarray(token_bytes * choices) * imbalance
    inside = np.ones_like(g)
    slowest = np.zeros(np.broadcast_shapes(copies.shape, g.shape))
    for index, (tier, fan_out) in enumerate(zip(tiers, group.fan_out, strict=True)):
        members = inside * fan_out
        share = (members - inside) / g
        if index == len(tiers) - 1:
            share = _outermost_share(share, choices, fan_out, deduplicate, groups_limit)
        slowest = np.maximum(slowest, _level_s(copies * share, members - inside, tier, fan_out))
        inside = members
    return np.asarray(np.where(g > 1, slowest + fixed_s, 0.0))


def _outermost_share(
    share: Floats, choices: Number, places: Floats, deduplicate: bool, groups_limit: Number | None
) -> Floats:
    """Share of the k copies that cross the outermost tier."""
    limited = places if groups_limit is None else np.minimum(places, groups_limit)
    if deduplicate:
        copies = distinct_targets(choices, np.maximum(limited, 1.0))
        return np.asarray(copies * (places - 1.0) / np.maximum(places, 1.0) / choices)
    return share


def all_gather_dispatch_s(token_bytes: Number, group: Group, tiers: tuple[Tier, ...], fixed_s: Number) -> Floats:
    """Seconds when every rank gathers all tokens of the group and keeps its own; combine is a reduce-scatter.

    Every rank receives the same bytes, so routing imbalance does not lengthen it.
    """
    return all_gather_s(np.asarray(token_bytes) * np.asarray(group.size), group, tiers, fixed_s)


def hierarchical_s(
    token_bytes: Number,
    choices: Number,
    group: Group,
    tiers: tuple[Tier, ...],
    fixed_s: Number,
    *,
    imbalance: Number = 1.0,
) -> Floats:
    """Seconds of the two-step exchange: all-gather across the outermost tier, All-to-All inside.

    Notes
    -----
    Across: (O - 1) copies of each token, O = instances of the outermost tier in the group. Inside: k copies over the
    inner tiers. The links are disjoint and the steps are pipelined, so the slower one counts. Against a flat exchange
    without deduplication the outer bytes fall by k / O; at O >= k there is nothing to gain.

    References
    ----------
    Pangu Ultra MoE, arXiv:2505.04519: inter-node communication twice as fast at EP32 over 4 nodes, k = 8.
    """
    g = np.asarray(group.size, dtype=np.float64)
    outer = group.fan_out[-1]
    across = np.asarray((outer - 1.0) * token_bytes)
    outer_s = _level_s(across, outer - 1.0, tiers[-1], outer)
    inner_size = np.maximum(g / np.maximum(outer, 1.0), 1.0)
    inner = Group(inner_size, (*group.fan_out[:-1], np.ones_like(g)))
    inner_s = flat_s(token_bytes, choices, inner, tiers, 0.0, imbalance=imbalance)
    return np.asarray(np.where(g > 1, np.maximum(outer_s, inner_s) + 2.0 * np.asarray(fixed_s), 0.0))
