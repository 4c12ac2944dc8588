"""Plans of reinforcement learning: what adds up, what is pinned, what is bound, what is refused and what is said."""

from __future__ import annotations

import re
import time
from functools import cache
from typing import Any

import pytest

from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.formats.registry import export
from autodeploy.kit.deadline import Deadline
from autodeploy.kit.errors import SpecError
from autodeploy.messages import in_language
from autodeploy.reports.run_facts import plans_table
from autodeploy.search.plan_search import UpdateSearch
from autodeploy.search.planner import check_space, estimate, plan, reestimate, search_size, timeline
from autodeploy.search.post_training.search import RlSearch
from autodeploy.specs.planset import PARTS, Plan, PlanSet, Timing
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.search import RL_AXES, value_of

RL: dict[str, Any] = {
    "prompts_per_step": 64,
    "responses_per_prompt": 8,
    "prompt_length": {"max": 256},
    "response_length": {"mean": 512, "cv": 0.8, "max": 2048},
}
UPDATE: dict[str, Any] = {"tp": 1, "pp": 2, "cp": 1, "vpp": 1, "schedule": "1f1b"}
QUICK: dict[str, Any] = {**UPDATE, "rl.generation.mode": "graph"}
ANY_DEPTH: dict[str, Any] = {axis: value for axis, value in QUICK.items() if axis != "pp"}
# Of eight cards: the best number to generate beside the rest where training is most of a step, and where generation is.
SPLITS: dict[str, Any] = {"rl.generation_npus": [3, 6]}


def spec_of(
    *, cards: int = 16, model: str = "llama2-7b", rl: dict[str, Any] | None = None, strategy: Any = None, **search: Any
) -> Any:
    """A model, Llama2-7B unless named, on nodes of eight."""
    document = {
        "model": model,
        "cluster": {"profile": "ascend-800t-a2", "num_npus": cards},
        "training": {"kind": "rl_post_training", "rl": {**RL, **(rl or {})}},
        "search": {"target": "any", "top_k": 4, **search},
    }
    return read_spec_document(document if strategy is None else {**document, "strategy": strategy})


@cache
def planned() -> PlanSet:
    return plan(spec_of(fix=QUICK, off_policy=True), search_id="srch_1")


@cache
def placed(placement: str) -> PlanSet:
    return plan(spec_of(fix={**QUICK, "rl.placement": placement}, top_k=1, risk="neutral"))


def rl_of(chosen: Plan) -> Any:
    assert chosen.rl is not None
    assert chosen.strategy.rl is not None
    return chosen.rl


def test_plans_add_up_and_differ() -> None:
    result = planned()
    assert result.status in {"optimal", "feasible"}
    assert [each.rank for each in result.plans] == [1, 2, 3, 4]
    for each in result.plans:
        exposed = sum(phase.exposed_s for phase in rl_of(each).phases)
        assert exposed == pytest.approx(each.step_time_s, rel=1e-9)
        assert sum(getattr(each.breakdown, part) for part in PARTS) == pytest.approx(each.step_time_s, rel=1e-9)
        assert rl_of(each).training_npus + rl_of(each).generation_npus in {16, 32}
        assert each.peak_memory_gib == pytest.approx(max(vars(rl_of(each).peak_memory_gib).values()))
        assert each.uncertainty.low_s < each.step_time_s < each.uncertainty.high_s
    layouts = {each.strategy.model_dump_json() for each in result.plans}
    assert len(layouts) == 4


def test_no_plan_beats_the_bound_and_the_gap_follows_from_it() -> None:
    result = planned()
    assert result.optimality.bound is not None
    best = min(each.step_time_s for each in (*result.plans, *result.pareto))
    assert 0.0 < result.optimality.bound <= best
    assert result.optimality.gap == pytest.approx(1.0 - result.optimality.bound / best)


@pytest.mark.parametrize("placement", ["colocated", "separate", "async"])
def test_little_is_left_between_a_plan_and_the_bound_of_its_placement(placement: str) -> None:
    """The search of the update ends at 20 %; all that is beside it is bounded much tighter than that."""
    gap = placed(placement).optimality.gap
    assert gap is not None
    assert gap < 0.2


