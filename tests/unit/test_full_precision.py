"""Runs in FP32: no second copy of the parameters, and every element twice as wide as in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.costs.workload.layers import head_table, layer_table
from autodeploy.costs.workload.operators import OperatorFeatures, Sharding
from autodeploy.specs.presets import load_preset
from cost_models.hbm import OptimizerFormat, optimizer_moved_bytes, state_bytes

pytestmark = pytest.mark.unit
FULL = OptimizerFormat.of(frozenset(), "fp32")


def sharding() -> Sharding:
    one = np.ones(1)
    return Sharding(
        tp=one,
        cp=one,
        ulysses=one,
        ep=one,
        etp=one,
        micro_batch_size=one,
        sequence_parallel=np.array([False]),
        gathers_tokens=np.array([False]),
        seq_length=1024.0,
    )


def test_a_parameter_takes_16_bytes() -> None:
    """Weight 4, gradient 4, Adam's moments 8: torch.optim.AdamW on FP32 parameters."""
    held = state_bytes(1.0, distributed_optimizer=False, optimizer=FULL)
    assert float(held.weights) == 4.0
    assert float(held.gradients) == 4.0
    assert float(held.total) == 16.0


def test_an_update_reads_four_arrays_and_writes_three() -> None:
    """Weight, gradient and both moments in, all but the gradient out: 28 B; the norm and clearing read it once more."""
    assert float(optimizer_moved_bytes(1.0, optimizer=FULL)) == 28.0 + 8.0


def test_a_layer_keeps_and_moves_twice_the_bytes() -> None:
    model = load_preset("llama2-7b")
    half, full = (
        layer_table(model, sharding(), OperatorFeatures(element_bytes=size), ("dense", None)) for size in (2.0, 4.0)
    )
    statistics = "softmax_stats"
    for narrow, wide in zip(half.tensors, full.tensors, strict=True):
        times = 1.0 if narrow.name == statistics else 2.0
        assert np.allclose(wide.kept_bytes, times * narrow.kept_bytes), narrow.name
    for less, more in zip(half.operators, full.operators, strict=True):
        assert np.allclose(more.forward_bytes, 2.0 * np.asarray(less.forward_bytes)), less.name
    for less_sent, sent in zip(half.exchanges, full.exchanges, strict=True):
        assert np.allclose(sent.message_bytes, 2.0 * less_sent.message_bytes)


def test_the_loss_works_in_fp32_either_way() -> None:
    model = load_preset("llama2-7b")
    half, full = (head_table(model, sharding(), OperatorFeatures(element_bytes=size)) for size in (2.0, 4.0))
    moved = [next(op for op in table.operators if op.name == "cross_entropy").forward_bytes for table in (half, full)]
    assert np.allclose(moved[0], moved[1])
