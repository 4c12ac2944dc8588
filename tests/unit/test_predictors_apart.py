"""Prediction modules one part before the head: where they are, what they take, and who refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.formats.megatron.layers import layout_string, placement
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import estimate
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan

FEATURES = ("flash_attention", "fused_rmsnorm", "fused_swiglu", "grouped_gemm")
BALANCED = (*FEATURES, "virtual_pipeline_balance")
PLACES = ((8, 8), (8, 8), (8, 8), (8, 5))  # 61 layers, three places fewer at the end
BEFORE_THE_HEAD = ((8, 8), (8, 8), (8, 8), (13, 0))


def predicted(target: str = "any", model: str = "deepseek-v3", **strategy: Any) -> Plan:
    document = {
        "model": model,
        "cluster": {"profile": "cloudmatrix-384", "num_npus": 256},
        "training": {"seq_length": 4096, "global_batch_size": 1024},
        "search": {"target": target},
        "strategy": {
            **{"tp": 2, "pp": 4, "vpp": 2, "ep": 32, "etp": 1, "schedule": "interleaved"},
            **{"recompute": {"granularity": "full"}, "features": FEATURES},
            **strategy,
        },
    }
    return estimate(read_spec_document(document))


def seconds(plan: Plan) -> list[float]:
    return [stage.forward_s + stage.backward_s for stage in plan.stages]


def test_a_module_moves_and_its_loss_stays() -> None:
    beside, apart = (predicted(layers_per_stage=BEFORE_THE_HEAD, predictors_apart=on) for on in (False, True))
    assert [stage.holds for stage in beside.stages] == [("embedding",), (), (), ("head", "mtp")]
    assert [stage.holds for stage in apart.stages] == [("embedding",), (), ("mtp",), ("head",)]
    before, after = seconds(beside), seconds(apart)
    assert after[:2] == before[:2]
    # A layer, the joined projection and their copy of the embedding leave; two passes through the head do not.
    assert sum(after) == pytest.approx(sum(before), rel=0.005)
    assert before[3] - after[3] == pytest.approx(after[2] - before[2], rel=0.05)
    assert 0.5 < (after[2] - before[2]) / (before[0] / 16) < 2.0
    assert layout_string(placement(apart, 61), 1).endswith("ttm|L")


@pytest.mark.parametrize(
    "strategy",
    [
        {"layers_per_stage": PLACES},  # layers behind the module
        {},  # spread evenly
        {"features": BALANCED},  # or levelled
        {"model": "qwen3-30b-a3b", "layers_per_stage": ((6, 6), (6, 6), (6, 6), (12, 0))},  # no module
        {"layers_per_stage": BEFORE_THE_HEAD, "schedule": "dualpipev"},  # a pipeline that folds
    ],
)
def test_no_place_before_the_head_is_refused(strategy: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="predictors_apart"):
        predicted(predictors_apart=True, **strategy)


def test_a_release_has_no_launch_of_it() -> None:
    plan = predicted("megatron", layers_per_stage=BEFORE_THE_HEAD, predictors_apart=True, features=BALANCED)
    assert "modules_before_the_head_are_launched" in {each.rule for each in plan.broken_rules}
    plan = predicted("megatron", layers_per_stage=BEFORE_THE_HEAD, features=BALANCED)
    assert "modules_before_the_head_are_launched" not in {each.rule for each in plan.broken_rules}
