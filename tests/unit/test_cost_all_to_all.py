"""Expert dispatch: bytes of the flat, deduplicated, hierarchical and all-gather exchange."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.all_to_all import (
    ExpertGroups,
    Routing,
    all_gather_dispatch_s,
    distinct_nodes,
    distinct_targets,
    flat_s,
    hierarchical_s,
    turn_s,
)
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
        Tier(t.name, t.bytes_per_s, t.links, t.latency_s, t.efficiency)
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
    even, uneven = (float(flat_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0, Routing(imbalance=i))) for i in (1.0, 1.3))
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
    seconds = float(flat_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0, Routing(deduplicate=True)))
    assert seconds * WIRE / TOKENS == pytest.approx(3 * (1 - 0.75**8))


def test_deduplicated_tokens_are_copied_inside_the_node_they_land_in() -> None:
    # k n (r - 1) / r, as the hierarchical exchange; one node has nothing to deduplicate.
    inside = float(flat_s(TOKENS, TOP_K, group(8, 4), only(0), 0.0, Routing(deduplicate=True))) * WIRE
    assert inside == pytest.approx(TOKENS * TOP_K * 7 / 8)
    alone, plain = (
        float(flat_s(TOKENS, TOP_K, group(8, 1), only(0), 0.0, Routing(deduplicate=d))) for d in (True, False)
    )
    assert alone == plain


def test_deduplication_pays_while_nvlink_keeps_up() -> None:
    # DeepSeek-V3, section 3.2.2: NVLink at 160 GB/s is 3.2 times InfiniBand at 50 GB/s, so a token may have 3.2 experts
    # on each of 4 nodes before NVLink sets the time.
    tiers = (Tier("nvlink", 160e9, 0, 0.0, 1.0), Tier("infiniband", 50e9, 0, 0.0, 1.0))
    groups = ExpertGroups(64, 4)
    few, many = (
        float(flat_s(TOKENS, k, group(8, 64), tiers, 0.0, Routing(deduplicate=True, groups=groups)))
        for k in (12.8, 16.0)
    )
    across = float(distinct_targets(12.8, 4)) * 63 / 64 * TOKENS / 50e9
    assert few == pytest.approx(across)
    assert many > 1.05 * across


def test_group_limited_routing_bounds_deduplicated_copies() -> None:
    # One expert group a node, four of eight picked: at most 4 x 7 / 8 remote copies a token.
    groups = ExpertGroups(8, 4)
    seconds = float(flat_s(TOKENS, TOP_K, group(8, 8), only(1), 0.0, Routing(deduplicate=True, groups=groups)))
    assert seconds * WIRE / TOKENS <= 4 * 7 / 8
    assert seconds * WIRE / TOKENS == pytest.approx(float(distinct_targets(8, 4)) * 7 / 8)


@pytest.mark.parametrize("nodes", [2, 4, 8, 16, 32])
def test_distinct_nodes_match_a_draw_of_groups_and_experts(nodes: int) -> None:
    # 256 experts in 8 groups of which a token picks 4: drawn, not computed. Experts are drawn with replacement.
    state = np.random.RandomState(7)
    picked = np.argsort(state.rand(40_000, 8), axis=1)[:, :4]
    group_of = np.take_along_axis(picked, state.randint(0, 4, (40_000, TOP_K)), axis=1)
    node = (group_of * 32 + state.randint(0, 32, group_of.shape)) * nodes // 256
    drawn = np.mean([len(set(row)) for row in node.tolist()])
    assert float(distinct_nodes(TOP_K, nodes, ExpertGroups(8, 4))) == pytest.approx(drawn, rel=0.01)
    assert float(distinct_nodes(TOP_K, nodes, ExpertGroups(8, 8))) == float(distinct_targets(TOP_K, nodes))


def test_expert_groups_are_not_nodes() -> None:
    # On two nodes of four groups each, four picked groups almost always touch both.
    assert float(distinct_nodes(TOP_K, 2, ExpertGroups(8, 4))) > 1.9


def test_a_node_shares_what_enters_it_deduplicated() -> None:
    busy = float(
        flat_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0, Routing(deduplicate=True, imbalance=2.0, node_imbalance=1.1))
    )
    assert busy == pytest.approx(
        1.1 * float(flat_s(TOKENS, TOP_K, group(8, 4), only(1), 0.0, Routing(deduplicate=True)))
    )


def test_sequential_dispatch_turns_its_tokens_inside_the_tensor_parallel_group() -> None:
    cut = float(turn_s(TOKENS, group(8, 1), only(0), 0.0))
    assert cut * WIRE == pytest.approx(TOKENS * 7 / 8)
    assert float(turn_s(TOKENS, group(1, 1), only(0), 0.0)) == 0.0, "tp-extend-ep turns nothing"


def test_steps_that_are_not_pipelined_add_up() -> None:
    across, inside = (float(hierarchical_s(TOKENS, TOP_K, group(8, 4), only(t), 0.0)) for t in (1, 0))
    both = (Tier("a", WIRE, 0, 0.0, 1.0), Tier("b", WIRE, 0, 0.0, 1.0))
    piped = float(hierarchical_s(TOKENS, TOP_K, group(8, 4), both, 0.0))
    after = float(hierarchical_s(TOKENS, TOP_K, group(8, 4), both, 0.0, pipelined=False))
    assert piped == pytest.approx(max(across, inside))
    assert after == pytest.approx(across + inside)


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


@pytest.mark.parametrize(
    ("exchange", "measured", "worst"),
    [
        # GB/s a die by EP, Ascend 910C, 4096 tokens of 7168, top-8 (sgl-kernel-npu, DeepEP on A3).
        ("dispatch", {8: 146, 16: 107, 32: 102, 64: 81, 128: 57}, 0.17),
        ("combine", {8: 125, 16: 103, 32: 95, 64: 91, 128: 81}, 0.08),
    ],
)
def test_the_profile_s_loss_follows_the_measured_exchange(exchange: str, measured: dict, worst: float) -> None:
    loss = load_profile("cloudmatrix-384", calibrated=False).efficiency[f"{exchange}_loss"]
    for ranks, rate in measured.items():
        tier = (Tier("ub", measured[8] * 1e9, 0, 0.0, 1.0),)
        received = TOKENS * TOP_K * (ranks - 1) / ranks
        found = received / float(flat_s(TOKENS, TOP_K, group(float(ranks)), tier, 0.0, loss=loss)) / 1e9
        assert found == pytest.approx(rate, rel=worst)


def test_an_exchange_was_not_measured_beyond_one_node_of_an_a2() -> None:
    """What others measured stands in, widely; the published doubling at EP32 over 4 nodes stays."""
    profile = load_profile("ascend-800t-a2")
    for name in ("efficiency.dispatch_loss", "efficiency.combine_loss"):
        assert profile.quantity(name).kind == "assumed"
        assert (profile.quantity(name).prior_sigma or 0.0) >= 0.7
    loss = profile.efficiency["dispatch_loss"]
    flat, stepped = (
        float(way(TOKENS, TOP_K, group(8, 4), tiers_a2(), 1e-5, loss=loss)) for way in (flat_s, hierarchical_s)
    )
    assert flat / stepped == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("exchange", [flat_s, hierarchical_s])
def test_one_rank_exchanges_nothing(exchange) -> None:  # type: ignore[no-untyped-def]
    assert float(exchange(TOKENS, TOP_K, group(1, 1), tiers_a2(), 1e-5)) == 0.0


def test_a_small_exchange_costs_its_fixed_time() -> None:
    assert float(flat_s(2.0, 1, group(8, 4), tiers_a2(), 1e-5)) > 1e-5
    assert float(hierarchical_s(2.0, 1, group(8, 4), tiers_a2(), 1e-5)) > 2e-5


def test_the_all_gather_crosses_the_outermost_of_three_tiers() -> None:
    # Two dies a card, 8 cards a node, 4 nodes: 3 copies of each token cross, 15 of 16 of the choices stay inside.
    three = group(2, 8, 4)
    across = float(hierarchical_s(TOKENS, TOP_K, three, only(2, of=3), 0.0)) * WIRE
    inside = sum(float(hierarchical_s(TOKENS, TOP_K, three, only(t, of=3), 0.0)) * WIRE for t in (0, 1))
    assert across == pytest.approx(3 * TOKENS)
    assert inside == pytest.approx(TOKENS * TOP_K * 15 / 16)


def test_many_ranks_slow_the_exchange_inside_and_the_all_gather() -> None:
    # 64 ranks inside are three doublings of 8: a loss of 0.5 takes 2.5 times as long. All of them gather across at
    # once, over 15 instances more: log2(961 / 8) doublings.
    inside, across = (
        [float(hierarchical_s(TOKENS, TOP_K, group(64, 16), only(tier), 0.0, loss=loss)) for loss in (0.0, 0.5)]
        for tier in (0, 1)
    )
    assert inside[1] == pytest.approx(2.5 * inside[0])
    assert across[1] == pytest.approx(across[0] * (1.0 + 0.5 * np.log2(961 / 8)))


def test_an_exchange_starts_its_links_once_a_step() -> None:
    # 64 ranks on a switch are six steps, on the full mesh one.
    switch = (Tier("switch", WIRE, 0, 0.0, 1.0, 0.5e9),)
    mesh = (Tier("mesh", WIRE, 63, 0.0, 1.0, 0.5e9),)
    assert float(flat_s(1.0, 1, group(64), switch, 0.0)) == pytest.approx(6 * 0.5)
    assert float(flat_s(1.0, 1, group(64), mesh, 0.0)) == pytest.approx(0.5)