def test_two_plans_of_one_spec_are_equal_to_the_byte() -> None:
    again = plan(spec_of(fix=QUICK, off_policy=True), search_id="srch_1").model_copy(update={"timing": Timing()})
    assert again.model_dump_json() == planned().model_copy(update={"timing": Timing()}).model_dump_json()
    assert PlanSet.model_validate_json(again.model_dump_json()) == again


def test_a_plan_is_its_own_estimate() -> None:
    result = planned()
    for each in result.plans[:2]:
        again = reestimate(spec_of(fix=QUICK, off_policy=True), each)
        assert again.plan_id == each.plan_id
        assert again.step_time_s == pytest.approx(each.step_time_s, rel=1e-9)
        given = each.strategy.model_dump(mode="json", exclude_none=True)
        assert estimate(spec_of(strategy=given)).step_time_s == pytest.approx(each.step_time_s, rel=1e-9)


@cache
def launched(target: str, **changes: Any) -> PlanSet:
    """Plans for a framework, of a step that 16 replicas can't share."""
    rl = {"prompts_per_step": 40, "responses_per_prompt": 5}
    return plan(spec_of(rl={**rl, **changes}, target=target, fix=ANY_DEPTH, top_k=4, risk="neutral"))


@pytest.mark.parametrize("target", ["verl", "mindspeed-rl"])
def test_every_plan_can_be_launched_by_its_target(target: str) -> None:
    result = launched(target)
    assert result.plans
    for each in result.plans:
        assert export(result, each, target).text
    dealt = {"verl": {"update_divides_over_replicas"}, "mindspeed-rl": {"prompts_divide_over_replicas"}}
    assert dealt[target] <= result.counts.rejected.keys()


@pytest.mark.parametrize(("target", "model"), [("verl", "qwen3-30b-a3b"), ("mindspeed-rl", "qwen3-30b-a3b")])
def test_plans_with_every_degree_free_can_be_written(target: str, model: str) -> None:
    """No schedule, group of micro batches or cut of experts that the target has no key for."""
    spec = spec_of(target=target, model=model, cards=16, top_k=3, risk="neutral")
    result = plan(spec)
    assert result.plans
    for each in result.plans:
        assert export(result, each, target).text
        if target == "mindspeed-rl" and each.strategy.pp > 1:
            assert each.strategy.vpp == 1


def test_packs_exclude_virtual_stages_in_mindspeed_rl() -> None:
    """Lengths decide how many packs a step has, and groups of pp micro batches have to be whole."""
    given = {"tp": 2, "pp": 4, "vpp": 2, "schedule": "interleaved", "micro_batch_size": 1}
    how = {"placement": "colocated", "generation": {"tp": 2, "engine": "vllm-ascend"}, "pack_tokens": 4096}
    spec = spec_of(target="mindspeed-rl", strategy={**given, "rl": how})
    found = estimate(spec)
    with pytest.raises(SpecError, match="pack_tokens excludes vpp > 1"):
        export(launched("mindspeed-rl").model_copy(update={"plans": (found,)}), found, "mindspeed-rl")


def test_a_step_that_no_launch_can_deal_is_refused_by_the_rule() -> None:
    result = launched("mindspeed-rl", prompts_per_step=49)
    assert result.status == "infeasible"
    assert result.infeasible is not None
    assert list(result.counts.rejected) == ["prompts_divide_over_nodes"]
    assert any(
        "MindSpeed-RL cannot launch this plan: prompts_per_step" in rule for rule in result.infeasible.binding_rules
    )
    assert [change.change for change in result.infeasible.nearest] == ["prompts_per_step: 48 or 50"]
    assert "或" in in_language(result.infeasible.nearest[0].change, "zh")
    assert launched("mindspeed-rl", prompts_per_step=48).plans
    assert all(re.search(r"[\u4e00-\u9fff]", in_language(rule, "zh")) for rule in result.infeasible.binding_rules)


