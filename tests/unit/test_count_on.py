"""The number to count on where measured runs contradict a prediction, and where it is told."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.messages import in_language
from autodeploy.reports.plan_report import plan_block
from autodeploy.reports.wording import with_records
from autodeploy.search.planner import estimate
from autodeploy.search.ranking.measured_speed import rescaled
from autodeploy.specs.planset import Plan, Rescaled
from autodeploy.specs.reading import read_spec_document


def estimated(model: str, profile: str, cards: int, length: int, strategy: dict[str, Any]) -> Plan:
    document = {
        "model": model,
        "cluster": {"profile": profile, "num_npus": cards},
        "training": {"seq_length": length, "global_batch_size": 16 * cards},
        "search": {"target": "any"},
        "strategy": strategy,
    }
    return estimate(read_spec_document(document))


CASES = [
    ("llama3.1-405b", "ascend-800t-a2", 512, 8192, {"tp": 8, "pp": 16}),
    ("llama2-7b", "ascend-800t-a2", 8, 4096, {"tp": 1}),
    ("qwen3-30b-a3b", "cloudmatrix-384", 64, 4096, {"ep": 8, "etp": 1}),
    ("llama3-70b", "nvidia-h100", 64, 8192, {"tp": 8, "pp": 4}),
    ("mixtral-8x7b", "nvidia-h100", 64, 4096, {"tp": 1, "pp": 4, "ep": 8, "etp": 1}),
    ("llama2-70b", "ascend-800t-a2", 64, 4096, {"tp": 8, "pp": 4}),
]


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    return [estimated(*case) for case in CASES]


def test_it_lies_outside_the_interval_and_is_told_first(plans: list[Plan]) -> None:
    contradicted = [plan for plan in plans if plan.count_on is not None]
    assert contradicted
    for plan in contradicted:
        assert plan.count_on is not None
        assert not plan.uncertainty.low_s <= plan.count_on.step_time_s <= plan.uncertainty.high_s
        for lang, words in (("en", "count on"), ("zh", "应以")):
            block = plan_block(plan, lang, name="PLAN")  # type: ignore[arg-type]
            assert block.lines[len(plan.broken_rules)].startswith(words)
            assert with_records(in_language(plan.count_on.why, lang), lang) in block.lines[len(plan.broken_rules)]  # type: ignore[arg-type]
    for plan in plans:
        mfu = plan.best_measured_mfu
        if mfu is not None and plan.step_time_s * plan.mfu / mfu.highest > plan.uncertainty.high_s:
            assert plan.count_on is not None
            assert plan.count_on.step_time_s >= plan.step_time_s * plan.mfu / mfu.highest * (1.0 - 1e-9)


def test_a_measured_run_of_the_same_work_leaves_no_other_number(plans: list[Plan]) -> None:
    run = Rescaled(ratio=1.1, measured_step_time_s=11.0, predicted_step_time_s=10.0, run="r", source="s")
    assert all(rescaled(plan, run).count_on is None for plan in plans)
    assert all("count_on" not in plan.model_dump(mode="json") for plan in plans if plan.count_on is None)
