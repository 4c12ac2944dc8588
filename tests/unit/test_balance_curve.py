"""What each way to level the load buys, alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.specs.reading import read_spec_document
from tests.support.balance_curve import balance_curve

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

ON = frozenset({"flash_attention", "grouped_gemm", "fused_swiglu", "fused_rmsnorm"})


def spec_of(model: str = "pangu-ultra-moe-718b") -> Spec:
    return read_spec_document(
        {
            "model": model,
            "cluster": {"profile": "ascend-800t-a2", "device": "910B3", "num_npus": 3072},
            "training": {"seq_length": 8192, "global_batch_size": 768},
            "search": {"target": "any"},
            "strategy": {"tp": 8, "pp": 8, "vpp": 2, "ep": 32, "etp": 1, "schedule": "adaptive_pipe"},
        }
    )


def test_each_part_gains_from_its_own_imbalance_and_nothing_without() -> None:
    level, uneven = balance_curve(spec_of(), ON, (1.0, 1.4))
    assert (level.expert_migration_pct, level.virtual_pipeline_balance_pct) == (0.0, 0.0)
    assert level.sample_rearrangement_pct == pytest.approx(0.0, abs=0.1)
    assert uneven.expert_migration_pct > 0.5
    assert uneven.sample_rearrangement_pct > 0.5
    # The head and the prediction module leave the last stage longer than 1.2 of the mean: it holds the others up.
    assert uneven.virtual_pipeline_balance_pct > 5.0


def test_the_curve_is_of_a_model_with_experts() -> None:
    with pytest.raises(SpecError, match="experts"):
        balance_curve(spec_of("llama2-70b"), ON, (1.2,))
