"""Ranking of plans of post-training by regret, what they rest on, and why a strategy is not the plan."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.analysis.launch_requests import read_strategy
from autodeploy.calibration.evidence import evidence_of_generation
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.post_training.overheads import overheads_of
from autodeploy.kit.errors import SpecError
from autodeploy.messages import in_language
from autodeploy.reports.plan_report import evidence_line
from autodeploy.search.plan_search import UpdateSearch
from autodeploy.search.planner import plan, why_not
from autodeploy.search.post_training import planning
from autodeploy.search.post_training.advice import advise, by_prediction
from autodeploy.search.post_training.search import RlSearch
from autodeploy.search.post_training.update_layouts import search_updates
from autodeploy.search.post_training.why_not import asked_axes
from autodeploy.search.ranking.regret import regret_order
from autodeploy.search.ranking.search_result import LayoutsFound
from autodeploy.specs.rl import GenerationLayout, RlStrategy
from autodeploy.specs.search import RiskTerms
from tests.unit.test_rl_planning import QUICK, UPDATE, planned, spec_of

if TYPE_CHECKING:
    from autodeploy.search.post_training.advice import RlAdvice
    from autodeploy.specs.spec import Spec


@cache
def advised() -> RlAdvice:
    spec = spec_of(fix=UPDATE)
    profile = profile_of(spec.cluster)
    found = RlSearch(spec, profile, 16, UpdateSearch(lambda: False), lambda: False).run()
    advice = advise(spec, profile, found.choices, overheads_of("any"), lambda: False)
    assert advice is not None
    return advice


def test_the_recommended_plan_has_the_least_regret_within_a_tie() -> None:
    result = planned()
    assert result.risk is not None
    assert result.risk.risk == "averse"
    regrets = [each.regret_p80_pct for each in result.plans if each.regret_p80_pct is not None]
    assert regrets
    assert regrets[0] <= min(regrets) + 0.2 + 1e-9
    assert result.fastest is not None
    assert result.fastest.step_time_s <= min(each.step_time_s for each in result.plans) * (1.0 + 1e-12)
    for each in result.plans:
        assert each.expected_step_time_s is not None
        assert each.expected_step_time_s >= each.step_time_s * (1.0 - 1e-9)


def test_out_of_time_plans_are_ranked_by_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "advise", lambda *_: None)
    terms = {"floor": 0.6, "failed_launch_hours": 2.0}
    result = plan(spec_of(fix=QUICK, risk=terms))
    assert result.risk is not None
    assert (result.risk.risk, result.risk.draws, result.risk.failed_launch_hours) == ("averse", 0, 2.0)
    chances = [each.p_fits for each in result.plans if each.p_fits is not None]
    assert chances[0] >= min(0.6, max(chances))
    assert all(each.expected_step_time_s is not None for each in result.plans)


def test_the_floor_of_the_spec_decides_what_may_stand_first() -> None:
    spec = spec_of(fix=UPDATE)
    choices = sorted((each.choice for each in advised().weighed), key=lambda each: each.step.step_time_s)
    fastest, slowest = choices[0], choices[-1]
    assert fastest.step.step_time_s < 0.9 * slowest.step.step_time_s
    tight = replace(fastest, update=replace(fastest.update, p_fits=0.8, p_starts=0.9))
    for floor, first in ((0.75, tight), (0.9, slowest)):
        search = spec.search.model_copy(update={"risk": RiskTerms(floor=floor)})
        found = by_prediction(spec.model_copy(update={"search": search}), profile_of(spec.cluster), [tight, slowest])
        assert found.weighed[0].choice is first
        assert found.price.floor == floor


def test_neutral_plans_are_in_the_order_of_their_times() -> None:
    result = plan(spec_of(fix=QUICK, risk="neutral"))
    times = [each.step_time_s for each in result.plans]
    assert times == sorted(times)
    assert result.risk is not None
    assert result.risk.risk == "neutral"
    assert all(each.regret_p80_pct is None for each in result.plans)


def test_layouts_of_the_update_are_the_same_by_either_rule() -> None:
    asked: list[Spec] = []

    class Asked:
        def layouts(self, spec: Spec) -> LayoutsFound:
            asked.append(spec)
            return LayoutsFound((), None, 0)

        def why_none(self, spec: Spec) -> None: ...

    for rule in ("averse", "neutral"):
        search_updates(spec_of(risk={"rule": rule, "floor": 0.9}), 16, Asked(), shared=True)
    averse, neutral = asked[: len(asked) // 2], asked[len(asked) // 2 :]
    assert averse == neutral
    assert {(each.search.risk_terms.rule, each.search.risk_terms.floor) for each in asked} == {("averse", 0.9)}


def test_steps_follow_the_numbers_of_both_parts() -> None:
    """Slower decoding makes no step shorter, and one in turn longer by generation's share."""
    advice = advised()
    names = [number.name for number in advice.responses.box.numbers]
    modes = {f"generation_{each.choice.generation.generator.mode}" for each in advice.weighed}
    assert modes <= set(names)
    for each in advice.weighed:
        place = names.index(f"generation_{each.choice.generation.generator.mode}")
        slower = math.exp(advice.responses.high[each.row, place])
        assert slower >= 1.0 - 1e-12
        assert advice.responses.low[each.row, place] <= 1e-12
        if each.choice.layout.placement == "colocated":
            number = advice.responses.box.numbers[place]
            factor = advice.responses.box.factors(number)[1]
            share = each.choice.generation.generation_s / each.step_s
            assert slower == pytest.approx(1.0 + share * (factor - 1.0), rel=1e-9)


