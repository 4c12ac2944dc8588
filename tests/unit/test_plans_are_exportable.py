"""What a target is planned for can be exported to it: searches, estimates and exports read one record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autodeploy.analysis.launch_requests import refuse_illegal
from autodeploy.formats import registry as exporters
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.search import planner
from autodeploy.specs.planset import Plan, PlanSet, SearchInfo, plan_set_of_one
from autodeploy.specs.spec import Spec, parse_spec
from autodeploy.specs.strategy import Strategy
from autodeploy.stack.frameworks import FRAMEWORKS, UNRESTRICTED, launchers
from autodeploy.stack.releases import frameworks_for, releases

CHIPS = {"ascend-800t-a2": "huawei", "cloudmatrix-384": "huawei", "nvidia-h100": "nvidia", "nvidia-a100-80g": "nvidia"}
PRE_TRAINERS = tuple(name for name in launchers() if not FRAMEWORKS[name].post_trains)
MODELS = ("qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v3.2", "mixtral-8x7b", "qwen3-next-80b-a3b", "gpt-oss-20b")
TRAININGS: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "fp16"},
    {"precision": "fp32"},
    {"precision": "fp8"},
    {"optimizer": "muon"},
    {"kind": "sft"},
    {"kind": "dpo"},
    {"kind": "sft", "lora": {"rank": 8}},
)
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 2, "pp": 4},
    {"pp": 2, "vpp": 2, "schedule": "interleaved"},
    {"pp": 4, "vpp": 2, "ep": 4, "schedule": "adaptive_pipe", "moe_dispatcher": "alltoall"},
    {"pp": 4, "vpp": 2, "ep": 4, "schedule": "dualpipev", "moe_dispatcher": "alltoall"},
    {"ep": 8, "moe_dispatcher": "allgather"},
    {"tp": 2, "ep": 8, "etp": 2, "moe_dispatcher": "alltoall_seq"},
    {"cp": 2, "cp_algo": "ulysses", "ep": 4},
    {"tp": 4, "swap_optimizer": True},
    {"pp": 2, "reuse_fp32_param": True, "recompute": {"granularity": "full"}},
)


def spec_of(model: str, chip: str, training: dict[str, Any], search: dict[str, Any]) -> Spec:
    return parse_spec(
        {
            "model": {"preset": model},
            "cluster": {"profile": chip, "num_npus": 32},
            "training": {"seq_length": 4096, "global_batch_size": 256, **training},
            "search": search,
        }
    )


def given_plans(spec: Spec, plan: Plan) -> PlanSet:
    blank = SearchInfo(id="", spec={}, spec_hash="", profile_hash="", engine_version="", created_at="")
    return plan_set_of_one(blank, spec, plan, spec.search.objective)


def written(plan_set: PlanSet, plan: Plan, to: str) -> str:
    refuse_illegal(plan_set, plan, to, planner.launch_rules)
    return exporters.export(plan_set, plan, to).text


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(MODELS),
    st.sampled_from(sorted(CHIPS)),
    st.sampled_from([each for each in releases() if not FRAMEWORKS[each.framework].post_trains]),
    st.sampled_from(TRAININGS),
    st.sampled_from(LAYOUTS),
)
def test_what_breaks_no_rule_of_a_release_is_written_for_it(
    model: str, chip: str, release: Any, training: dict[str, Any], layout: dict[str, Any]
) -> None:
    try:
        spec = spec_of(model, chip, training, {"target": release.framework, "target_release": release.name})
        given_spec = spec.model_copy(update={"strategy": Strategy.model_validate(layout)})
        rules = planner.launch_rules(given_spec)
        assume(not rules.stopping)
        plan = planner.estimate(given_spec)
    except SpecError:  # refused with the field before any strategy is looked at
        assume(False)
        raise
    assert written(given_plans(spec, plan), plan, release.framework)


ENDS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("qwen3-8b", "nvidia-h100", "megatron", {"kind": "sft"}),
    ("mixtral-8x7b", "nvidia-a100-80g", "megatron", {}),
    ("qwen3-8b", "ascend-800t-a2", "mindspeed-llm", {"kind": "dpo"}),
    ("qwen3-8b", "ascend-800t-a2", "mindspeed-llm", {"kind": "sft", "lora": {"rank": 16}}),
    ("qwen3-8b", "ascend-800t-a2", "megatron", {"optimizer": "muon"}),
    ("qwen3-8b", "cloudmatrix-384", "mindformers", {"precision": "fp16"}),
    ("qwen3-30b-a3b", "ascend-800t-a2", "mindspeed-llm-fsdp2", {}),
)


@pytest.mark.parametrize(("model", "chip", "target", "training"), ENDS)
def test_a_plan_is_written_for_its_target(model: str, chip: str, target: str, training: dict[str, Any]) -> None:
    search = {"target": target, "effort": 0.02, "top_k": 2, "risk": "neutral"}
    found = planner.plan(spec_of(model, chip, training, search), alone=True)
    assert found.plans
    assert all(written(found, each, target) for each in found.plans)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("training", TRAININGS[5:], ids=str)
def test_a_training_without_launch_is_infeasible_by_name_and_a_framework_that_has_it_is_offered(
    chip: str, training: dict[str, Any]
) -> None:
    for target in frameworks_for(PRE_TRAINERS[0], CHIPS[chip]):
        spec = spec_of("qwen3-8b", chip, training, {"target": target, "effort": 0.02, "risk": "neutral"})
        if FRAMEWORKS[target].models:  # it shards alone, beside which adapters and references are not modelled
            continue
        strategy = spec.model_copy(update={"strategy": Strategy()})
        if "training_is_launched" not in {rule.rule for rule in planner.launch_rules(strategy).stopping}:
            continue
        why = planner.plan(spec).infeasible
        assert why is not None
        assert any("training_is_launched" in rule for rule in why.binding_rules)
        offered = {near.change.removeprefix("search.target: ") for near in why.nearest if "target" in near.change}
        assert offered <= {*frameworks_for(target, CHIPS[chip]), UNRESTRICTED}
        assert UNRESTRICTED in offered
        assert CHIPS[chip] != "huawei" or "mindspeed-llm" in offered


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("target", PRE_TRAINERS)
def test_chips_without_a_release_are_refused_alike_by_searches_and_exports(target: str, chip: str) -> None:
    usual = spec_of("qwen3-0.6b", chip, {}, {})
    plan = planner.estimate(usual.model_copy(update={"strategy": Strategy()}))
    runs = target in frameworks_for(target, CHIPS[chip])
    if runs:
        planner.prepare(spec_of("qwen3-0.6b", chip, {}, {"target": target}))
        return
    with pytest.raises(SpecError, match=CHIPS[chip]) as searched:
        planner.prepare(spec_of("qwen3-0.6b", chip, {}, {"target": target}))
    with pytest.raises(UnsupportedError, match=CHIPS[chip]) as exported:
        written(given_plans(usual, plan), plan, target)
    for error in (*searched.value.errors, *exported.value.errors):
        assert error.hint is not None
        others = set(PRE_TRAINERS) - set(frameworks_for(target, CHIPS[chip]))
        assert not others & set(error.hint.replace(",", " ").split())


@pytest.mark.parametrize(("chip", "target"), [("nvidia-b200", "megatron"), ("ascend-800t-a2", "mindspeed-llm")])
def test_a_spec_without_a_target_is_for_a_framework_of_its_chips(chip: str, target: str) -> None:
    assert spec_of("qwen3-0.6b", chip, {}, {}).search.target == target
    assert planner.prepare(spec_of("qwen3-0.6b", chip, {}, {}))


PAIRED = {"pp": 4, "vpp": 2, "ep": 4, "schedule": "adaptive_pipe", "moe_dispatcher": "alltoall"}
EMPTY_CHUNK = PAIRED | {"layers_per_stage": [[8, 6], [7, 6], [7, 6], [0, 8]]}
CUT_EXPERTS = {"ep": 8, "tp": 2, "etp": 2, "moe_dispatcher": "alltoall_seq"}


@pytest.mark.parametrize(
    ("model", "layout", "to", "rule"),
    [
        ("qwen3-30b-a3b", EMPTY_CHUNK, "mindspeed-llm", "fb_overlap_fills_chunks"),
        ("qwen3-30b-a3b", PAIRED, "mindformers", "schedule_is_launched"),
        ("qwen3-8b", {"pp": 2}, "mindspeed-llm-fsdp2", "fsdp2_one_stage"),
        ("qwen3-8b", {"pp": 2}, "torchtitan-npu", "torchtitan_one_stage"),
        ("qwen3-8b", {"tp": 4, "swap_optimizer": True}, "mindformers", "optimizer_memory_is_launched"),
        ("deepseek-v3.2", {"ep": 8}, "megatron", "training_is_launched"),
        ("qwen3-30b-a3b", CUT_EXPERTS, "mindformers", "dispatcher_is_launched"),
    ],
)
def test_a_plan_for_any_framework_is_held_to_the_rules_of_the_one_that_it_is_exported_to(
    model: str, layout: dict[str, Any], to: str, rule: str
) -> None:
    spec = spec_of(model, "ascend-800t-a2", {}, {"target": UNRESTRICTED})
    plan = planner.estimate(spec.model_copy(update={"strategy": Strategy.model_validate(layout)}))
    with pytest.raises(UnsupportedError, match=rule):
        written(given_plans(spec, plan), plan, to)


def test_a_batch_that_does_not_divide_is_not_exported() -> None:
    spec = spec_of("qwen3-0.6b", "nvidia-h100", {"global_batch_size": 250}, {})
    plan = planner.estimate(spec.model_copy(update={"strategy": Strategy(tp=2)}))
    with pytest.raises(UnsupportedError, match="batch_divides"):
        written(given_plans(spec, plan), plan, "megatron")


def test_fine_tuning_with_megatron_reads_conversations_and_makes_no_mask() -> None:
    spec = spec_of("qwen3-0.6b", "nvidia-h100", {"kind": "sft"}, {})
    plan = planner.estimate(spec.model_copy(update={"strategy": Strategy(tp=2)}))
    text = written(given_plans(spec, plan), plan, "megatron")
    for words in (
        "--sft\n",
        "--tokenizer-type SFTTokenizer",
        "--no-create-attention-mask-in-dataloader",
        " pretrain_gpt.py ",
    ):
        assert words in text
    assert "posttrain_gpt.py" not in text