def test_a_plan_has_the_overheads_of_its_target() -> None:
    """MindSpeed-RL issues operators of an eager engine slower than others do; an estimate of its plan says the same."""
    fix = {**UPDATE, "rl.generation.mode": "eager", "rl.placement": "colocated", "rl.generation.tp": 2}
    result = plan(spec_of(target="mindspeed-rl", fix=fix, top_k=1, risk="neutral"))
    given = result.plans[0].strategy.model_dump(mode="json", exclude_none=True)
    same = estimate(spec_of(target="mindspeed-rl", strategy=given))
    other = estimate(spec_of(target="verl", strategy=given))
    assert same.step_time_s == pytest.approx(result.plans[0].step_time_s, rel=1e-9)
    assert same.breakdown.generation_s > 1.5 * other.breakdown.generation_s


def test_a_better_placement_is_not_missed() -> None:
    """Each placement alone gives no faster plan than the search over all of them."""
    for placement in ("colocated", "separate", "async"):
        alone = placed(placement).fastest
        best = planned().fastest
        assert alone is not None
        assert best is not None
        assert alone.strategy.rl is not None
        assert alone.strategy.rl.placement == placement
        assert alone.step_time_s >= best.step_time_s * (1.0 - 1e-9)


def test_where_asynchrony_does_not_pay_the_synchronous_plan_ranks_first_and_it_is_said() -> None:
    """Generation in full batches is most of the step: on half of the cards it takes twice as long, which is more than
    both on all of them.
    """
    rl = {"prompts_per_step": 512, "responses_per_prompt": 16, "reference_model": False}
    rl |= {"prompt_length": {"max": 16}, "response_length": {"max": 2048}}
    result = plan(spec_of(cards=8, rl=rl, fix=QUICK, allow=SPLITS, top_k=1, risk="neutral", off_policy=True))
    assert result.plans[0].strategy.rl is not None
    assert result.plans[0].strategy.rl.placement == "colocated"
    assert any("asynchrony does not pay here" in said for said in result.warnings)


def test_no_update_is_searched_where_generation_alone_leaves_no_step_among_the_best() -> None:
    rl = {"prompts_per_step": 512, "responses_per_prompt": 16, "reference_model": False}
    rl |= {"prompt_length": {"max": 16}, "response_length": {"max": 2048}}
    spec = spec_of(cards=8, rl=rl, fix=QUICK, allow=SPLITS, top_k=1, risk="neutral")
    stop = Deadline(None, time.monotonic(), 600.0)
    search = RlSearch(spec, profile_of(spec.cluster), 8, UpdateSearch(stop), stop)
    assert {each.layout.placement for each in search.run().choices} == {"colocated"}
    assert set(search.searched) == {8}


def test_where_asynchrony_pays_its_price_is_said() -> None:
    """Training is most of the step, and few cards generate beside it."""
    short = {"response_length": {"max": 256}}
    result = plan(
        spec_of(cards=8, rl=short, fix={**QUICK, "pp": 1}, allow=SPLITS, top_k=1, risk="neutral", off_policy=True)
    )
    assert result.plans[0].strategy.rl is not None
    assert result.plans[0].strategy.rl.placement == "async"
    assert any("an older policy" in said for said in result.warnings)


@pytest.mark.parametrize(
    "asked",
    [
        {"cards": 8, "rl": {"response_length": {"max": 256}}},
        {"cards": 8, "rl": {"response_length": {"max": 512}}, "target": "verl"},
        {"cards": 16, "rl": {"response_length": {"max": 1024}}},
        {"cards": 16, "rl": {"prompts_per_step": 128}},
        {"cards": 16, "model": "qwen3-8b", "rl": {"reference_model": False}},
    ],
)
def test_unasked_plans_are_synchronous_and_the_answer_says_how_to_ask(asked: dict[str, Any]) -> None:
    result = plan(spec_of(**asked, fix=QUICK, risk="neutral"))
    assert result.plans
    for each in result.plans:
        assert each.strategy.rl is not None
        assert each.strategy.rl.placement != "async"
        assert each.strategy.rl.staleness == 0
    assert any("search.off_policy" in said for said in result.warnings)


