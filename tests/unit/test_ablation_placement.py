"""Layers placed to level a strategy's stages, and what a replay waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.ablation.comparison_sides import with_balanced_layers
from autodeploy.search.planner import estimate, prepare
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

STACK = frozenset({"flash_attention", "fused_swiglu", "fused_rmsnorm", "grouped_gemm"})
BALANCE = STACK | {"virtual_pipeline_balance"}


def spec_of(**strategy: Any) -> Spec:
    return read_spec_document(
        {
            "model": "pangu-ultra-moe-718b",
            "cluster": {"profile": "ascend-800t-a2", "device": "910B3", "num_npus": 6144},
            "training": {"seq_length": 8192, "global_batch_size": 3072, "routing_imbalance": 1.0},
            "search": {"target": "any"},
            "strategy": {"tp": 8, "pp": 16, "vpp": 2, "ep": 32, "etp": 1, "schedule": "adaptive_pipe"} | strategy,
        }
    )


def plan_of(features: frozenset[str], **strategy: Any) -> Plan:
    spec = spec_of(**strategy)
    assert spec.strategy is not None
    return with_balanced_layers(prepare(spec), spec.strategy, features).plan


def test_balanced_layers_leave_the_last_chunk_to_the_head_and_the_prediction_module() -> None:
    even, level = plan_of(STACK), plan_of(BALANCE)
    assert level.step_time_s < 0.95 * even.step_time_s
    assert [sum(stage.layers) for stage in even.stages][-3:] == [3, 3, 3]
    assert level.stages[-1].layers[-1] == 0
    assert sum(sum(stage.layers) for stage in level.stages) == 61


def test_stated_layers_stay_where_they_are() -> None:
    stated = [[2, 2]] * 13 + [[2, 1]] * 3
    assert plan_of(BALANCE, layers_per_stage=stated).step_time_s == plan_of(STACK, layers_per_stage=stated).step_time_s


def test_placement_keeps_the_memory_that_even_layers_fit_in() -> None:
    assert plan_of(STACK, recompute={"granularity": "full"}).fits
    assert plan_of(BALANCE, recompute={"granularity": "full"}).fits


@pytest.mark.parametrize(("modules", "again"), [(["norm", "activation"], 0), (["moe"], 1), (None, 1)])
def test_a_replay_that_routes_again_synchronises_again(modules: list[str] | None, again: int) -> None:
    recompute = {"granularity": "full"} if modules is None else {"granularity": "selective", "modules": modules}
    plain, replayed, free = (
        estimate(spec_of(schedule="interleaved", recompute=r), features=f).breakdown.host_bound_s
        for r, f in (
            ({"granularity": "none"}, STACK),
            (recompute, STACK),
            (recompute, STACK | {"host_sync_free"}),
        )
    )
    assert replayed >= plain
    # 64 micro batches, two or more layers with experts on the pacing stage, three round trips of 60 us each time.
    assert (replayed - plain > 64 * 2 * 3 * 57e-6) is bool(again)
    assert free < 0.2 * replayed
