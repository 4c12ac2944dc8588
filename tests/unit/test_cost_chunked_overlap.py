"""Chunks of a matrix multiplication beside its collective: tiles, fixed costs, copies, and never slower than whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.chunked_overlap import chunked_s, tile_loss
from cost_models.compute import ComputeRates

RATES = ComputeRates(
    peak_flops=354e12,
    hbm_bytes_per_s=1.6e12,
    gemm_fraction=0.99,
    gemm_k_half=0.0,
    gemm_mn_half=20.0,
    grouped_gemm=0.7,
    attention_forward=0.5,
    attention_backward=0.4,
    attention_head_dim_half=64.0,
    attention_seq_half=512.0,
    hbm_fraction=0.7,
    movement_fraction=0.2,
    cube_op_s=5e-6,
    vector_op_s=3e-5,
    cube_cores=24.0,
)
FREE = {"loss": 1.0, "contention": 1.0, "collective_s": 0.0}


def test_pieces_that_fill_the_cores_lose_nothing() -> None:
    # 16 x 12 tiles of 256 x 128 on 24 cores are 8 waves; four pieces of 4 x 12 are 2 waves each.
    assert float(tile_loss(4096, 1536, 8192, 4, RATES)) == pytest.approx(1.0)


def test_the_last_wave_of_each_piece_is_paid_for() -> None:
    losses = [float(tile_loss(4096, 1280, 8192, c, replace(RATES, gemm_k_half=416.0))) for c in (1, 2, 4, 8)]
    assert losses[0] == 1.0
    assert losses[3] > losses[1] > 1.0


def test_without_losses_it_is_the_documented_formula() -> None:
    # T = max(C, N) (c - 1) / c + (C + N) / c, MindSpeed ascend-coc-parallel.
    assert float(chunked_s(3.0, 2.0, 4, **FREE)) == pytest.approx(3.0 * 3 / 4 + 5.0 / 4)


def test_each_chunk_pays_its_own_collective_and_the_copies() -> None:
    plain = float(chunked_s(1e-3, 2e-3, 4, **FREE))
    fixed = float(chunked_s(1e-3, 2e-3, 4, **(FREE | {"collective_s": 1e-5})))
    assert fixed == pytest.approx(plain + 3e-5)  # communication sets the pace
    assert float(chunked_s(1e-3, 2e-3, 4, **FREE, copies_s=1e-4)) == pytest.approx(plain + 1e-4)


def test_it_is_never_slower_than_one_after_the_other() -> None:
    compute, communication = np.geomspace(1e-6, 1e-2, 9)[:, None], np.geomspace(1e-6, 1e-2, 9)
    found = chunked_s(compute, communication, 8, loss=1.2, contention=1.05, collective_s=1e-5, copies_s=1e-4)
    assert np.all(found <= compute + communication + 1e-18)
    assert np.any(np.isclose(found, compute + communication))
    assert np.any(found < compute + communication - 1e-6)