def test_advice_is_the_same_twice() -> None:
    first, second = advised(), advised.__wrapped__()
    assert [each.row for each in first.weighed] == [each.row for each in second.weighed]
    assert [each.regret for each in first.weighed] == [each.regret for each in second.weighed]


def test_a_gain_that_no_run_has_shown_counts_in_part() -> None:
    """A plan 4 % faster for something unproven, in every draw alike: half of the gain is expected to come true, and
    the plan that rests on runs is preferred where the whole may not.
    """
    nominal = np.log([1.0, 0.96])
    draws = np.tile(nominal, (200, 1))
    found = regret_order(draws, nominal, np.array([1.0, 1.0]), [frozenset(), frozenset({"x"})], 0.9)
    assert 0.96 < found.expected_s[1] < 1.0
    assert found.regret[0] > 0.0


def test_one_that_may_not_fit_comes_after_those_that_do() -> None:
    nominal = np.log([1.0, 0.5])
    found = regret_order(np.tile(nominal, (10, 1)), nominal, np.array([0.95, 0.4]), [frozenset()] * 2, 0.9)
    assert found.order == (0, 1)
    assert found.regret == {0: 0.0}
    assert found.expected_s[1] == pytest.approx(0.4 * 0.5 + 0.6 * 1.0, rel=2e-3), "and a failed launch"


def layout(**changes: Any) -> RlStrategy:
    generation = GenerationLayout(**({"tp": 4, "engine": "vllm-ascend", "precision": "bf16"} | changes))
    return RlStrategy(placement="colocated", generation=generation)


def test_evidence_counts_published_steps_and_serving() -> None:
    """Records of post-training on A3 are colocated; none on Ascend serves INT8 weights in that name."""
    found = {each.axis: each for each in evidence_of_generation(layout(), "ascend-910c", moe=True)}
    degrees = {"rl.generation.tp", "rl.generation.ep"}
    assert found.keys() == {"rl.placement", "rl.generation.engine", "rl.generation.precision", *degrees}
    assert found["rl.placement"].runs == 9
    assert found["rl.placement"].nearest_record is not None
    assert found["rl.generation.ep"].runs > 0  # whole experts need no evidence
    other = layout(precision="int8").model_copy(update={"placement": "separate"})
    rest = {each.axis: each.runs for each in evidence_of_generation(other, "ascend-910c", moe=False)}
    assert rest["rl.placement"] == 0
    assert rest["rl.generation.precision"] == 0
    assert "rl.generation.ep" not in rest


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_generation_rests_on_is_told(lang: Any) -> None:
    said = [evidence_line(each, lang) for each in planned().plans]
    assert all(said)
    axes = {each.axis for each in planned().plans[0].evidence}
    assert axes >= {"rl.placement", "rl.generation.engine", "rl.generation.precision", "rl.generation.tp"}


# -- why not ---------------------------------------------------------------------------------------------------------


def test_axes_that_are_asked_for_are_those_that_are_given() -> None:
    asked = read_strategy({"tp": 2, "rl.generation.tp": 4, "rl.placement": "separate", "rl.offload": "none"})
    assert asked_axes(asked, moe=False) == {
        "tp": 2,
        "rl.placement": "separate",
        "rl.generation.tp": 4,
        "rl.offload": "none",
    }
    nested = read_strategy({"rl": {"generation": {"mode": "graph"}}})
    assert asked_axes(nested, moe=False) == {"rl.generation.mode": "graph"}


def test_axes_of_a_plan_are_kept_but_for_its_replicas() -> None:
    base = planned().plans[0].strategy
    asked = read_strategy({"rl.generation.tp": 8}, base)
    assert asked.rl is not None
    assert base.rl is not None
    assert asked.rl.placement == base.rl.placement
    axes = asked_axes(asked, moe=False)
    assert axes["rl.generation.tp"] == 8
    assert "rl.generation.dp" not in axes


def test_another_placement_costs_what_the_best_plan_with_it_does() -> None:
    result, spec = planned(), spec_of(fix=QUICK, off_policy=True)
    for placement in ("colocated", "separate", "async"):
        answer = why_not(spec, read_strategy({"rl.placement": placement}), best=result)
        assert answer.completed is not None
        assert answer.completed.strategy.rl is not None
        assert answer.completed.strategy.rl.placement == placement
        assert answer.against_fastest_pct is not None
        assert answer.against_fastest_pct >= -1e-6
        assert re.search(r"[\u4e00-\u9fff]", in_language(answer.message, "zh"))


def test_what_leaves_nothing_is_named_with_the_nearest() -> None:
    answer = why_not(spec_of(fix={**QUICK}), read_strategy({"tp": 3}), best=planned())
    assert answer.rule is not None
    assert "world_divides" in answer.message
    assert answer.completed is None
    assert any("tp" in each.change for each in answer.nearest)


def test_bad_axes_are_refused_where_they_stand() -> None:
    with pytest.raises(SpecError) as caught:
        read_strategy({"rl.placement": "elsewhere"})
    assert caught.value.errors[0].path.startswith("/strategy/rl")
    with pytest.raises(SpecError):
        read_strategy({"rl.generation.speed": 3})
    with pytest.raises(SpecError):
        read_strategy({"rl.offload": "everything"})
