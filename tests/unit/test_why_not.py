"""`why-not` of a few axes: the best plan that has them, or what rules out all that do."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.cli.what_if import answer_text
from autodeploy.messages import in_language
from autodeploy.search.planner import plan, why_not
from autodeploy.search.ranking.plans import Identity
from autodeploy.search.ranking.why_not import is_whole
from autodeploy.specs.planset import Fastest, RiskRanking
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from autodeploy.specs.answers import WhyNot
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec


def spec_of(*, batch: int = 64, **search: Any) -> Spec:
    """Llama2-7B on one node of eight."""
    return read_spec_document(
        {
            "model": "llama2-7b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
            "training": {"seq_length": 4096, "global_batch_size": batch},
            "search": {"effort": "fast", "risk": "neutral", "allow": {"cp": [1], "vpp": [1]}, **search},
        }
    )


@cache
def planned() -> PlanSet:
    return plan(spec_of())


def asked(strategy: dict[str, Any], **search: Any) -> WhyNot:
    return answered(json.dumps(strategy), json.dumps(search))


@cache
def answered(strategy: str, search: str) -> WhyNot:
    return why_not(spec_of(**json.loads(search)), Strategy.model_validate_json(strategy), best=planned())


def best_with(axes: dict[str, Any], **search: Any) -> float:
    """Step time of the best plan that a search finds when these axes are fixed."""
    return plan(spec_of(fix=axes, **search), alone=True).plans[0].step_time_s


@pytest.mark.parametrize("axes", [{"tp": 8}, {"pp": 8}, {"tp": 4, "micro_batch_size": 2}])
def test_absent_axes_are_those_of_the_best_plan_with_the_given_ones(axes: dict[str, Any]) -> None:
    answer = asked(axes)
    found = answer.completed
    assert found is not None
    assert answer.rule is None
    assert {name: getattr(found.strategy, name) for name in axes} == axes
    assert found.fits
    assert answer.step_time_s == found.step_time_s <= 1.02 * best_with(axes)
    top = planned().plans[0]
    assert answer.against_best_pct == pytest.approx(100.0 * (found.step_time_s / top.step_time_s - 1.0))


def test_equal_questions_have_equal_answers() -> None:
    again = why_not(spec_of(), Strategy(tp=4, micro_batch_size=2), best=planned())
    assert again == asked({"tp": 4, "micro_batch_size": 2})


def test_a_plan_that_was_ranked_is_the_answer() -> None:
    top, *others = planned().plans
    axes = ("tp", "pp", "vpp", "cp", "micro_batch_size", "schedule")
    axis, value, other = next(
        (axis, getattr(each.strategy, axis), each)
        for each in others
        for axis in axes
        if getattr(each.strategy, axis) != getattr(top.strategy, axis)
    )
    assert asked({axis: value}).completed == other
    recommended = asked({"tp": top.strategy.tp})
    assert recommended.completed == top
    assert "is the recommended plan" in recommended.message
    assert recommended.against_best_pct == 0.0


def test_the_fastest_plan_on_paper_is_compared_with_too() -> None:
    top = planned().plans[0]
    fastest = Fastest(plan_id="p_fast", step_time_s=0.5 * top.step_time_s, p_fits=0.4, strategy=top.strategy)
    known = planned().model_copy(update={"fastest": fastest})
    answer = why_not(spec_of(), Strategy(tp=8), best=known)
    assert answer.step_time_s is not None
    assert answer.against_fastest_pct == pytest.approx(100.0 * (answer.step_time_s / fastest.step_time_s - 1.0))
    assert "relative to the fastest by prediction" in answer_text(answer)


def test_what_else_is_given_stands_on_the_completed_axes() -> None:
    free, full = asked({"tp": 4}), asked({"tp": 4, "recompute": {"granularity": "full"}})
    assert full.completed is not None
    assert full.completed.strategy.recompute.granularity == "full"
    assert full.completed.strategy.tp == 4
    assert full.step_time_s is not None
    assert free.step_time_s is not None
    assert full.step_time_s > 1.1 * free.step_time_s
    kept = asked({"tp": 1, "recompute": {"granularity": "none"}, "micro_batch_size": 4})
    assert kept.rule == "memory"
    assert kept.fitting is not None


@pytest.mark.parametrize(
    ("axes", "rule", "change"),
    [
        ({"tp": 3}, "world_divides", "tp: 3 -> "),
        ({"tp": 16}, "tp_inside_node", "tp: 16 -> 8"),
        ({"tp": 8, "pp": 4}, "world_divides", "pp: 4 -> 1"),
        ({"ep": 2}, "experts_divide_by_ep", "ep: 2 -> 1"),
        ({"micro_batch_size": 3}, "batch_divides", "micro_batch_size: 3 -> "),
    ],
)
def test_the_rule_that_leaves_nothing_is_named_with_the_nearest_change(
    axes: dict[str, Any], rule: str, change: str
) -> None:
    answer = asked(axes)
    assert answer.completed is None
    assert rule in answer.broken_rules
    assert answer.rule == answer.broken_rules[0]
    (near,) = answer.nearest
    assert near.change.startswith(change)
    assert near.effect.startswith("fits, about")


def test_memory_that_nothing_brings_down_is_named_with_the_nearest_change() -> None:
    answer = asked({"tp": 1, "pp": 1, "micro_batch_size": 16}, batch=128, memory_limit_gib=44.0)
    assert answer.rule == "memory"
    assert "the leanest strategy needs" in answer.message
    (near,) = answer.nearest
    assert near.change.count("->") == 1


def test_what_the_spec_pins_itself_gives_way_to_what_is_asked() -> None:
    answer = asked({"tp": 8}, fix={"tp": 2}, forbid={"tp": [8]})
    assert answer.completed is not None
    assert answer.completed.strategy.tp == 8
    others = asked({"tp": 8}, fix={"pp": 2})
    assert others.completed is None
    assert "search.fix.pp: 2" in others.message


def test_what_leaves_nothing_open_is_whole() -> None:
    degrees = {"tp": 2, "pp": 1, "vpp": 1, "cp": 1, "micro_batch_size": 1, "schedule": "1f1b"}
    assert not is_whole(Strategy.model_validate(degrees), moe=False)
    assert is_whole(Strategy.model_validate(degrees | {"layers_per_stage": [32]}), moe=False)
    assert not is_whole(Strategy.model_validate(degrees | {"layers_per_stage": [32]}), moe=True)
    assert is_whole(Strategy(schedule="dualpipe"), moe=True), "no search looks at it"


@pytest.mark.parametrize(
    "strategy",
    [
        {"tp": 8},
        {"tp": 3},
        {"tp": 8, "pp": 4},
        {"dp": 5},
        {"tp": 4, "recompute": {"granularity": "full"}},
        {"tp": 1, "recompute": {"granularity": "none"}, "micro_batch_size": 4},
    ],
)
def test_answers_are_said_in_chinese(strategy: dict[str, Any]) -> None:
    for line in answer_text(asked(strategy), "zh").splitlines():
        assert any("\u4e00" <= letter <= "\u9fff" for letter in line), line


def test_a_faster_plan_than_the_ranked_ones_is_the_answer() -> None:
    top = planned().plans[0]
    axes = {"tp": top.strategy.tp, "pp": top.strategy.pp}
    twice = top.model_copy(
        update={"plan_id": "p_slow", "step_time_s": 2.0 * top.step_time_s, "expected_step_time_s": None}
    )
    slow = planned().model_copy(update={"plans": (twice,), "risk": None})
    answer = why_not(
        spec_of(), Strategy.model_validate({**axes, "micro_batch_size": top.strategy.micro_batch_size}), best=slow
    )
    assert answer.completed is not None
    assert answer.completed.step_time_s <= 1.02 * top.step_time_s
    averse = slow.model_copy(update={"risk": RiskRanking(risk="averse", compared=1, draws=1, least_p_fits=0.9)})
    recommended = why_not(spec_of(), Strategy.model_validate(axes), best=averse)
    assert recommended.completed == averse.plans[0]


def test_near_strategies_are_scaled_as_plans_are(monkeypatch: pytest.MonkeyPatch) -> None:
    (near,) = asked({"tp": 3}).nearest
    monkeypatch.setattr(Identity, "ratio", property(lambda identity: 2.0))
    (scaled,) = why_not(spec_of(), Strategy(tp=3), best=planned()).nearest
    assert near.change == scaled.change
    seconds = [float(each.effect.removeprefix("fits, about ").removesuffix(" s per step")) for each in (near, scaled)]
    assert seconds[1] == pytest.approx(2.0 * seconds[0], rel=1e-3)


def test_what_is_illegal_is_told_with_its_numbers_and_without_places_in_a_source() -> None:
    """A whole strategy, and partly given ones whose axes say enough."""
    whole = asked({"tp": 3, "pp": 1, "cp": 1, "vpp": 1, "micro_batch_size": 1, "layers_per_stage": [32]})
    partly, deep = asked({"tp": 3}), asked({"pp": 64, "vpp": 1, "tp": 1})
    assert "world size must be divisible by tp x pp x cp (cp 1, pp 1, tp 3, world 8)" in whole.message
    assert "world size must be divisible by tp x pp x cp (tp 3, world 8)" in partly.message
    assert "pp 64" in deep.message
    for answer in (whole, partly, deep):
        assert answer.rule is not None
        assert "parallel_state" not in answer.message
        assert "(MG" not in answer.message
        assert "do not" not in in_language(answer.message, "zh")
