"""Expert dispatch and combine: the All-to-All of a Mixture-of-Experts layer and what replaces it.

n tokens a rank, each sent to k experts; the routed experts of a layer spread over a group of `ep` ranks. `imbalance`
is max / mean tokens over the ranks of the group: the busiest rank receives that much more.

Parameters
----------
places : that k choices can hit [count].
count, limit : groups of experts; how many of them a token's experts lie in [count].
tensor_group : `Group` of the ranks that cut an expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.collectives import Group, Tier, all_gather_s, leaf_exchange_factor, leaf_gather_factor, tier_rate

if TYPE_CHECKING:
    from cost_models.arrays import Bools, Floats, Number


def distinct_targets(choices: Number, places: Number) -> Floats:
    """Expected number of distinct places that k independent uniform choices hit [n], between 1 and min(k, O).

    E = O (1 - (1 - 1 / O)^k), the classical occupancy problem: copies of a token that leave once per place instead of
    once per expert.
    """
    places = np.asarray(places, dtype=np.float64)
    return np.asarray(places * (1.0 - (1.0 - 1.0 / places) ** choices))


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Group-limited routing: experts lie in `count` equal groups, and a token's experts in `limit` of them."""

    count: int
    limit: int


def distinct_nodes(choices: Number, nodes: Number, groups: ExpertGroups | None = None) -> Floats:
    """Expected number of distinct nodes that hold a token's k experts.

    Parameters
    ----------
    nodes : O, over which the experts lie evenly; an expert group lies in one node or over several whole ones.
    groups : absent, the k choices are independent.

    Notes
    -----
    A token picks M of G groups, and its k experts spread evenly over them. A node that holds g = G / O groups has j of
    the M with the hypergeometric probability C(g, j) C(G - g, M - j) / C(G, M), and then one of the k experts with
    1 - (1 - j / M)^k. Where a group spans G < O nodes' worth, its share of a node is j = G / O of a group.
    Source of group-limited routing: DeepSeek-V2, arXiv:2405.04434, section 2.1.3.
    """
    nodes = np.asarray(nodes, dtype=np.float64)
    if groups is None or groups.limit >= groups.count:
        return distinct_targets(choices, nodes)
    count, limit = float(groups.count), groups.limit
    spread = groups.count / nodes  # groups of a node, below 1 where a group spans several
    inside = np.maximum(spread, 1.0)
    hit = np.zeros(np.broadcast_shapes(nodes.shape, np.shape(choices)))
    total = np.zeros_like(nodes)
    for picked in range(limit + 1):
        ways = _binomial(inside, picked) * _binomial(count - inside, limit - picked)
        share = picked / limit * np.minimum(spread, 1.0)
        hit = hit + ways * (1.0 - (1.0 - share) ** choices)
        total = total + ways
    return np.asarray(nodes * hit / total)


def _binomial(n: Floats, k: int) -> Floats:
    """C(n, k), 0 where fewer than k are there."""
    product = np.ones_like(n)
    for step in range(k):
        product = product * np.maximum(n - step, 0.0) / (step + 1.0)
    return product


def _level_s(
    received_bytes: Floats, peers: Floats, tier: Tier, fan_out: Floats, loss: Number, *, beside: Number = 1.0
) -> Floats:
    """Seconds of one tier's share of a pairwise exchange.

    Parameters
    ----------
    received_bytes : by the rank over this tier [B]. peers : that send them (count).
    loss : by how much the exchange slows per doubling (fraction), fitted to runs: `dispatch_loss`, `combine_loss`.
    beside : ranks of an instance that exchange with theirs over the same fabric at the same time (count).

    Notes
    -----
    Many peers mean many small messages: beyond 8 ranks, one node of an Atlas 800T A2 or a DGX, the rate falls to
    1 / (1 + loss log2(ranks / 8)). On a switch each doubling is a latency and a start of the links, because the
    message is split over the peers and nothing is passed on in a pipeline; on a full mesh all peers are one step away.

    References
    ----------
    NCCL All-to-All on A100 over two nodes and on H800 over eight (aliyun/SimAI; NVIDIA/nccl issue 1531): beyond wire,
    latency and fixed cost 190 and 75-115 us, as long as the NIC takes for 3.8 and 3.0-4.7 MiB, 4 and 6 steps.
    """
    doublings = np.log2(np.maximum(peers * beside + 1.0, 8.0) / 8.0)
    rate = tier_rate(tier, fan_out) * tier.exchange / (1.0 + np.asarray(loss) * doublings)
    steps = 1.0 if tier.links else np.ceil(np.log2(np.maximum(peers + 1.0, 1.0)))
    return np.asarray(np.where(fan_out > 1, received_bytes / rate + steps * (tier.latency_s + tier.start_s), 0.0))


@dataclass(frozen=True, slots=True)
class Routing:
    """Unevenness of the routing of tokens, and how often a token is sent.

    imbalance : max / mean tokens over ranks of the group [ratio].
    node_imbalance : the same over instances of the outermost tier, whose ranks share what enters it when copies are
        deduplicated; absent, the ranks' own [ratio].
    deduplicate : whether a token crosses the outermost tier once per instance it goes to, not once per expert.
    groups : group-limited routing: experts of a token lie in few groups, and so in fewer instances.
    """

    imbalance: Number = 1.0
    node_imbalance: Number | None = None
    deduplicate: Bools | bool = False
    groups: ExpertGroups | None = None


