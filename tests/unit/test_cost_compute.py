"""Operator times on one device: matrix multiplication shapes that were measured, rooflines, attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.compute import (
    ADDED_BYTES,
    ComputeRates,
    attention_backward_flops,
    attention_flops,
    attention_s,
    attention_saturation,
    cast_s,
    exposed_depth,
    gemm_efficiency,
    gemm_s,
    grouped_gemm_s,
    movement_s,
    tiled_efficiency,
    vector_s,
    weight_cast_s,
)
from hardware_profiles.loader import load_profile


def rates_of(device: str | None, of: str = "ascend-800t-a2") -> ComputeRates:
    """Rates of one chip grade of a profile, before any fit."""
    profile = load_profile(of, calibrated=False)
    chip, value = profile.device(device), profile.efficiency
    return ComputeRates(
        peak_flops=chip.peak_flops["bf16"],
        hbm_bytes_per_s=chip.hbm_bytes_per_s,
        gemm_fraction=value["gemm_peak_fraction"],
        gemm_k_half=value["gemm_k_half"],
        gemm_mn_half=value["gemm_mn_half"],
        grouped_gemm=value["grouped_gemm"],
        attention_forward=value["attention_forward"],
        attention_backward=value["attention_backward"],
        attention_head_dim_half=value["attention_head_dim_half"],
        attention_seq_half=value["attention_seq_half"],
        hbm_fraction=value["hbm"],
        movement_fraction=value["permute"],
        grouped_gemm_exposed=value["grouped_gemm_exposed"],
        gemm_added_exposed=value["gemm_added_exposed"],
        gemm_units=value["gemm_units"],
        operand_fraction=value["hbm_operands"],
        cube_op_s=profile.fixed_costs.cube_op_s,
        vector_op_s=profile.fixed_costs.vector_op_s,
    )


RATES = rates_of("910B2")


# Source: mamf-finder on Ascend 910B2C, BF16, gpu_benchmark fork README, 2024-11-01.
@pytest.mark.parametrize(
    ("m", "n", "k", "tflops"),
    [
        (6912, 16384, 2048, 291.6),
        (2304, 5120, 1536, 272.6),
        (6144, 17920, 2816, 301.3),
        (14336, 4096, 4096, 317.3),
    ],
)
def test_gemm_rate_matches_shapes_measured_on_910b2c(m: int, n: int, k: int, tflops: float) -> None:
    predicted = 353.9 * float(gemm_efficiency(m, n, k, RATES))
    assert predicted == pytest.approx(tflops, rel=0.015)


def test_no_shape_is_faster_than_the_best_one_measured_by_more_than_the_fit_allows() -> None:
    # limulidae measured 328 TFLOPS (93 % of 353.9) on 910B; an endless product may come near the peak, not above.
    assert 0.93 <= float(gemm_efficiency(1e9, 1e9, 1e9, RATES)) <= 1.0


def test_a_large_gemm_is_bound_by_the_cube_and_a_thin_one_by_memory() -> None:
    large = float(gemm_s(8192, 8192, 8192, RATES))
    assert large == pytest.approx(2 * 8192**3 / (353.9e12 * float(gemm_efficiency(8192, 8192, 8192, RATES))), rel=1e-2)
    weights_read_s = 2.0 * 8192 * 8192 / (1600e9 * 0.93)
    thin = float(gemm_s(1, 8192, 8192, RATES))
    assert weights_read_s < thin < 1.2 * weights_read_s + 5e-6


def test_grouped_gemm_reads_every_expert_weight_however_few_its_tokens() -> None:
    few = float(grouped_gemm_s(32, 1.0, 4096, 7168, RATES))
    weights_s = 32 * 2.0 * 4096 * 7168 / (1600e9 * 0.93)
    assert few >= weights_s


def test_unfused_experts_pay_one_operator_each() -> None:
    fused = float(grouped_gemm_s(16, 1.0, 64, 64, RATES, fused=True))
    apart = float(grouped_gemm_s(16, 1.0, 64, 64, RATES, fused=False))
    assert apart - fused == pytest.approx(15 * 5e-6, rel=0.05)


def test_a_memory_bound_grouped_gemm_moves_tokens_weights_and_results() -> None:
    # One row of 8192 results from an input of 16: the three matrices of 4 experts, 2 B a number.
    moved = 4 * 2.0 * (1 * 16 + 16 * 8192 + 1 * 8192)
    hidden = replace(RATES, grouped_gemm_exposed=0.0)
    matrix_s = float(grouped_gemm_s(4, 1, 8192, 16, replace(hidden, hbm_bytes_per_s=1e18)))
    seconds = float(grouped_gemm_s(4, 1, 8192, 16, hidden))
    assert seconds - RATES.cube_op_s == pytest.approx(
        max(moved / (1600e9 * 0.93), matrix_s - RATES.cube_op_s), rel=1e-9
    )


# Source: FlagGems, pull request 6325, aclnn grouped multiplication of 32 experts on Ascend 910B, FP16.
@pytest.mark.parametrize(
    ("rows", "n", "k", "milliseconds"),
    [(1024, 2048, 4096, 0.3597), (1024, 4096, 1024, 0.1841), (2560, 2048, 4096, 0.3671), (2560, 4096, 1024, 0.1773)],
)
def test_few_rows_a_group_are_bound_by_reading_the_weights(rows: int, n: int, k: int, milliseconds: float) -> None:
    seconds = float(grouped_gemm_s(32, rows / 32, n, k, RATES))
    assert seconds == pytest.approx(milliseconds * 1e-3, rel=0.25)


def test_one_group_and_large_groups_meet_the_plain_multiplication() -> None:
    one = float(grouped_gemm_s(1, 8192, 4096, 7168, RATES))
    assert one == pytest.approx(float(gemm_s(8192, 4096, 7168, RATES)), rel=1e-12)
    plain = [8 * float(gemm_s(rows, 4096, 7168, RATES)) for rows in (256, 1024, 4096, 65_536)]
    grouped = [float(grouped_gemm_s(8, rows, 4096, 7168, RATES)) for rows in (256, 1024, 4096, 65_536)]
    ratios = [a / b for a, b in zip(grouped, plain, strict=True)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1.1
    assert ratios[-1] == pytest.approx(1.0, abs=0.02)


def test_the_gradient_of_experts_weights_has_their_rows_as_its_depth() -> None:
    # 8 experts of 7168 x 4096 with 256 rows each: the sum in FP32 is read and written, 8 B a parameter.
    def gradient(result: float | None) -> float:
        return float(grouped_gemm_s(8, 7168, 4096, 256, RATES, uneven_depth=True, result_bytes=result))

    assert gradient(ADDED_BYTES) > 8 * ADDED_BYTES * 7168 * 4096 / (1600e9 * 0.93)
    assert gradient(ADDED_BYTES) > 1.5 * gradient(None)
    deep = float(grouped_gemm_s(8, 7168, 4096, 8192, RATES, uneven_depth=True, result_bytes=ADDED_BYTES))
    assert deep < 8192 / 256 * gradient(ADDED_BYTES) / 2.0


def test_attention_flops_count_both_products() -> None:
    # Q K^T and P V of one token over s / 2 keys: 2 * s / 2 * a * (d_qk + d_v).
    assert float(attention_flops(1, 2048, 128, 192, 128)) == 2 * 2048 * 128 * 320


def test_attention_backward_computes_five_products_against_two() -> None:
    # FlashAttention-2, arXiv:2307.08691, section 3.
    shape = (8192, 4096, 1024, 128, 128)
    forward = float(attention_s(attention_flops(*shape), 128, 1e9, RATES, backward=False)) - 5e-6
    backward = float(attention_s(attention_backward_flops(*shape), 128, 1e9, RATES, backward=True)) - 5e-6
    assert backward / forward == pytest.approx(2.5 * 0.60 / 0.50, rel=1e-6)
    # Latent attention: S, dQ, dK 192 wide, dP, dV 128 wide.
    assert float(attention_backward_flops(1, 1, 1, 192, 128)) == 2 * (3 * 192 + 2 * 128)


def test_pipelined_tiles_wait_once_a_core() -> None:
    pipelined = replace(RATES, cube_cores=24, pipelined_tiles=True)
    # 16384 x 2048 sums are 128 x 8 tiles of 128 x 256, 42.7 for each core.
    assert float(exposed_depth(16384, 2048, pipelined)) == pytest.approx(RATES.gemm_k_half * 24 / 1024)
    assert float(exposed_depth(128, 256, pipelined)) == RATES.gemm_k_half
    assert float(exposed_depth(128, 256, pipelined, groups=240)) == pytest.approx(RATES.gemm_k_half / 10)
    assert float(exposed_depth(16384, 2048, RATES)) == RATES.gemm_k_half


def test_pipelined_tiles_are_never_slower_and_more_rows_never_faster() -> None:
    pipelined = replace(RATES, cube_cores=24, pipelined_tiles=True)
    rows = np.arange(16.0, 40_000.0, 7.0)
    for depth in (128, 1536, 7680):
        plain, piped = gemm_s(rows, 2048, depth, RATES), gemm_s(rows, 2048, depth, pipelined)
        assert (piped <= plain).all()
        assert (np.diff(piped) >= 0.0).all()


def test_attention_saturates_at_head_dimension_128_and_long_sequences() -> None:
    assert float(attention_saturation(128, 1e12, RATES)) == pytest.approx(1.0)
    assert float(attention_saturation(64, 1e12, RATES)) == pytest.approx(0.75)
    assert float(attention_saturation(128, 512, RATES)) == pytest.approx(0.5)


def test_streaming_reaches_what_was_measured_and_movement_less() -> None:
    # limulidae: exp at 642 GB/s in each direction, so 1284 GB/s read and written.
    second = float(vector_s(1284e9, 0, RATES))
    assert second == pytest.approx(1.0, rel=0.01)
    assert float(movement_s(1284e9, 0, RATES)) == pytest.approx(second * 0.80 / 0.20, rel=1e-9)


def test_rates_may_be_arrays_so_that_a_fit_can_vary_them() -> None:
    from dataclasses import replace

    varied = replace(RATES, gemm_fraction=np.array([0.5, 0.9]))
    seconds = gemm_s(4096, 4096, 4096, varied)
    assert seconds.shape == (2,)
    assert seconds[0] > seconds[1]


def test_the_smaller_chip_is_slower_by_its_cube_cores() -> None:
    # 910B3 has 20 cube cores at the clock of 910B2's 24.
    slow, fast = (float(gemm_s(16_384, 16_384, 16_384, rates_of(d))) for d in ("910B3", "910B2"))
    assert slow / fast == pytest.approx(24 / 20, rel=1e-3)


def test_one_tile_more_than_units_costs_a_second_wave() -> None:
    def share(rows: float) -> float:
        return float(tiled_efficiency(256.0 * rows, 128.0, 64.0, 400.0, 108.0)) * (64.0 + 400.0) / 64.0

    assert share(108) == pytest.approx(1.0)
    assert share(216) == pytest.approx(1.0)
    # 109 tiles: nearly half of the second wave is idle, and the depth is too short to be cut.
    assert share(109) < 0.7


def test_a_batch_of_multiplications_fills_waves_together() -> None:
    # NVIDIA's guide: a wave of A100 is 108 tiles. 27 leave most units idle, whatever the tile; 4 x 27 leave none.
    alone, four = (float(tiled_efficiency(256.0 * 27, 128.0, 64.0, 400.0, 108.0, groups=g)) for g in (1.0, 4.0))
    assert four == pytest.approx(64.0 / 464.0)
    assert alone < 0.55 * four
    # As many as one product of all their rows; and a batch of one is that product.
    rows = float(tiled_efficiency(256.0 * 540, 128.0, 64.0, 400.0, 108.0))
    assert float(tiled_efficiency(256.0 * 54, 128.0, 64.0, 400.0, 108.0, groups=10.0)) == pytest.approx(rows)
    waves = replace(RATES, gemm_units=108.0, cube_op_s=0.0)
    heads = 12 * float(gemm_s(2048, 2048, 128, waves, groups=12))
    assert heads == pytest.approx(float(gemm_s(2048 * 12, 2048, 128, waves)), rel=0.03)


def test_experts_and_plain_products_are_counted_alike() -> None:
    # One expert at the plain rate is a plain product, in waves and by half sizes.
    for units in (0.0, 108.0):
        rates = replace(RATES, gemm_units=units, grouped_gemm=1.0)
        assert float(grouped_gemm_s(1, 3000, 4096, 7168, rates)) == pytest.approx(
            float(gemm_s(3000, 4096, 7168, rates))
        )


def test_a_deep_multiplication_is_cut_where_tiles_are_few() -> None:
    shallow, deep = (float(tiled_efficiency(4096.0, 1024.0, k, 0.01 * k, 108.0)) for k in (1.0, 32_768.0))
    assert shallow == pytest.approx(deep)  # cutting pays where slices are long against k_half, whatever the depth
    dear = float(tiled_efficiency(4096.0, 1024.0, 400.0, 400.0, 108.0)) * 2.0
    assert dear < 0.8 < 0.9 < deep


def test_waves_count_only_where_the_profile_has_units() -> None:
    waves = replace(RATES, gemm_units=108.0)
    assert float(gemm_s(4096, 3072, 8192, waves)) > float(gemm_s(4096, 3072, 8192, RATES))
    assert float(gemm_s(49_152, 8192, 8192, waves)) < 1.05 * float(gemm_s(49_152, 8192, 8192, RATES))


# -- 8 bits ----------------------------------------------------------------------------------------------------------

NARROW = replace(RATES, peak_flops=2.0 * float(RATES.peak_flops), wide_peak_flops=RATES.peak_flops)


def test_a_deep_product_in_8_bits_takes_half_as_long_and_a_shallow_one_more_than_half() -> None:
    ratios = [
        float((gemm_s(8192, 8192, k, NARROW) - RATES.cube_op_s) / (gemm_s(8192, 8192, k, RATES) - RATES.cube_op_s))
        for k in (10**7, 65536, 8192, 1024)
    ]
    assert ratios[0] == pytest.approx(0.5, rel=1e-3)
    assert ratios == sorted(ratios)
    # The wait of a tile is a time: what lies between is k_half's share, which does not shrink.
    lost = float(RATES.gemm_k_half) / 1024
    rest = 1.0 + 2.0 * float(RATES.gemm_mn_half) / 8192
    assert ratios[3] == pytest.approx((rest + 2.0 * lost) / (rest + lost) / 2.0, rel=1e-9)


# Source: SimuMax v1.2, configs/system/a100_pcie.json and b200_bf16_ceperm.json, matmul: a weight's gradient added into
# FP32 against the mean of the same product forward and of its input's gradient.
@pytest.mark.parametrize(
    ("profile", "columns", "tokens", "rows", "ratio"),
    [
        ("nvidia-a100-80g", 24576, 4096, 5120, 1.0706),
        ("nvidia-a100-80g", 5120, 4096, 16384, 1.0504),
        ("nvidia-b200", 57344, 4096, 8192, 1.0688),
        ("nvidia-b200", 28672, 4096, 8192, 1.0761),
    ],
)
def test_a_product_that_is_added_to_a_wider_sum_takes_longer(
    profile: str, columns: int, tokens: int, rows: int, ratio: float
) -> None:
    rates = rates_of(None, profile)
    plain = float(gemm_s(columns, rows, tokens, rates))
    assert float(gemm_s(columns, rows, tokens, rates, result_bytes=ADDED_BYTES)) / plain == pytest.approx(
        ratio, abs=0.03
    )
    hidden = replace(rates, gemm_added_exposed=0.0)
    assert float(gemm_s(columns, rows, tokens, hidden, result_bytes=ADDED_BYTES)) == pytest.approx(plain, rel=1e-12)


def test_weights_of_8_bits_are_half_the_bytes_where_memory_bounds() -> None:
    few, many = 4, 8192
    hidden = (replace(rates, grouped_gemm_exposed=0.0) for rates in (RATES, NARROW))
    wide, narrow = (grouped_gemm_s(16, few, many, many, rates) - RATES.cube_op_s for rates in hidden)
    weights, results = many * many + few * many, few * many
    assert narrow / wide == pytest.approx((weights + 2 * results) / (2 * weights + 2 * results), rel=1e-9)


def test_only_operands_of_8_bits_are_cast() -> None:
    assert float(cast_s(1e6, RATES)[0]) == 0.0
    streamed = 4.0 * 1e6 / (float(RATES.hbm_bytes_per_s) * float(RATES.hbm_fraction))
    assert float(cast_s(1e6, NARROW)) == pytest.approx(streamed + float(RATES.cube_op_s), rel=1e-12)


def test_weights_are_cast_in_every_product_where_nothing_keeps_them() -> None:
    often = replace(NARROW, casts_weights=True)
    memory = float(RATES.hbm_bytes_per_s) * float(RATES.hbm_fraction)
    for backward, moved, kernels in ((False, 2 + 2 + 1, 2), (True, 2 + 1, 1)):
        assert float(weight_cast_s(1e6, NARROW, backward=backward)[0]) == 0.0
        assert float(weight_cast_s(1e6, replace(RATES, casts_weights=True), backward=backward)[0]) == 0.0
        seconds = moved * 1e6 / memory + kernels * float(RATES.cube_op_s)
        assert float(weight_cast_s(1e6, often, backward=backward)) == pytest.approx(seconds, rel=1e-12)


def test_what_stays_in_16_bits_has_their_rates() -> None:
    assert NARROW.wide() == RATES
    assert RATES.wide() is RATES
    assert attention_s(1e12, 128, 4096, NARROW.wide(), backward=False) == attention_s(
        1e12, 128, 4096, RATES, backward=False
    )
