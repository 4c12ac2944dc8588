"""Parameters of every stage are those that the frameworks build from their own model code."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.search import planner
from tests.launch_check.stage_parameters import Case, cases
from tests.support.stage_parameters import StageParameters, stage_parameters

pytestmark = pytest.mark.unit

BIASES = 1e-3  # share of a stage's parameters that biases may be: they are not counted


def counted(case: Case) -> StageParameters:
    spec = case.spec
    assert spec.strategy is not None
    found = planner.predict(planner.prepare(spec), spec.strategy)
    assert found.layout.layers.sum(axis=-1).tolist() == case.layers
    return stage_parameters(found.classes, found.candidate, 0, found.layout)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_stages_hold_what_the_framework_builds(case):
    ours = counted(case)
    np.testing.assert_allclose(ours.total, case.parameters, rtol=BIASES)
    np.testing.assert_array_equal(ours.experts, case.expert_parameters)


def test_the_cases_cover_what_places_parameters():
    found = cases()
    models = [case.spec.model for case in found]
    assert any((model.kv_lora_rank is not None) and model.num_nextn_predict_layers for model in models)
    assert any(model.qk_norm and model.is_moe for model in models)
    assert any(not model.is_moe for model in models)
    assert {case.strategy["schedule"] for case in found} >= {"1f1b", "interleaved", "dualpipev", "adaptive_pipe"}