EVEN = Routing()


def flat_s(
    token_bytes: Number,
    choices: Number,
    group: Group,
    tiers: tuple[Tier, ...],
    fixed_s: Number,
    routing: Routing = EVEN,
    *,
    loss: Number = 0.0,
) -> Floats:
    """Seconds of one pairwise All-to-All (dispatch or combine).

    Parameters
    ----------
    token_bytes : all tokens of a rank, once each [B].
    choices : experts per token, k [experts].
    routing : even, each copy on its own, unless told.
    loss : by how much the exchange slows per doubling of a tier's ranks beyond 8 [fraction].

    Notes
    -----
    Tiers are disjoint links and run at the same time: the slowest sets the time. Bytes through tier t are
    (r_t - r_(t-1)) / g of k copies a token. Deduplicated, a token lands on one rank of an instance and is copied from
    there: all k copies are made inside, (r_t - r_(t-1)) / r of them over tier t, r = g / O ranks of an instance.
    Source: DeepSeek-V3, arXiv:2412.19437, section 3.2.2: to the rank of the same index over InfiniBand, then NVLink.
    """
    g = np.asarray(group.size, dtype=np.float64)
    copies = np.asarray(token_bytes * choices) * routing.imbalance
    once = np.asarray(routing.deduplicate)
    spread = np.where(once, g / np.maximum(group.fan_out[-1], 1.0), g)
    inside = np.ones_like(g)
    slowest = np.zeros(np.broadcast_shapes(copies.shape, g.shape))
    for index, (tier, fan_out) in enumerate(zip(tiers, group.fan_out, strict=True)):
        members = inside * fan_out
        received = copies * (members - inside) / spread
        if once.any() and index == len(tiers) - 1:
            uneven = routing.imbalance if routing.node_imbalance is None else routing.node_imbalance
            reached = distinct_nodes(choices, np.maximum(fan_out, 1.0), routing.groups)
            sent = np.asarray(token_bytes * reached * (fan_out - 1.0) / np.maximum(fan_out, 1.0)) * uneven
            received = np.where(once, sent, received)
        if index == len(tiers) - 1:
            received = received * leaf_exchange_factor(group, tier)
        slowest = np.maximum(slowest, _level_s(received, members - inside, tier, fan_out, loss))
        inside = members
    return np.asarray(np.where(g > 1, slowest + fixed_s, 0.0))


def turn_s(token_bytes: Number, tensor_group: Group, tiers: tuple[Tier, ...], fixed_s: Number) -> Floats:
    """Seconds of MindSpeed's sequential dispatcher beyond those of its flat exchange.

    Where experts are cut over a tensor-parallel group, its ranks first turn their own tokens at full width into all
    tokens of the group at 1 / t of the width, and back after the combine: an All-to-All of the rank's tokens inside
    that group. The all-gather of received rows is an exchange of its own. With whole experts (tp-extend-ep) there is
    nothing to turn. Source: MindSpeed alltoall_seq, all_to_all_sp2hp.
    """
    return flat_s(token_bytes, 1.0, tensor_group, tiers, fixed_s)


def all_gather_dispatch_s(token_bytes: Number, group: Group, tiers: tuple[Tier, ...], fixed_s: Number) -> Floats:
    """Seconds when every rank gathers all tokens of the group and keeps its own; combine is a reduce-scatter.

    Parameters
    ----------
    group : all ranks that hold the experts of a layer, tensor parallel ranks of an expert included: (e t - 1) times
        the rank's tokens arrive.

    Every rank receives the same bytes, so routing imbalance does not lengthen it. Source: Megatron-LM
    MoEAllGatherTokenDispatcher.
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
    pipelined: bool = True,
    loss: Number = 0.0,
) -> Floats:
    """Seconds of a hierarchical All-to-All: all-gather across the outermost tier, All-to-All inside.

    Parameters
    ----------
    pipelined : the steps run on their disjoint links at the same time and the slower one counts; else they add up.

    Notes
    -----
    Across: (O - 1) copies of each token, O = instances of the outermost tier in the group, the same for every rank.
    Inside: k copies over the inner tiers. Against a flat exchange without deduplication the outer bytes fall by k / O;
    at O >= k there is nothing to gain from balanced experts.

    References
    ----------
    Pangu Ultra MoE, arXiv:2505.04519: inter-node communication twice as fast at EP32 over 4 nodes, k = 8.
    """
    g = np.asarray(group.size, dtype=np.float64)
    outer = group.fan_out[-1]
    across = np.asarray((outer - 1.0) * token_bytes) * leaf_gather_factor(group, tiers[-1])
    inner_size = np.maximum(g / np.maximum(outer, 1.0), 1.0)
    # All ranks of an instance gather at once and load the fabric as a flat exchange does: DeepEP, which crosses between
    # ranks of one index, loses 14 % from 32 to 64 ranks.
    outer_s = _level_s(across, outer - 1.0, tiers[-1], outer, loss, beside=inner_size)
    inner = Group(inner_size, (*group.fan_out[:-1], np.ones_like(g)))
    inner_s = flat_s(token_bytes, choices, inner, tiers, 0.0, Routing(imbalance), loss=loss)
    both = np.maximum(outer_s, inner_s) if pipelined else outer_s + inner_s
    return np.asarray(np.where(g > 1, both + 2.0 * np.asarray(fixed_s), 0.0))
