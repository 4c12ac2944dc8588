"""Volumes of gradient reduction and parameter gathering, and what the passes beside them hide."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.collectives import Group, Tier
from cost_models.data_parallel import (
    buckets,
    exposed_s,
    host_optimizer_s,
    optimizer_s,
    states_on_host_bytes,
    synchronisation,
)
from cost_models.hbm import OptimizerFormat

WIRE = (Tier("wire", 1e9, 0, 0.0, 1.0),)
PARAMS = 1e9


def group(size: float) -> Group:
    return Group(np.asarray(size), (np.asarray(size),))


@pytest.mark.parametrize("gradient_bytes", [4.0, 2.0])
def test_a_distributed_optimizer_scatters_gradients_and_gathers_weights(gradient_bytes: float) -> None:
    # ZeRO-1: (D - 1) / D of the gradients in, (D - 1) / D of the 16-bit weights back.
    sync = synchronisation(PARAMS, group(16), WIRE, distributed_optimizer=True, gradient_bytes=gradient_bytes)
    assert float(sync.reduce_s) == pytest.approx(gradient_bytes * 15 / 16)
    assert float(sync.gather_s) == pytest.approx(2.0 * 15 / 16)


def test_without_one_gradients_are_all_reduced() -> None:
    sync = synchronisation(PARAMS, group(16), WIRE, distributed_optimizer=False, gradient_bytes=4.0)
    assert float(sync.reduce_s) == pytest.approx(2 * 4.0 * 15 / 16)
    assert float(sync.gather_s) == 0.0


def test_one_rank_has_nothing_to_synchronise() -> None:
    for distributed in (True, False):
        sync = synchronisation(PARAMS, group(1), WIRE, distributed_optimizer=distributed, gradient_bytes=4.0)
        assert float(sync.reduce_s) == float(sync.gather_s) == 0.0


def test_without_overlap_all_of_it_shows() -> None:
    assert float(exposed_s(2.0, 100.0, overlapped=False, contention=1.05, last_share=0.1)) == 2.0


def test_the_last_bucket_always_shows() -> None:
    assert float(exposed_s(2.0, 100.0, overlapped=True, contention=1.05, last_share=0.1)) == pytest.approx(0.2)


def test_what_exceeds_the_window_shows() -> None:
    # 2 s, of which 10 % in the last bucket; the rest takes 1.8 x 1.05 s beside 1 s of computation.
    shown = float(exposed_s(2.0, 1.0, overlapped=True, contention=1.05, last_share=0.1))
    assert shown == pytest.approx(1.8 * 1.05 - 1.0 + 0.2)


def test_the_update_is_bound_by_device_memory() -> None:
    # 38 bytes a parameter unsharded, 30 / D + 8 with a distributed optimizer.
    assert float(optimizer_s(PARAMS, 1, 1e12)) == pytest.approx(0.038)
    assert float(optimizer_s(PARAMS, 10, 1e12)) == pytest.approx(0.011)


def test_a_host_optimizer_shows_what_its_update_does_not_hide() -> None:
    # MindSpeed swap-optimizer: 12 bytes a parameter of the shard each way.
    transfer = PARAMS * 12 / 8 / 24e9
    away = states_on_host_bytes(8, swap_optimizer=True)
    assert float(host_optimizer_s(PARAMS, away, 24e9, 0.0)) == pytest.approx(transfer)
    assert float(host_optimizer_s(PARAMS, away, 24e9, 0.02)) == pytest.approx(transfer - 0.02)
    assert float(host_optimizer_s(PARAMS, away, 24e9, 1.0)) == 0.0


def test_moments_in_host_memory_pass_over_the_host_link_only() -> None:
    # MindSpeed virtual-optimizer: 8 bytes a parameter of the shard each way; the device's memory moves the rest.
    assert float(states_on_host_bytes(8, virtual_optimizer=True)) == pytest.approx(8 / 8)
    assert float(states_on_host_bytes(8)) == 0.0
    assert float(optimizer_s(PARAMS, 1, 1e12, virtual_optimizer=True)) == pytest.approx(0.038 - 0.016)


def test_lossy_formats_move_and_hold_less() -> None:
    o2 = OptimizerFormat.of(frozenset({"o2_optimizer"}))
    quantized = OptimizerFormat.of(frozenset({"quantized_optimizer"}))
    # o2: 4 + 2 x (4 + 4) + 4 x 8 for the FP32 copies of its BF16 moments + 2 + 2 x 4.
    # quantized: 2 + 2 x (4 + 2) + 2 + 2 x 2.
    assert float(optimizer_s(PARAMS, 1, 1e12, optimizer=o2)) == pytest.approx(0.062)
    assert float(optimizer_s(PARAMS, 1, 1e12, optimizer=quantized)) == pytest.approx(0.020)
    assert float(states_on_host_bytes(1, swap_optimizer=True, optimizer=o2)) == 8.0


def test_buckets_that_overlap_hold_what_the_framework_puts_into_them() -> None:
    """40e6 parameters, 1e6 a rank beyond 40 ranks; without overlap one bucket holds the layers of a stage."""
    assert buckets(80e6, 4.0, 8.0, overlapped=True) == pytest.approx(2.0)
    assert buckets(80e6, 4.0, 160.0, overlapped=True) == pytest.approx(0.5)
    assert buckets(80e6, 4.0, 8.0, overlapped=False) == pytest.approx(0.25)