def test_off_policy_is_refused_where_nothing_is_generated() -> None:
    document = {
        "model": "llama2-7b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
        "training": {"seq_length": 4096, "global_batch_size": 8},
        "search": {"off_policy": True},
    }
    with pytest.raises(SpecError) as caught:
        read_spec_document(document)
    assert [error.path for error in caught.value.errors] == ["/search/off_policy"]


@pytest.mark.parametrize(
    "pinned",
    [
        {
            "rl.placement": "colocated",
            "rl.generation.tp": 4,
            "rl.generation.mode": "eager",
            "rl.generation.memory_fraction": 0.8,
            "rl.generation.max_num_seqs": 32,
            "rl.offload": "optimizer",
            "rl.pack_tokens": 4096,
            "rl.partial_rollout": True,
        },
        {"rl.placement": "separate"},
        {"rl.placement": "async", "rl.generation_npus": 8},
    ],
)
def test_what_is_pinned_is_kept(pinned: dict[Any, Any]) -> None:
    assert pinned.keys() <= set(RL_AXES)
    found = plan(spec_of(fix={**QUICK, **pinned}, top_k=2, risk="neutral")).plans
    assert found
    for each in found:
        assert each.strategy.rl is not None
        assert {axis: value_of(each.strategy.rl, axis) for axis in pinned} == pinned


def test_what_is_forbidden_is_not_there() -> None:
    forbidden = {"rl.placement": ["colocated", "separate"], "rl.generation.tp": [8]}
    result = plan(spec_of(fix=QUICK, off_policy=True, forbid=forbidden, risk="neutral"))
    assert result.plans
    for each in result.plans:
        assert each.strategy.rl is not None
        assert each.strategy.rl.placement == "async"
        assert each.strategy.rl.generation.tp != 8


def test_responses_that_fit_nowhere_are_no_plan_but_a_reason() -> None:
    rl = {"response_length": {"max": 1_000_000}}
    found = plan(spec_of(rl=rl, fix={**QUICK, "rl.generation.tp": 1, "rl.placement": "separate", "tp": 8}, top_k=1))
    assert found.status == "infeasible"
    assert found.plans == ()
    assert found.infeasible is not None
    assert found.infeasible.binding_rules
    assert found.infeasible.nearest


def test_cards_that_no_layout_divides_name_the_nearest() -> None:
    strategy = {"tp": 1, "rl": {"placement": "separate", "generation_npus": 6, "generation": {"tp": 4}}}
    with pytest.raises(SpecError, match="not a multiple of the replica size") as caught:
        estimate(spec_of(strategy=strategy))
    assert caught.value.errors[0].path == "/strategy/rl/generation/tp"
    assert caught.value.errors[0].hint


def test_the_pipeline_of_an_update_is_simulated() -> None:
    """It is as long as the update phase: of one update a step, the phase is its step."""
    for each in planned().plans:
        drawn = timeline(spec_of(fix=QUICK), each.strategy)
        update = next(phase for phase in rl_of(each).phases if phase.name == "update")
        assert drawn.pp == each.strategy.pp
        assert drawn.step_time_s == pytest.approx(update.end_s - update.start_s, rel=1e-9)


def test_the_space_is_checked_and_counted_before_a_search() -> None:
    check_space(spec_of(fix=QUICK))
    assert search_size(spec_of(fix=QUICK)).candidates > 0


def test_the_table_says_where_each_plan_generates() -> None:
    result = planned()
    for lang, title in (("en", "generation"), ("zh", "生成")):
        table = plans_table(result, lang)
        place = table.titles.index(title)
        assert len(table.rows) >= len(result.plans) > 0
        for row, each in zip(table.rows, result.plans, strict=False):
            layout = each.strategy.rl
            assert layout is not None
            words = row[place].split()
            assert words[0] == layout.placement
            assert f"TP{layout.generation.tp}" in words
            assert (str(layout.generation_npus) in words) == (layout.placement != "colocated")


def test_everything_said_has_its_chinese() -> None:
    result = planned()
    said = [*result.warnings, result.optimality.relaxation, result.plans[0].uncertainty.basis]
    said += [each.explanation for each in result.plans]
    assert [text for text in said if not re.search(r"[\u4e00-\u9fff]", in_language(text, "zh"))] == []
