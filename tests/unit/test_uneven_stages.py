"""Compute of the stage that paces a step beyond the mean stage's is a part of its own."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.search.planner import estimate
from autodeploy.specs.reading import read_spec_document


def breakdown_of(model: str, layers: list[Any], **strategy: Any) -> Any:
    pp = len(layers)
    spec = {
        "model": model,
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 4 * pp},
        "training": {"seq_length": 4096, "global_batch_size": 32 * pp},
        "strategy": {"tp": 4, "pp": pp, "layers_per_stage": layers, **strategy},
    }
    return estimate(read_spec_document(spec)).breakdown


@pytest.mark.parametrize(
    ("model", "even", "level"),
    [
        ("llama3-8b", [8, 8, 8, 8], [9, 8, 8, 7]),  # 128k words: the head takes as long as two layers
        ("qwen3-1.7b", [7, 7, 7, 7], [8, 8, 8, 4]),
        ("qwen2.5-7b", [14, 14], [15, 13]),
    ],
)
def test_levelled_layers_leave_less_of_it(model: str, even: list[int], level: list[int]) -> None:
    before, after = breakdown_of(model, even), breakdown_of(model, level)
    assert 0.0 <= after.uneven_stages_s < before.uneven_stages_s
    assert after.step_time_s < before.step_time_s
    assert sum(after.model_dump().values()) == pytest.approx(after.step_time_s)


@pytest.mark.parametrize("model", ["llama2-7b", "qwen3-8b"])
def test_one_stage_has_none(model: str) -> None:
    layers = {"llama2-7b": 32, "qwen3-8b": 36}[model]
    assert breakdown_of(model, [layers]).uneven_stages_s == 0.0
