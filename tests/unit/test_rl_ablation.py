"""Mechanisms of post-training switched one at a time: which there are, what each row is against, what can't run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.ablation.feature_ablation import MECHANISMS, ablate, active_mechanisms, without_mechanisms
from autodeploy.cli.comparisons import ablation_text
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import estimate
from autodeploy.specs.reading import read_spec_document
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.specs.plan_details import AblationReport, AblationRow

ENGINE = {"tp": 2, "engine": "vllm-ascend", "mode": "graph", "memory_fraction": 0.9, "precision": "int8"}
ALL_OFF = {"placement": "separate", "generation": {**ENGINE, "mode": "eager", "precision": "bf16"}}
COLOCATED = {"placement": "colocated", "generation": ENGINE, "offload": ["optimizer", "gradients", "parameters"]}
AHEAD = {"placement": "async", "generation_npus": 8, "staleness": 1, "partial_rollout": True, "generation": ENGINE}


def spec_of(rl: dict[str, Any], model: str = "llama2-7b", **strategy: Any) -> Any:
    return read_spec_document(
        {
            "model": model,
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
            "training": {
                "kind": "rl_post_training",
                "rl": {
                    "prompts_per_step": 64,
                    "responses_per_prompt": 8,
                    "prompt_length": {"max": 256},
                    "response_length": {"mean": 512, "max": 2048},
                },
            },
            "search": {"target": "any"},
            "strategy": {"tp": 2, "recompute": {"granularity": "full"}, **strategy, "rl": rl},
        }
    )


def rows_of(report: AblationReport, mode: str) -> dict[str, AblationRow]:
    return {row.feature: row for row in report.rows if row.mode == mode}


@pytest.mark.parametrize(
    ("rl", "used"),
    [
        (COLOCATED, ("fusion", "graph_mode", "generation_precision")),
        (AHEAD, ("staleness", "partial_rollout", "graph_mode", "generation_precision")),
        (ALL_OFF, ()),
    ],
)
def test_what_a_strategy_uses_is_switched_each_way(rl: dict[str, Any], used: tuple[str, ...]) -> None:
    spec = spec_of(rl)
    assert active_mechanisms(spec.strategy) == used
    assert active_mechanisms(without_mechanisms(spec.strategy, MECHANISMS)) == ()
    report = ablate(spec)
    for mode in ("alone", "cumulative", "leave_one_out"):
        assert tuple(rows_of(report, mode))[: len(used)] == used
    whole = estimate(spec)
    last = [row for row in report.rows if row.mode == "cumulative"]
    if last:
        assert last[-1].step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)


def test_without_fusion_the_best_split_is_taken() -> None:
    """Each row is the estimate of what a user would write instead."""
    report = ablate(spec_of(COLOCATED))
    found = rows_of(report, "leave_one_out")
    assert found["fusion"].step_time_s == pytest.approx(
        estimate(spec_of(COLOCATED | {"placement": "separate", "offload": []})).step_time_s
    )
    eager = COLOCATED | {"generation": {**ENGINE, "mode": "eager"}}
    assert found["graph_mode"].step_time_s == pytest.approx(estimate(spec_of(eager)).step_time_s)
    assert found["graph_mode"].moved["generation_s"] > 0.0
    assert report.rows[0].step_time_s == pytest.approx(estimate(spec_of(ALL_OFF)).step_time_s)


def test_rows_multiply_to_the_whole() -> None:
    report = ablate(spec_of(AHEAD), order=["generation_precision", "staleness"])
    steps = [row for row in report.rows if row.mode == "cumulative"]
    assert [row.feature for row in steps[:2]] == ["generation_precision", "staleness"]
    gains = 1.0
    for row in steps:
        assert row.predicted is not None
        gains *= 1.0 + row.predicted / 100.0
    assert steps[-1].step_time_s is not None
    assert report.rows[0].step_time_s == pytest.approx(gains * steps[-1].step_time_s)


def test_what_a_strategy_does_not_use_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="does not use staleness") as caught:
        ablate(spec_of(COLOCATED), order=["staleness"])
    assert caught.value.errors[0].path == "/order"


def test_a_row_that_cannot_run_says_why() -> None:
    """The weights of the whole model fit on a die in 8 bits alone."""
    tight = {"tp": 1, "engine": "vllm-ascend", "mode": "graph", "precision": "int8", "memory_fraction": 0.9}
    spec = spec_of({**COLOCATED, "generation": tight}, model="qwen3-32b", tp=8)
    report = ablate(spec)
    row = rows_of(report, "leave_one_out")["generation_precision"]
    assert row.step_time_s is None
    assert row.predicted is None
    assert not row.fits
    assert row.reason is not None
    assert "do not fit on a die" in row.reason
    alone = rows_of(report, "alone")["generation_precision"]
    assert alone.step_time_s is not None
    assert alone.predicted is None
    for lang in ("en", "zh"):
        assert "- !" in ablation_text(report, lang)


def test_names_are_no_features_of_the_update() -> None:
    assert not MECHANISMS.keys() & FEATURES.keys()
