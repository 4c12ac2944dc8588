"""Steps of the recommended plan's axes cost what a question about them is answered."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.search import planner
from autodeploy.search.ranking import advice
from autodeploy.search.ranking.counterfactuals import Step, steps_from
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec

A2 = "ascend-800t-a2"
SPECS: dict[str, dict[str, Any]] = {
    "dense": {"model": "qwen3-8b", "profile": A2, "cards": 16, "batch": 96, "search": {}},
    "experts": {"model": "deepseek-v2-lite", "profile": A2, "cards": 16, "batch": 128, "search": {}},
    "neutral": {
        "model": "llama2-7b",
        "profile": "nvidia-a100-80g",
        "cards": 8,
        "batch": 48,
        "search": {"risk": "neutral", "target": "megatron"},
    },
}


def spec_of(name: str) -> Spec:
    case = SPECS[name]
    return read_spec_document(
        {
            "model": case["model"],
            "cluster": {"profile": case["profile"], "num_npus": case["cards"]},
            "training": {"seq_length": 4096, "global_batch_size": case["batch"]},
            "search": {"effort": "fast", **case["search"]},
        }
    )


@cache
def planned(name: str) -> PlanSet:
    return planner.plan(spec_of(name))


@pytest.mark.parametrize("name", SPECS)
def test_each_moves_one_axis_of_the_recommended_plan_by_a_step(name: str) -> None:
    found, top = planned(name).counterfactuals, planned(name).plans[0].strategy
    assert 1 <= len(found) <= 3
    moved = [{axis for axis, value in each.axes.items() if value != getattr(top, axis)} for each in found]
    assert all(len(axes) == 1 for axes in moved)
    assert len({*map(tuple, moved)}) == len(found)


@pytest.mark.parametrize("name", SPECS)
def test_a_question_and_a_change_of_the_plan_get_the_same_answer(name: str) -> None:
    result, spec = planned(name), spec_of(name)
    top = result.plans[0]
    for each in result.counterfactuals:
        strategy = Strategy.model_validate(each.axes)
        answer = planner.why_not(spec, strategy, best=result)
        assert answer.completed is not None
        assert (answer.completed.step_time_s, answer.completed.p_fits) == (each.step_time_s, each.p_fits)
        assert answer.against_best_pct == pytest.approx(100.0 * (each.step_time_s / top.step_time_s - 1.0))
        assert planner.complete(spec, strategy, best=result).step_time_s == pytest.approx(each.step_time_s)


@pytest.mark.parametrize("name", SPECS)
def test_none_is_better_than_what_is_recommended(name: str) -> None:
    top = planned(name).plans[0]
    for each in planned(name).counterfactuals:
        mine, other = (one.expected_step_time_s or one.step_time_s for one in (top, each))
        assert other >= 0.998 * mine


def test_a_search_for_its_plans_alone_asks_nothing() -> None:
    assert not planner.plan(spec_of("dense"), alone=True).counterfactuals


@pytest.mark.parametrize("name", SPECS)
def test_the_dearest_comes_first(name: str) -> None:
    costs = [each.step_time_s for each in planned(name).counterfactuals]
    assert costs == sorted(costs, reverse=True)


def test_where_an_axis_has_no_plan_the_next_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_hopeless_one(*args: Any) -> list[Step]:
        steps = steps_from(*args)
        return [replace(steps[0], axes={**steps[0].axes, "micro_batch_size": 999}), *steps]

    # Steps that are all near each other: of one that is far behind the template stands, unless it is made alone.
    told = planned("experts").counterfactuals
    monkeypatch.setattr(advice, "steps_from", with_a_hopeless_one)
    assert planner.plan(spec_of("experts")).counterfactuals == told
    assert len(told) == 3
