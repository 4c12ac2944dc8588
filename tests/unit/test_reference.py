"""What stands beside the plans: the public recipe, the user's own script or a plain start, and where it is from."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.messages import in_language
from autodeploy.search.planner import launch_rules, plan, prepare
from autodeploy.search.ranking.adapted_strategy import moved
from autodeploy.search.ranking.reference_plans import (
    PROVEN,
    PUBLIC_RECIPE,
    YOUR_SCRIPT,
    baseline_1f1b,
    proven_start,
    reference_plan,
)
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Recompute, Strategy

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

A2, A3 = "ascend-800t-a2", "cloudmatrix-384"


def spec_of(
    model: str, profile: str, num_npus: int, batch: int, length: int = 4096, strategy: Any = None, **search: Any
) -> Spec:
    document = {
        "model": model,
        "cluster": {"profile": profile, "num_npus": num_npus},
        "training": {"seq_length": length, "global_batch_size": batch},
        "search": search,
    }
    return read_spec_document(document if strategy is None else document | {"strategy": strategy})


def reference_of(spec: Spec) -> Plan:
    prepared = prepare(spec)
    found = reference_plan(spec, prepared.profile, prepared.context, prepared.identity)
    assert found is not None
    assert found.fits
    launched = spec.model_copy(update={"strategy": found.strategy})
    assert launch_rules(launched, features=frozenset(found.strategy.features)).names == frozenset()
    return found


@cache
def of_deepseek(num_npus: int, batch: int) -> Plan:
    return reference_of(spec_of("deepseek-v3", A3, num_npus, batch))


def degrees(found: Plan) -> tuple[int, int, int, str]:
    s = found.strategy
    return s.tp, s.pp, s.ep, s.schedule


def test_the_public_recipe_stands_as_it_is_on_its_own_cards() -> None:
    found = of_deepseek(256, 3840)
    assert found.label == PUBLIC_RECIPE
    assert degrees(found) == (2, 8, 32, "dualpipev")
    assert found.explanation.endswith("pretrain_deepseek3_671b_4k_A3_ptd.sh")
    assert "MindSpeed-LLM for 256 cards, a batch of 3,840 and 4,096 tokens" in found.explanation


def test_more_cards_are_more_replicas_of_it() -> None:
    found = of_deepseek(384, 7680)
    assert degrees(found) == (2, 8, 32, "dualpipev")
    assert found.strategy.dp == 48
    assert "changed here" not in found.explanation


def test_where_it_does_not_divide_the_pipeline_gives_way_and_is_told() -> None:
    found = of_deepseek(192, 3840)
    assert degrees(found) == (2, 6, 32, "dualpipev")
    assert found.explanation.endswith("; changed here: pp: 8 -> 6")


def test_a_target_that_has_not_its_schedule_gets_the_plain_one() -> None:
    found = reference_of(spec_of("deepseek-v3", A3, 384, 7680, target="mindformers"))
    assert found.label == PUBLIC_RECIPE
    assert found.strategy.schedule == "interleaved"
    assert "schedule: dualpipev -> interleaved" in found.explanation


def test_it_need_not_obey_what_the_spec_fixes_or_asks_of_its_plans() -> None:
    found = reference_of(spec_of("deepseek-v3", A3, 256, 3840, fix={"tp": 4}, features={"mutual_routing": "off"}))
    assert degrees(found) == (2, 8, 32, "dualpipev")


def test_a_recipe_for_other_sequences_is_none() -> None:
    # The framework's own script for Mixtral 8x7B is for 32K tokens.
    assert reference_of(spec_of("mixtral-8x7b", A2, 64, 512)).strategy.cp == 1
    assert reference_of(spec_of("mixtral-8x7b", A2, 64, 32, 32_768)).strategy.cp == 4


def test_without_a_recipe_the_users_own_strategy_stands_there() -> None:
    own = {"tp": 4, "pp": 1, "micro_batch_size": 2, "recompute": {"granularity": "full"}}
    found = reference_of(spec_of("llama2-7b", A2, 8, 64, strategy=own))
    assert found.label == YOUR_SCRIPT
    assert (found.strategy.tp, found.strategy.micro_batch_size) == (4, 2)
    assert reference_of(spec_of("qwen3-8b", A2, 8, 64, strategy=own)).label == PUBLIC_RECIPE


def test_a_strategy_that_does_not_fit_is_changed_until_it_does() -> None:
    found = reference_of(spec_of("llama2-7b", A2, 8, 64, strategy={"tp": 1, "pp": 1, "micro_batch_size": 2}))
    assert found.label == YOUR_SCRIPT
    assert "; changed here: " in found.explanation


@pytest.mark.parametrize(
    ("model", "profile", "cards", "batch", "target"),
    [
        ("llama2-7b", A2, 8, 64, "mindspeed-llm"),
        ("glm-4.5", A3, 256, 1024, "mindspeed-llm"),
        ("qwen3-30b-a3b", "nvidia-h800", 64, 512, "megatron"),
        ("deepseek-v2-lite", "nvidia-a100-80g", 32, 256, "megatron"),
        ("kimi-k2", A2, 1024, 4096, "any"),
        ("qwen3-235b-a22b", A2, 512, 2048, "any"),
    ],
)
def test_else_it_is_the_best_of_what_runs_have_shown(
    model: str, profile: str, cards: int, batch: int, target: str
) -> None:
    spec = spec_of(model, profile, cards, batch, target=target)
    prepared = prepare(spec)
    found = proven_start(spec, prepared.profile, prepared.context, prepared.identity)
    assert found is not None
    assert found.fits
    assert found.p_fits is not None
    assert found.p_fits >= 0.9
    assert all(each.runs for each in found.evidence)
    assert not found.strategy.swap
    assert not found.strategy.swap_per_stage
    assert not found.strategy.swap_optimizer
    assert "virtual_optimizer" not in found.strategy.features
    launched = spec.model_copy(update={"strategy": found.strategy})
    assert launch_rules(launched, features=frozenset(found.strategy.features)).names == frozenset()
    even = baseline_1f1b(spec, prepared.profile, prepared.context, prepared.identity)
    assert even is None or found.step_time_s <= even.step_time_s * (1.0 + 1e-9)


def test_it_is_told_by_its_name_with_what_it_rests_on() -> None:
    found = reference_of(spec_of("llama2-7b", A2, 8, 64))
    assert found.label == PROVEN
    assert "without swaps" in found.explanation


def test_where_no_run_shows_a_way_it_is_1f1b_at_the_smallest_tp_x_pp_that_fits() -> None:
    spec = spec_of("llama2-7b", A2, 8, 64)
    prepared = prepare(spec)

    def even(limit_gib: float) -> Plan:
        asked = spec_of("llama2-7b", A2, 8, 64, memory_limit_gib=limit_gib)
        context = prepare(asked).context
        found = baseline_1f1b(asked, prepared.profile, context, prepared.identity)
        assert found is not None
        return found

    s = even(61.0).strategy
    assert (s.schedule, s.micro_batch_size, s.cp, s.vpp, s.recompute.granularity) == ("1f1b", 1, 1, 1, "full")
    assert s.tp * s.pp == 1
    tight = even(0.7 * even(61.0).peak_memory_gib)
    assert tight.strategy.tp * tight.strategy.pp > 1


def test_a_search_has_it_beside_its_plans() -> None:
    spec = spec_of("llama2-7b", A2, 8, 64, effort="fast", risk="neutral", allow={"cp": [1], "vpp": [1]})
    found = plan(spec)
    assert found.reference is not None
    assert found.reference == reference_of(spec)
    assert found.plans[0].step_time_s <= found.reference.step_time_s * 1.02  # the search's gap


@pytest.mark.parametrize("cards", [256, 192])
def test_where_it_is_from_is_said_in_chinese(cards: int) -> None:
    said = in_language(of_deepseek(cards, 3840).explanation, "zh")
    assert said.startswith("256 卡、批大小 3,840、序列 4,096 token 的配方（MindSpeed-LLM）")


def test_one_knob_turns_before_two() -> None:
    spec = spec_of("llama2-70b", A2, 32, 256)
    prepared = prepare(spec)
    own = Strategy(tp=8, pp=1, recompute=Recompute(granularity="none"))
    found = moved(own, prepared.context.features, prepared.context, spec, prepared.profile, prepared.identity)
    assert found is not None
    assert len(found.changes) == 1
    assert found.plan.fits
    # Nothing of 24 stages divides a batch that is prime.
    prime = spec_of("llama2-70b", A2, 32, 251)
    other = prepare(prime)
    odd = moved(own, other.context.features, other.context, prime, other.profile, other.identity)
    assert odd is None or odd.plan.strategy.dp == 1
