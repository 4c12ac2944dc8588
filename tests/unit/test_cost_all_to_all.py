"""Expert dispatch: bytes of the flat, deduplicated, hierarchical and all-gather exchange."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.all_to_all import all_gather_dispatch_s, distinct_targets, flat_s, hierarchical_s
from cost_models.collectives import Group, Tier
from hardware_profiles.loader import load_profile

TOP_K = 8
TOKENS = 2.0 * 7168 * 4096  # bytes of 4096 tokens of DeepSeek-V3 in BF16
WIRE = 1e9


def only(tier: int, of: int = 2) -> tuple[Tier, ...]:
    """Tiers of which one is slow (1 GB/s) and the others endless, so that seconds are its gigabytes."""
    return tuple(Tier(f"tier{t}", WIRE if t == tier else 1e30, 0, 0.0, 1.0) for t in range(of))


def group(*fan_out: float) -> Group:
    return Group(np.asarray(float(np.prod(fan_out))), tuple(np.asarray(float(f)) for f in fan_out))


def tiers_a2() -> tuple[Tier, ...]:
    return tuple(
        Tier(t.name, t.bytes_per_s_per_rank, t.links if t.kind == "full_mesh" else 0, t.latency_s, t.efficiency)
        for t in load_profile("ascend-800t-a2", calibrated=False).tiers
    )


def test_flat_exchange_sends_all_copies_but_those_for_the_rank_itself() -> None:
    # 2 n h k (e - 1) / e bytes, one direction.
    seconds = float(flat_s(TOKENS, TOP_K, group(32.0), only(0, of=1), 0.0))
    assert seconds * WIRE == pytest.approx(TOKENS * TOP_K * 31 / 32)


def test_flat_exchange_splits_copies_over_disjoint_tiers() -> None:
    inside = float(flat_s(TOKENS, TOP_K, group(8, 4), only(0), 0.0)) * WIRE
    between = float(flat_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0)) * WIRE
    assert inside == pytest.approx(TOKENS * TOP_K * 7 / 32)
    assert between == pytest.approx(TOKENS * TOP_K * 24 / 32)
    assert float(flat_s(TOKENS, TOP_K, group(8, 4), tiers_a2(), 0.0)) == pytest.approx(
        between / (25e9 * 0.80), rel=1e-3
    ), "the links are disjoint: the slower tier alone counts"


def test_the_busiest_rank_receives_the_imbalance() -> None:
    even, uneven = (float(flat_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0, imbalance=i)) for i in (1.0, 1.3))
    assert uneven == pytest.approx(1.3 * even)


def test_hierarchical_exchange_is_twice_as_fast_at_ep32_over_four_nodes() -> None:
    # Pangu Ultra MoE, arXiv:2505.04519: cross-node communication twice as fast at TP8 / EP32; k / O = 8 / 4 = 2.0.
    flat = float(flat_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0))
    stepped = float(hierarchical_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0))
    assert flat / stepped == pytest.approx(2.0)
    on_a2 = float(flat_s(TOKENS, TOP_K, group(8, 4), tiers_a2(), 1e-5)) / float(
        hierarchical_s(TOKENS, TOP_K, group(8, 4), tiers_a2(), 1e-5)
    )
    assert on_a2 == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("nodes", [8, 16, 32])
def test_hierarchical_gains_nothing_from_as_many_nodes_as_choices(nodes: int) -> None:
    flat = float(flat_s(TOKENS, TOP_K, group(8, nodes), only(1), 0.0))
    stepped = float(hierarchical_s(TOKENS, TOP_K, group(8, nodes), only(1), 0.0))
    assert flat / stepped == pytest.approx(TOP_K / nodes)
    assert flat <= stepped * (1 + 1e-12)


def test_hierarchical_moves_all_copies_inside_the_node() -> None:
    # After the all-gather a rank holds n O tokens and sends k / O of each inside: k n (r - 1) / r.
    inside = float(hierarchical_s(TOKENS, TOP_K, group(8, 4), only(0), 0.0)) * WIRE
    assert inside == pytest.approx(TOKENS * TOP_K * 7 / 8)


def test_imbalance_leaves_the_all_gather_between_nodes_alone() -> None:
    even, uneven = (float(hierarchical_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0, imbalance=i)) for i in (1.0, 2.0))
    assert uneven == even


def test_deduplicated_dispatch_sends_a_token_once_a_node() -> None:
    # (O - 1) (1 - (1 - 1 / O)^k) copies of each token leave the node.
    seconds = float(flat_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0, deduplicate=True))
    assert seconds * WIRE / TOKENS == pytest.approx(3 * (1 - 0.75**8))


def test_node_limited_routing_bounds_deduplicated_copies() -> None:
    # Four of eight nodes: at most 4 x 7 / 8 remote copies a token.
    seconds = float(flat_s(TOKENS, TOP_K, group(8, 8), only(1), 0.0, deduplicate=True, groups_limit=4.0))
    assert seconds * WIRE / TOKENS <= 4 * 7 / 8
    assert seconds * WIRE / TOKENS == pytest.approx(float(distinct_targets(8, 4)) * 7 / 8)


def test_distinct_targets_match_a_count_over_all_choices() -> None:
    # All 4^3 ways to choose 3 of 4 places, counted.
    ways = np.stack(np.meshgrid(*[np.arange(4)] * 3), axis=-1).reshape(-1, 3)
    mean = float(np.mean([len(set(way)) for way in ways.tolist()]))
    assert float(distinct_targets(3, 4)) == pytest.approx(mean)


def test_all_gather_dispatch_receives_every_token_of_the_group() -> None:
    # 2 n h (e - 1) bytes; it wins below about k ranks: (e - 1) < k (e - 1) / e.
    gathered = float(all_gather_dispatch_s(TOKENS, group(4.0), only(0, of=1), 0.0)) * WIRE
    assert gathered == pytest.approx(TOKENS * 3)
    for ranks in (2.0, 4.0, 16.0, 32.0):
        flat = float(flat_s(TOKENS, TOP_K, group(ranks), only(0, of=1), 0.0))
        gather = float(all_gather_dispatch_s(TOKENS, group(ranks), only(0, of=1), 0.0))
        assert (gather < flat) == (ranks < TOP_K)


def test_exchange_loss_slows_large_groups_per_doubling_of_peers() -> None:
    # Ascend 910C, 4096 tokens: dispatch falls from 146 GB/s at EP8 to 57 GB/s at EP128 (SGLang measurements).
    loss = (146 / 57 - 1) / 4
    tier = (Tier("ub", 146e9, 0, 0.0, 1.0, exchange_loss=loss),)
    rates = []
    for ranks in (8.0, 128.0):
        received = TOKENS * TOP_K * (ranks - 1) / ranks
        rates.append(received / float(flat_s(TOKENS, TOP_K, group(ranks), tier, 0.0)) / 1e9)
    assert rates == pytest.approx([146, 57], rel=1e-9)


@pytest.mark.parametrize("exchange", [flat_s, hierarchical_s])
def test_one_rank_exchanges_nothing(exchange) -> None:  # type: ignore[no-untyped-def]
    assert float(exchange(TOKENS, TOP_K, group(1, 1), tiers_a2(), 1e-5)) == 0.0


def test_a_small_exchange_costs_its_fixed_time() -> None:
    assert float(flat_s(2.0, 1, group(8, 4), tiers_a2(), 1e-5)) > 1e-5
    assert float(hierarchical_s(2.0, 1, group(8, 4), tiers_a2(), 1e-5)) > 2e-5
