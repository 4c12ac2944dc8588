"""What every formula of the cost models keeps, whatever the numbers: order, scale, conservation, scalar = vector."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.costs.workload.layers import layer_table
from autodeploy.costs.workload.operators import OperatorFeatures, Sharding
from autodeploy.specs.presets import load_preset
from cost_models.all_to_all import Routing, all_gather_dispatch_s, distinct_targets, flat_s, hierarchical_s
from cost_models.collectives import Group, Tier, all_gather_s, all_reduce_s, overlapped_s, point_to_point_s, ring_pass_s
from cost_models.compute import ComputeRates, attention_s, gemm_efficiency, gemm_s, grouped_gemm_s, movement_s, vector_s
from cost_models.data_parallel import exposed_s, host_optimizer_s, optimizer_s, synchronisation
from cost_models.hbm import state_bytes
from cost_models.host_bound import exposed_host_s, kernel_launch_s
from cost_models.swap import exposed_swap_s

MANY = settings(max_examples=25)

sizes = st.floats(1.0, 1e11)
rates = st.floats(1e8, 1e12)
fractions = st.floats(0.05, 1.0)
small_times = st.floats(0.0, 1e-3)
fan_outs = st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4, 16]))
RATES = ComputeRates(
    peak_flops=353.9e12,
    hbm_bytes_per_s=1600e9,
    gemm_fraction=0.989,
    gemm_k_half=416.0,
    gemm_mn_half=19.8,
    grouped_gemm=0.74,
    attention_forward=0.60,
    attention_backward=0.50,
    attention_head_dim_half=64.0,
    attention_seq_half=512.0,
    hbm_fraction=0.80,
    movement_fraction=0.20,
    cube_op_s=5e-6,
    vector_op_s=2e-6,
)


@st.composite
def networks(draw: st.DrawFn) -> tuple[Tier, ...]:
    """A full mesh of eight inside, a switch outside."""
    return (
        Tier("mesh", draw(rates), 7, draw(small_times), draw(fractions)),
        Tier("switch", draw(rates), 0, draw(small_times), draw(fractions)),
    )


def group(fan_out: tuple[int, ...]) -> Group:
    return Group(np.asarray(float(np.prod(fan_out))), tuple(np.asarray(float(f)) for f in fan_out))


def times(size: float, fan_out: tuple[int, ...], tiers: tuple[Tier, ...]) -> dict[str, float]:
    """Seconds of every collective for one message."""
    placed = group(fan_out)
    return {
        "all_gather": float(all_gather_s(size, placed, tiers, 1e-5)),
        "all_reduce": float(all_reduce_s(size, placed, tiers, 1e-5)),
        "ring_pass": float(ring_pass_s(size, placed, tiers, 1e-5)),
        "flat": float(flat_s(size, 8, placed, tiers, 1e-5, Routing(imbalance=1.2))),
        "deduplicated": float(flat_s(size, 8, placed, tiers, 1e-5, Routing(deduplicate=True))),
        "hierarchical": float(hierarchical_s(size, 8, placed, tiers, 1e-5, imbalance=1.2)),
        "all_gather_dispatch": float(all_gather_dispatch_s(size, placed, tiers, 1e-5)),
    }


@MANY
@given(sizes, st.floats(1.0, 10.0), fan_outs, networks())
def test_a_larger_message_never_takes_less(
    size: float, factor: float, fan_out: tuple[int, int], tiers: tuple[Tier, ...]
) -> None:
    small, large = times(size, fan_out, tiers), times(size * factor, fan_out, tiers)
    for name, seconds in small.items():
        assert 0.0 <= seconds <= large[name] * (1 + 1e-12), name


@MANY
@given(sizes, st.floats(1.0, 10.0), fan_outs, networks(), st.sampled_from([0, 1]))
def test_more_bandwidth_never_takes_longer(
    size: float, factor: float, fan_out: tuple[int, int], tiers: tuple[Tier, ...], which: int
) -> None:
    faster = tuple(replace(t, bytes_per_s=t.bytes_per_s * factor) if i == which else t for i, t in enumerate(tiers))
    before, after = times(size, fan_out, tiers), times(size, fan_out, faster)
    for name, seconds in after.items():
        assert seconds <= before[name] * (1 + 1e-12), name


@MANY
@given(sizes, networks(), st.sampled_from([1, 2, 4, 8]))
def test_more_nodes_never_make_a_gathering_or_a_reduction_faster(
    size: float, tiers: tuple[Tier, ...], inside: int
) -> None:
    for name in ("all_gather", "all_reduce"):
        seconds = [times(size, (inside, nodes), tiers)[name] for nodes in (1, 2, 4, 16)]
        assert seconds == sorted(seconds), name


@MANY
@given(st.lists(st.tuples(sizes, fan_outs), min_size=1, max_size=6), networks())
def test_collectives_of_many_candidates_are_those_of_each(
    rows: list[tuple[float, tuple[int, int]]], tiers: tuple[Tier, ...]
) -> None:
    message = np.array([size for size, _ in rows])
    fans = np.array([fan for _, fan in rows], dtype=np.float64)
    together = Group(fans.prod(axis=1), (fans[:, 0], fans[:, 1]))
    found = {
        "all_gather": all_gather_s(message, together, tiers, 1e-5),
        "all_reduce": all_reduce_s(message, together, tiers, 1e-5),
        "ring_pass": ring_pass_s(message, together, tiers, 1e-5),
        "flat": flat_s(message, 8, together, tiers, 1e-5, Routing(imbalance=1.2)),
        "deduplicated": flat_s(message, 8, together, tiers, 1e-5, Routing(deduplicate=True)),
        "hierarchical": hierarchical_s(message, 8, together, tiers, 1e-5, imbalance=1.2),
        "all_gather_dispatch": all_gather_dispatch_s(message, together, tiers, 1e-5),
    }
    for index, (size, fan_out) in enumerate(rows):
        for name, seconds in times(size, fan_out, tiers).items():
            np.testing.assert_allclose(found[name][index], seconds, rtol=1e-12, err_msg=name)


@MANY
@given(sizes, st.integers(1, 16), fan_outs)
def test_every_copy_of_a_token_goes_through_one_tier_or_stays(
    tokens: float, choices: int, fan_out: tuple[int, int]
) -> None:
    # Dispatch and combine: what leaves over all tiers and what the rank keeps for itself are all k copies.
    placed, endless = group(fan_out), 1e30
    sent = 0.0
    for slow in (0, 1):
        tiers = tuple(Tier(f"t{t}", 1.0 if t == slow else endless, 0, 0.0, 1.0) for t in (0, 1))
        sent += float(flat_s(tokens, choices, placed, tiers, 0.0))
    kept = tokens * choices / float(placed.size)
    np.testing.assert_allclose(sent + kept, tokens * choices, rtol=1e-9)


@MANY
@given(st.integers(1, 32), st.integers(1, 64))
def test_distinct_targets_are_between_one_and_both_counts(choices: int, places: int) -> None:
    found = float(distinct_targets(choices, places))
    assert 1.0 - 1e-12 <= found <= min(choices, places) + 1e-9


@MANY
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 8, 32, 256]),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1024, 4096]),
)
def test_experts_compute_exactly_the_tokens_that_are_dispatched(
    tp: int, ep: int, cut_experts: bool, micro_batch: int, seq: int
) -> None:
    model, etp = load_preset("deepseek-v3"), tp if cut_experts else 1
    one = np.ones(1)
    shard = Sharding(
        tp=one * tp,
        cp=one,
        ulysses=one,
        ep=one * ep,
        etp=one * etp,
        micro_batch_size=one * micro_batch,
        sequence_parallel=np.array([tp > 1]),
        gathers_tokens=np.array([False]),
        seq_length=float(seq),
    )
    table = layer_table(model, shard, OperatorFeatures(), ("moe", None))
    messages = {e.name: e for e in table.exchanges}
    assert float(messages["dispatch"].message_bytes[0]) == float(messages["combine"].message_bytes[0])
    tokens_sent = float(messages["dispatch"].message_bytes[0]) / (2.0 * model.hidden_size)
    up = next(o for o in table.operators if o.name == "expert_up_proj")
    rows = float(np.ravel(up.rows * up.groups)[0])
    # A group of etp x ep ranks sends k copies of all its tokens; etp ranks work on each copy together.
    ranks = ep * etp
    np.testing.assert_allclose(rows * ranks / etp, tokens_sent * ranks * table.choices_per_token, rtol=1e-12)
    restored = next(t for t in table.tensors if t.name == "unpermute_in")
    np.testing.assert_allclose(
        float(restored.kept_bytes[0]), 2.0 * model.hidden_size * tokens_sent * table.choices_per_token, rtol=1e-12
    )


shapes = st.integers(1, 20_000)


@MANY
@given(shapes, shapes, shapes, st.floats(1.0, 4.0))
def test_matrix_multiplication_is_monotone_and_under_the_roofline(m: int, n: int, k: int, factor: float) -> None:
    for rates in (RATES, replace(RATES, gemm_units=108.0)):
        seconds = float(gemm_s(m, n, k, rates))
        assert seconds >= 2.0 * m * n * k / rates.peak_flops
        assert seconds >= 2.0 * (m * k + k * n + m * n) / rates.hbm_bytes_per_s
        for larger in ((m * factor, n, k), (m, n * factor, k), (m, n, k * factor)):
            assert float(gemm_s(*larger, rates)) >= seconds * (1 - 1e-12)
    seconds = float(gemm_s(m, n, k, RATES))
    assert 0.0 < float(gemm_efficiency(m, n, k, RATES)) <= 1.0
    assert float(gemm_s(m, n, k, replace(RATES, peak_flops=RATES.peak_flops * factor))) <= seconds * (1 + 1e-12)


@MANY
@given(st.integers(1, 256), shapes, shapes, shapes)
def test_a_grouped_multiplication_does_no_less_than_its_parts_at_the_peak(g: int, m: int, n: int, k: int) -> None:
    seconds = float(grouped_gemm_s(g, m, n, k, RATES))
    assert seconds >= g * 2.0 * m * n * k / RATES.peak_flops
    assert float(grouped_gemm_s(g + 1, m, n, k, RATES)) >= seconds
    assert float(grouped_gemm_s(g, m, n, k, RATES, fused=False)) >= g * RATES.cube_op_s


@MANY
@given(st.floats(0.0, 1e15), st.integers(16, 512), st.integers(1, 1_000_000), st.floats(0.0, 1e12))
def test_attention_and_vector_work_are_monotone(flops: float, head_dim: int, seq: int, moved: float) -> None:
    for backward in (False, True):
        seconds = float(attention_s(flops, head_dim, seq, RATES, backward=backward))
        assert seconds >= flops / RATES.peak_flops
        assert float(attention_s(2 * flops, head_dim, seq, RATES, backward=backward)) >= seconds
        assert float(attention_s(flops, head_dim, 2 * seq, RATES, backward=backward)) <= seconds
    assert float(movement_s(moved, 1, RATES)) >= float(vector_s(moved, 1, RATES)) >= moved / RATES.hbm_bytes_per_s


@MANY
@given(st.lists(st.tuples(shapes, shapes, shapes), min_size=1, max_size=6))
def test_operators_of_many_candidates_are_those_of_each(rows: list[tuple[int, int, int]]) -> None:
    m, n, k = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    together = (gemm_s(m, n, k, RATES), grouped_gemm_s(8, m, n, k, RATES), vector_s(m * n, k, RATES))
    for index, (a, b, c) in enumerate(rows):
        alone = (gemm_s(a, b, c, RATES), grouped_gemm_s(8, a, b, c, RATES), vector_s(a * b, c, RATES))
        for many, one in zip(together, alone, strict=True):
            np.testing.assert_allclose(many[index], float(one), rtol=1e-12)


spans = st.floats(0.0, 10.0)


@MANY
@given(spans, spans, st.sampled_from([1, 2, 4, 8, 64]))
def test_overlap_lies_between_the_longer_part_and_the_sum(compute: float, communication: float, chunks: int) -> None:
    together = float(overlapped_s(compute, communication, chunks))
    assert max(compute, communication) * (1 - 1e-12) <= together <= (compute + communication) * (1 + 1e-12)
    assert float(overlapped_s(compute, communication, 2 * chunks)) <= together * (1 + 1e-12)


@MANY
@given(spans, spans, st.floats(1.0, 1.5), st.floats(0.0, 1.0))
def test_what_a_pass_does_not_hide_is_no_more_than_contention_makes_it(
    communication: float, window: float, contention: float, last: float
) -> None:
    shown = float(exposed_s(communication, window, overlapped=True, contention=contention, last_share=last))
    assert communication * last * (1 - 1e-12) <= shown <= communication * contention * (1 + 1e-12)
    wider = float(exposed_s(communication, window + 1.0, overlapped=True, contention=contention, last_share=last))
    assert wider <= shown
    assert (
        float(exposed_s(communication, window, overlapped=False, contention=contention, last_share=last))
        == communication
    )


@MANY
@given(st.floats(0.0, 1e12), rates, spans, st.floats(1.0, 4.0))
def test_swapping_is_free_inside_its_window_and_monotone(
    moved: float, link: float, window: float, factor: float
) -> None:
    exposed = float(exposed_swap_s(moved, link, window))
    assert exposed >= 0.0
    assert (exposed == 0.0) == (moved / link <= window)
    assert float(exposed_swap_s(moved * factor, link, window)) >= exposed
    assert float(exposed_swap_s(moved, link * factor, window)) <= exposed
    assert float(exposed_swap_s(moved, link, window * factor)) <= exposed


@MANY
@given(st.integers(0, 10_000), small_times, st.integers(0, 8), small_times, spans)
def test_the_host_exposes_no_more_than_it_needs(
    operators: int, issue: float, syncs: int, sync: float, device: float
) -> None:
    host = float(kernel_launch_s(operators, issue, syncs, sync))
    exposed = float(exposed_host_s(host, device, syncs, sync))
    assert -1e-15 <= exposed <= host * (1 + 1e-9) + 1e-15
    assert device + exposed >= host * (1 - 1e-9) - 1e-15


@MANY
@given(st.floats(1.0, 1e11), st.integers(1, 1024), rates, st.booleans())
def test_state_shrinks_with_shards_and_no_switch_enlarges_it(
    params: float, shards: int, bandwidth: float, distributed: bool
) -> None:
    plain = float(state_bytes(shards, distributed_optimizer=distributed).total)
    assert plain <= 18.0
    for switches in ({"reuse_fp32_param": True}, {"swap_optimizer": True}, {"virtual_optimizer": True}, {"fsdp": True}):
        state = state_bytes(shards, distributed_optimizer=distributed, **switches)
        assert float(state.total) <= plain
        assert min(float(state.weights), float(state.gradients), float(state.optimizer)) >= 0.0
    more = float(state_bytes(shards + 1, distributed_optimizer=True).total)
    assert more <= float(state_bytes(shards, distributed_optimizer=True).total)
    assert float(optimizer_s(params, shards, bandwidth)) >= float(optimizer_s(params, shards + 1, bandwidth)) > 0.0
    assert float(host_optimizer_s(params, shards, bandwidth, 0.0)) >= 0.0


@MANY
@given(st.floats(1.0, 1e10), st.sampled_from([1, 2, 8, 64]), rates)
def test_a_distributed_optimizer_moves_no_more_than_an_all_reduce(params: float, ranks: int, rate: float) -> None:
    tiers = (Tier("wire", rate, 0, 0.0, 1.0),)
    placed = group((ranks,))
    shared = synchronisation(params, placed, tiers, distributed_optimizer=True, gradient_bytes=4.0)
    alone = synchronisation(params, placed, tiers, distributed_optimizer=False, gradient_bytes=4.0)
    assert float(shared.reduce_s + shared.gather_s) <= float(alone.reduce_s + alone.gather_s) * (1 + 1e-12)


@MANY
@given(sizes, networks())
def test_two_ranks_of_a_mesh_are_one_message_over_its_link(size: float, tiers: tuple[Tier, ...]) -> None:
    pair = float(all_gather_s(2 * size, group((2, 1)), tiers, 0.0))
    np.testing.assert_allclose(pair, float(point_to_point_s(size, tiers[0], 0.0)), rtol=1e-12)
