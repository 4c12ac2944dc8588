"""What the launch target costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from autodeploy.search.planner import plan
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet


def planned(
    target: str, *, model: str = "llama2-70b", batch: int = 18, effort: float | str = 1.5, vpp: tuple[int, ...] = (1, 2)
) -> PlanSet:
    """18 micro batches on four stages: MindFormers interleaves only whole groups of four."""
    return plan(
        read_spec_document(
            {
                "model": model,
                "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
                "training": {"seq_length": 4096, "global_batch_size": batch},
                "search": {
                    "target": target,
                    "effort": effort,
                    "top_k": 1,
                    "risk": "neutral",
                    "fix": {"tp": 8, "pp": 4, "micro_batch_size": 1},
                    "allow": {"vpp": list(vpp)},
                },
            }
        )
    )


def test_a_rule_that_forbids_the_best_schedule_has_a_price() -> None:
    found = planned("mindformers", model="qwen3-32b")
    own, free = found.plans[0], found.unrestricted
    assert own.strategy.schedule == "1f1b"
    assert free.best_step_time_s is not None
    assert free.price_pct is not None
    assert free.price_pct > 1.0
    assert own.step_time_s / free.best_step_time_s == pytest.approx(1.0 + free.price_pct / 100.0)


def test_where_the_target_forbids_no_strategy_only_memory_choices_can_have_a_price() -> None:
    found = planned("mindspeed-llm", batch=16)
    own, free = found.plans[0], found.unrestricted
    assert free.best_step_time_s is not None
    assert free.price_pct is not None
    assert 0.0 <= free.price_pct < 1.0
    assert own.step_time_s / free.best_step_time_s == pytest.approx(1.0 + free.price_pct / 100.0)


def test_without_a_target_there_is_nothing_to_pay() -> None:
    found = planned("any")
    assert found.unrestricted.price_pct == 0.0
    assert found.unrestricted.best_step_time_s is not None
    assert math.isclose(found.unrestricted.best_step_time_s, found.plans[0].step_time_s, rel_tol=1e-6)


def test_a_target_that_forbids_nothing_costs_what_its_memory_choices_cost() -> None:
    free = planned("mindspeed-llm", batch=16, vpp=(1,)).unrestricted
    assert free.price_pct is not None
    assert free.price_pct >= 0.0


def test_a_shorter_search_does_not_ask() -> None:
    assert planned("mindspeed-llm", effort="fast").unrestricted.price_pct is None
