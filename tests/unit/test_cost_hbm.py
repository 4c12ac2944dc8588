"""Bytes per parameter and buffers, against Megatron's and MindSpeed's published counts."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.hbm import (
    MIB,
    SOFTMAX_STATS_BYTES,
    OptimizerFormat,
    communicator_bytes,
    first_step_peak_bytes,
    optimizer_moved_bytes,
    replica_shards,
    state_bytes,
)


def test_mixed_precision_adam_without_sharding_is_18_bytes() -> None:
    # Megatron-LM theoretical_memory_usage.py: 2 weight + 4 gradient + 4 master + 8 Adam.
    state = state_bytes(64, distributed_optimizer=False)
    assert (float(state.weights), float(state.gradients), float(state.optimizer)) == (2, 4, 12)
    assert float(state.total) == 18


@pytest.mark.parametrize("shards", [1, 2, 16, 192])
def test_a_distributed_optimizer_is_6_and_12_over_d(shards: int) -> None:
    assert float(state_bytes(shards, distributed_optimizer=True).total) == pytest.approx(6 + 12 / shards)


@pytest.mark.parametrize(("distributed", "expected"), [(False, 16.0), (True, 6 + 10 / 8)])
def test_reuse_fp32_param_saves_two_bytes_of_the_copy(distributed: bool, expected: float) -> None:
    # MindSpeed reuse-fp32-param: 16 B without, 6 + 10 / D with a distributed optimizer.
    state = state_bytes(8, distributed_optimizer=distributed, reuse_fp32_param=True)
    assert float(state.total) == pytest.approx(expected)


def test_parameter_copy_compression_of_70b_at_tp8_saves_17_5_gb() -> None:
    # MindSpeed reuse-fp32-param: 17.5 GB a card for a 70B model at TP8, without a distributed optimizer and with pp 1.
    params = 70e9 / 8
    plain = state_bytes(1, distributed_optimizer=False).total
    shared = state_bytes(1, distributed_optimizer=False, reuse_fp32_param=True).total
    assert params * float(plain - shared) == pytest.approx(17.5e9)


def test_parameter_copy_compression_shrinks_with_the_data_parallel_size() -> None:
    params, shards = 70e9 / 8, 16
    plain = state_bytes(shards, distributed_optimizer=True).total
    shared = state_bytes(shards, distributed_optimizer=True, reuse_fp32_param=True).total
    assert params * float(plain - shared) == pytest.approx(2 * params / shards)


@pytest.mark.parametrize("chunks", [1.0, 16.0])
def test_swap_optimizer_leaves_a_window_of_the_states(chunks: float) -> None:
    # MindSpeed swap-optimizer: 6 B resident, step peak 12 / (D times).
    state = state_bytes(8, distributed_optimizer=True, swap_optimizer=True, swap_chunks=chunks)
    assert float(state.total) == pytest.approx(6 + 12 / (8 * chunks))


def test_the_optimizer_is_swapped_in_sixteen_windows() -> None:
    # --swap-optimizer-times: 16 unless given.
    usual = state_bytes(8, distributed_optimizer=True, swap_optimizer=True).optimizer
    assert float(usual) == 12 / 8 / 16


def test_fully_sharded_is_18_over_d() -> None:
    # MindSpeed custom-FSDP, optim_grads_params.
    assert float(state_bytes(32, distributed_optimizer=True, fsdp=True).total) == pytest.approx(18 / 32)


def test_sixteen_bit_gradients_save_two_bytes() -> None:
    # MindSpeed quant-grads.
    assert float(state_bytes(1, distributed_optimizer=False, optimizer=OptimizerFormat(gradient=2.0)).total) == 16


def test_moments_in_host_memory_save_eight_bytes_of_the_shard() -> None:
    # MindSpeed virtual-optimizer all: at most 8 N / D.
    state = state_bytes(4, distributed_optimizer=True, virtual_optimizer=True)
    assert float(state.total) == pytest.approx(6 + 4 / 4)


def test_lossy_optimizer_formats() -> None:
    # MindSpeed-LLM docs o2.md: o2-optimizer 4 N / DP less, master and gradient as before;
    # MindSpeed quant-states moments 8/D -> 2/D, quant-grads 4 -> 2.
    formats = {name: OptimizerFormat.of(frozenset({name})) for name in ("o2_optimizer", "quantized_optimizer")}
    o2 = state_bytes(8, distributed_optimizer=True, optimizer=formats["o2_optimizer"])
    quantized = state_bytes(8, distributed_optimizer=True, optimizer=formats["quantized_optimizer"])
    assert float(o2.total) == pytest.approx(6 + 8 / 8)
    assert float(quantized.total) == pytest.approx(4 + 6 / 8)


@pytest.mark.parametrize("shards", [1, 8, 64])
@pytest.mark.parametrize(("precision", "alone", "split"), [("fp16", 20, (4, 16)), ("bf16", 18, (6, 12))])
def test_bytes_by_precision(precision: str, alone: float, split: tuple[float, float], shards: int) -> None:
    # Megatron-LM docs, distributed optimizer: "theoretical number of bytes per parameter".
    each = OptimizerFormat.of(frozenset(), precision)
    assert float(state_bytes(shards, distributed_optimizer=False, optimizer=each).total) == alone
    shared = state_bytes(shards, distributed_optimizer=True, optimizer=each)
    assert float(shared.total) == pytest.approx(split[0] + split[1] / shards)
    assert float(shared.gradients) == split[0] - 2


def test_switches_may_differ_by_candidate() -> None:
    state = state_bytes(
        np.array([1.0, 8.0, 8.0]),
        distributed_optimizer=np.array([False, True, True]),
        reuse_fp32_param=np.array([False, False, True]),
    )
    assert state.total.tolist() == pytest.approx([18, 7.5, 7.25])


def test_adam_traffic() -> None:
    # Gradient 4, master and two moments read and written 24, weight 2, for the shard; norm and clearing 8 everywhere.
    assert float(optimizer_moved_bytes(1)) == 38
    assert float(optimizer_moved_bytes(30)) == 9
    assert float(optimizer_moved_bytes(2, fused=False)) == 97


def test_softmax_statistics_per_token_and_head() -> None:
    # Ascend flash attention keeps max and sum as FP32 [b, n, s, 8] each; FlashAttention-2 one FP32 log-sum-exp.
    assert SOFTMAX_STATS_BYTES["ascend"] == 2 * 8 * 4
    assert SOFTMAX_STATS_BYTES["nvidia"] == 4


def test_the_first_step_peaks_before_adam_or_after() -> None:
    assert float(first_step_peak_bytes(100.0, 40.0, 30.0)) == 100.0
    assert float(first_step_peak_bytes(100.0, 40.0, 70.0)) == 130.0


def test_a_communicator_owns_two_buffers() -> None:
    # CANN, HCCL_BUFFSIZE: 200 MB by default, a send and a receive buffer.
    assert float(communicator_bytes(200 * MIB)) == 400 * MIB
    assert float(communicator_bytes(0.5 * MIB)) == 2 * MIB
    assert float(communicator_bytes(0.0)) == 0.0


def test_states_in_fewer_bits_say_so_in_words() -> None:
    # MindSpeed-LLM o2.md: --o2-gradient saves 2 N, --o2-optimizer 4 N / DP. Megatron-LM: --grad-reduce-in-bf16.
    words = frozenset({"bf16_gradients", "o2_optimizer"})
    assert float(state_bytes(8, distributed_optimizer=True, optimizer=OptimizerFormat.of(words)).total) == 4 + 8 / 8
    # Transformer Engine reads an 8-bit weight and its transpose: beside 16 bits, or the first of them in their place.
    plain, own = (OptimizerFormat.of(frozenset(on), "fp8") for on in ((), ("fp8_weights",)))
    sizes = [float(state_bytes(8, distributed_optimizer=True, optimizer=each).weights) for each in (plain, own)]
    assert sizes == [4.0, 2.0]
    assert (plain.weights, own.weights) == (2.0, 1.0)  # what ranks gather


def test_a_second_copy_of_the_states() -> None:
    """MindSpeed-LLM high_availability.md: 6 + 24 / d bytes a parameter with BF16, 6 + 12 / d without the copy."""
    for shards in (2, 8, 64):
        twice = state_bytes(replica_shards(shards), distributed_optimizer=True).total
        assert float(twice) == pytest.approx(6.0 + 24.0 / shards)
    assert float(replica_shards(1)) == 1.0
