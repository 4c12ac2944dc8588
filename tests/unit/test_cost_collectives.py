"""Collectives against what was measured on the HCCS full mesh of Ascend 910B, and against their textbook volumes."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.collectives import (
    Group,
    Tier,
    all_gather_s,
    all_reduce_s,
    fused_pieces,
    overlapped_s,
    point_to_point_s,
    ring_pass_s,
    tier_rate,
)
from hardware_profiles.loader import load_profile

GIB = float(2**30)


def tiers_of(name: str) -> tuple[Tier, ...]:
    """The tiers of a hardware profile as the formulas read them."""
    return tuple(
        Tier(t.name, t.bytes_per_s, t.links, t.latency_s, t.efficiency)
        for t in load_profile(name, calibrated=False).tiers
    )


def group(*fan_out: float) -> Group:
    """A group with that fan-out per tier, innermost first."""
    return Group(np.asarray(float(np.prod(fan_out))), tuple(np.asarray(float(f)) for f in fan_out))


A2 = tiers_of("ascend-800t-a2")
FIXED_S = load_profile("ascend-800t-a2", calibrated=False).fixed_costs.comm_op_s
PLAIN = (Tier("wire", 1e9, 0, 0.0, 1.0),)


# Source: limulidae README, 910B, CANN 8.0.0.beta1: bytes of the whole output over time. One efficiency serves all
# group sizes; four ranks were measured at 0.54-0.57 of the wire against 0.64-0.68 with two and eight.
@pytest.mark.parametrize(("ranks", "gb_per_s", "tolerance"), [(2, 38, 0.05), (4, 64, 0.15), (8, 149, 0.03)])
def test_all_gather_matches_910b(ranks: int, gb_per_s: float, tolerance: float) -> None:
    rate = GIB / float(all_gather_s(GIB, group(ranks, 1), A2, FIXED_S)) / 1e9
    assert rate == pytest.approx(gb_per_s, rel=tolerance)


@pytest.mark.parametrize(("ranks", "gb_per_s", "tolerance"), [(2, 18, 0.05), (4, 30, 0.22), (8, 72, 0.03)])
def test_all_reduce_matches_910b(ranks: int, gb_per_s: float, tolerance: float) -> None:
    rate = GIB / float(all_reduce_s(GIB, group(ranks, 1), A2, FIXED_S)) / 1e9
    assert rate == pytest.approx(gb_per_s, rel=tolerance)


def test_two_ranks_of_a_full_mesh_own_one_link_of_seven() -> None:
    assert float(tier_rate(A2[0], 8.0) / tier_rate(A2[0], 2.0)) == pytest.approx(7.0)
    assert float(tier_rate(A2[0], 2.0)) == pytest.approx(28e9 * 0.65)


def test_all_gather_receives_what_the_others_hold() -> None:
    # S (g - 1) / g bytes a rank.
    assert float(all_gather_s(1e9, group(8), PLAIN, 0.0)) == pytest.approx(7 / 8)


def test_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    assert float(all_reduce_s(1e9, group(8), PLAIN, 0.0)) == pytest.approx(2 * 7 / 8)


def test_two_level_all_reduce_sends_a_share_of_the_node_over_the_network() -> None:
    # RS inside (S), AR between (S / g), AG inside (S): two-level algorithm of HCCL.
    inner, outer = Tier("node", 100e9, 0, 0.0, 1.0), Tier("network", 10e9, 0, 0.0, 1.0)
    size = 8e9
    expected = 2 * (size * 7 / 8 / 100e9) + 2 * (size / 8 * 3 / 4 / 10e9)
    assert float(all_reduce_s(size, group(8, 4), (inner, outer), 0.0)) == pytest.approx(expected)


def test_every_rank_receives_all_but_its_own_bytes_over_the_tiers_together() -> None:
    outer_only = (Tier("node", 1e30, 0, 0.0, 1.0), Tier("network", 1e9, 0, 0.0, 1.0))
    inner_only = (Tier("node", 1e9, 0, 0.0, 1.0), Tier("network", 1e30, 0, 0.0, 1.0))
    received = sum(float(all_gather_s(1e9, group(8, 4), t, 0.0)) for t in (outer_only, inner_only))
    assert received == pytest.approx(31 / 32)


def test_latency_steps_one_on_a_mesh_and_a_tree_on_a_switch() -> None:
    mesh = (Tier("mesh", 1e30, 7, 1e-6, 1.0),)
    switch = (Tier("switch", 1e30, 0, 1e-6, 1.0),)
    assert float(all_gather_s(1.0, group(8), mesh, 0.0)) == pytest.approx(1e-6)
    assert float(all_gather_s(1.0, group(8), switch, 0.0)) == pytest.approx(3e-6)
    assert float(all_reduce_s(1.0, group(8), switch, 10e-6)) == pytest.approx(16e-6)


def test_a_group_of_one_costs_nothing() -> None:
    for collective in (all_gather_s, all_reduce_s, ring_pass_s):
        assert float(collective(1e9, group(1, 1), A2, 1e-5)) == 0.0


def test_point_to_point_uses_one_link_of_a_mesh_and_the_whole_port_of_a_switch() -> None:
    assert float(point_to_point_s(28e9 * 0.65, A2[0], 0.0)) == pytest.approx(1.0, rel=1e-5)
    assert float(point_to_point_s(25e9 * 0.80, A2[1], 0.0)) == pytest.approx(1.0, rel=1e-5)


def test_a_ring_goes_at_the_pace_of_its_slowest_hop() -> None:
    chunk = 1e8
    slow_port = (A2[0], Tier("port", 1e9, 0, 1e-6, 1.0))
    assert float(ring_pass_s(chunk, group(8, 2), slow_port, 0.0)) == pytest.approx(0.1, rel=1e-3)
    assert float(ring_pass_s(chunk, group(8, 1), slow_port, 0.0)) == pytest.approx(chunk / (28e9 * 0.65), rel=1e-3)
    # One HCCS link at 0.65 of 28 GB/s is slower than RoCE at 0.80 of 25 GB/s.
    mixed = float(ring_pass_s(chunk, group(8, 2), A2, 0.0))
    assert mixed == pytest.approx(max(float(point_to_point_s(chunk, tier, 0.0)) for tier in A2))


# Source: MindSpeed, communication over computation (CoC): T = max(C, N) (c - 1) / c + (C + N) / c, c in 2, 4, 8.
@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_coc_overlap(chunks: int) -> None:
    assert float(overlapped_s(3.0, 2.0, chunks)) == pytest.approx(3.0 * (chunks - 1) / chunks + 5.0 / chunks)


def test_coc_never_beats_the_longer_part_nor_loses_to_the_sum() -> None:
    parts = np.linspace(0.1, 4.0, 40)
    for chunks in (1, 2, 4, 8):
        together = overlapped_s(parts, 2.0, float(chunks))
        assert np.all(together >= np.maximum(parts, 2.0))
        assert np.all(together <= parts + 2.0 + 1e-12)


# Source: CANN ops-adv, mc2: a piece holds at least 10 Gi products and 128 rows of each rank; 16 pieces at most.
@pytest.mark.parametrize(
    ("m", "n", "k", "ranks", "pieces"),
    [
        (16384, 4096, 512, 8, 3),  # output projection of 7B, TP8, two sequences of 8192: 32 Gi products
        (4096, 7168, 8192, 8, 4),  # first MLP product of 70B, TP8, 4096 tokens: 512 rows a rank
        (65536, 7168, 8192, 8, 16),
        (512, 1024, 1024, 8, 1),
    ],
)
def test_pieces_of_a_fused_kernel(m: int, n: int, k: int, ranks: int, pieces: int) -> None:
    assert float(fused_pieces(m, n, k, ranks)) == pieces


def _half(half_mib: float, *, links: int = 0) -> Tier:
    return Tier("t", 100e9, links, 0.0, 0.5, half_mib * 2**20)


def test_half_of_the_rate_is_reached_at_the_half_size() -> None:
    """The bytes that a rank receives in one pass count, on a switch and on all links of a mesh."""
    group = Group(np.array([8.0]), (np.array([8.0]),))
    received = 2.0 * 2**20
    for links in (0, 7):
        full = all_gather_s(received * 8 / 7, group, (_half(0.0, links=links),), 0.0)
        half = all_gather_s(received * 8 / 7, group, (_half(2.0, links=links),), 0.0)
        assert half == pytest.approx(2.0 * full)
        assert all_reduce_s(received, group, (_half(2.0, links=links),), 0.0) - all_reduce_s(
            received, group, (_half(0.0, links=links),), 0.0
        ) == pytest.approx(2.0 * received / 50e9)


def test_large_messages_hardly_feel_the_half_size() -> None:
    group = Group(np.array([8.0]), (np.array([8.0]),))
    size = 2.0**30
    assert all_gather_s(size, group, (_half(2.0),), 0.0) / all_gather_s(size, group, (_half(0.0),), 0.0) < 1.003


def test_a_send_starts_its_links_too() -> None:
    assert point_to_point_s(2.0**20, _half(1.0), 0.0) == pytest.approx(2.0 * 2.0**20 / 50e9)
