"""What a spec says about its router, and what plans are predicted with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.calibration.record_prediction import runnable
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.costs.inputs.expert_balance import persistent_shares
from autodeploy.costs.post_training.samples import samples_of, update_training
from autodeploy.kit.errors import SpecError
from autodeploy.reports.plan_report import experts_line, plan_block
from autodeploy.search.planner import estimate
from autodeploy.specs.presets import load_preset
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.training import LEARNING_IMBALANCE, TRAINED_IMBALANCE, TrainingSpec, router_of, stated
from cost_models.expert_skew import SkewFamily, family_imbalance
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan

BATCH: dict[str, Any] = {"seq_length": 4096, "global_batch_size": 3840}
RL: dict[str, Any] = {
    "prompts_per_step": 64,
    "responses_per_prompt": 4,
    "prompt_length": {"mean": 90, "max": 512},
    "response_length": {"mean": 509, "max": 1024},
}


def document(model: str = "deepseek-v3", training: dict[str, Any] | None = None, **strategy: Any) -> dict[str, Any]:
    return {
        "model": model,
        "cluster": {"profile": "cloudmatrix-384", "num_npus": 128},
        "training": BATCH | (training or {}),
        "search": {"target": "any"},
        "strategy": {"tp": 4, "pp": 1, "ep": 32, "etp": 1, "features": ["grouped_gemm"]} | strategy,
    }


def predicted(*args: Any, **kwargs: Any) -> Plan:
    return estimate(read_spec_document(document(*args, **kwargs)))


def test_a_number_is_of_32_ranks_and_a_mapping_of_its_own() -> None:
    training = TrainingSpec.model_validate({**BATCH, "routing_imbalance": {"value": 1.5, "at_ep": 64}})
    assert (training.imbalance.value, training.imbalance.at_ep) == (1.5, 64)
    assert (training.imbalance_peak.value, training.imbalance_peak.at_ep) == (2.0, 32)
    assert training.model_dump(mode="json")["routing_imbalance"] == {"value": 1.5, "at_ep": 64}
    assert stated(1.3).at_ep == 32


# Tokens of 16 ranks over 1,000 iterations, Qwen3-30B-A3B on GSM8K, layers 0, 20 and 47: max / mean of as many
# neighbouring ranks together. Source: cann-recipes-train @93819a7, qwen3_235B_32k_longseq_rl_train_optimization.md.
TRAINED = {4: (1.20, 1.16, 1.06), 8: (1.24, 1.41, 1.27), 16: (1.57, 1.84, 1.61)}


@pytest.mark.parametrize("ranks", TRAINED)
def test_trained_weights_route_as_was_measured(ranks: int) -> None:
    factor, peak = TRAINED_IMBALANCE
    assert peak.value == max(TRAINED[peak.at_ep])
    family = SkewFamily(128, factor.value, factor.at_ep, 1e5, 1.0)
    assert float(family_imbalance(family, ranks, 1.0, 1e5)) == pytest.approx(np.mean(TRAINED[ranks]), rel=0.04)


@pytest.mark.parametrize(("kind", "more"), [("sft", {}), ("dpo", {}), ("rl_post_training", {"rl": RL})])
def test_tuning_of_trained_weights_is_less_even_than_pre_training(kind: str, more: dict[str, Any]) -> None:
    batch = {} if "rl" in more else BATCH
    training = TrainingSpec.model_validate({"kind": kind, **batch, **more})
    assert (training.imbalance, training.imbalance_peak) == TRAINED_IMBALANCE
    learning = TrainingSpec.model_validate(BATCH)
    assert (learning.routing_imbalance, learning.routing_imbalance_peak) == LEARNING_IMBALANCE
    given = TrainingSpec.model_validate({"kind": kind, **batch, **more, "routing_imbalance": 1.1})
    assert given.routing_imbalance == 1.1
    assert TrainingSpec.model_validate(training.model_dump(mode="json")) == training


def test_an_update_routes_as_its_spec_says() -> None:
    even, own = (
        TrainingSpec.model_validate({"kind": "rl_post_training", "rl": RL, **more})
        for more in ({"routing_imbalance": 1.0, "routing_imbalance_peak": 1.0}, {})
    )
    assert even.rl is not None
    samples = samples_of(even.rl, Strategy(), 4, None)
    assert update_training(samples, even).routing_imbalance == 1.0
    assert update_training(samples, own).imbalance == update_training(samples).imbalance == TRAINED_IMBALANCE[0]


def test_a_record_of_updates_has_trained_weights_and_one_of_pre_training_even_experts() -> None:
    profile = load_profile("ascend-800t-a2")
    runs = {r.id: runnable(r, profile).training for r in shipped_records() if r.id in {"SAPO_mbs2_ep8", "MSF03"}}
    assert runs["SAPO_mbs2_ep8"].imbalance == TRAINED_IMBALANCE[0]
    assert runs["MSF03"].imbalance.value == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0.5, "0.5 is too small"),
        ("much", "'much' is not a number"),
        ({"value": 9.0, "at_ep": 8}, "9 exceeds at_ep 8"),
        ({"value": 1.2}, "'at_ep' is required"),
    ],
)
def test_a_wrong_factor_is_said_where_it_stands(given: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_spec_document(document(training={"routing_imbalance": given}))
    found = caught.value.errors[0]
    assert found.path.startswith("/training/routing_imbalance")
    assert message in found.message


def test_a_peak_is_above_what_is_sustained_over_the_same_ranks() -> None:
    with pytest.raises(SpecError, match=r"routing_imbalance 2\.5 exceeds"):
        read_spec_document(document(training={"routing_imbalance": 2.5}))
    read_spec_document(document(training={"routing_imbalance": {"value": 2.5, "at_ep": 256}}))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("deepseek-v3", "bias"),
        ("kimi-k2", "bias"),
        ("glm-4.5", "bias"),
        ("qwen3-235b-a22b", "auxiliary_loss"),
        ("pangu-ultra-moe-718b", "auxiliary_loss"),
        ("pangu-pro-moe-72b", "grouped"),
    ],
)
def test_presets_say_what_balances_their_router(model: str, kind: str) -> None:
    training = TrainingSpec.model_validate(BATCH)
    assert router_of(load_preset(model), training) == kind
    assert router_of(load_preset(model), training.model_copy(update={"router": "forced"})) == "forced"


def test_priors_span_both_extremes() -> None:
    for prior in persistent_shares().values():
        assert (prior.low, prior.high) == (0.0, 1.0)
        assert 0.0 < prior.sigma < 0.5
        assert 0.0 < prior.value < 1.0
        assert prior.kind == "assumed"
        assert prior.source


def test_imbalance_grows_with_the_expert_group() -> None:
    plans = [predicted(ep=ep, pp=1) for ep in (1, 8, 32, 64, 256)]
    factors = [plan.experts.time_factor for plan in plans if plan.experts is not None]
    assert factors[0] == 1.0
    assert factors == sorted(factors)
    assert factors[-1] == pytest.approx(1.7, abs=0.05), "bias-balanced, TP4"
    assert factors[1] == pytest.approx(1.13, abs=0.02)
    assert [plan.experts.ep for plan in plans if plan.experts is not None] == [1, 8, 32, 64, 256]


def test_more_sequences_in_the_micro_batch_are_less_uneven() -> None:
    one, four = (predicted(micro_batch_size=size).experts for size in (1, 4))
    assert one is not None
    assert four is not None
    assert 1.0 < four.time_factor < one.time_factor


def test_the_published_group_keeps_its_factors() -> None:
    # TP8 EP32, micro batch 1: what the factors are stated for.
    found = predicted("pangu-ultra-moe-718b", tp=8, pp=4, ep=32).experts
    assert found is not None
    assert (found.time_factor, found.memory_factor) == (pytest.approx(1.3), pytest.approx(2.0))
    # About fifteen layers a stage are not all at their worst on the same rank.
    assert 1.0 < found.memory_factor_of_stage < found.memory_factor


@pytest.mark.parametrize("training", [{"router": "forced"}, {"routing_imbalance": 1.0, "routing_imbalance_peak": 1.0}])
def test_even_routing_is_exactly_even(training: dict[str, Any]) -> None:
    plan = predicted(training=training)
    assert plan.experts is not None
    assert (plan.experts.time_factor, plan.experts.memory_factor, plan.experts.memory_factor_of_stage) == (
        1.0,
        1.0,
        1.0,
    )
    assert plan.breakdown.imbalance_s == 0.0
    assert plan.experts.forced is ("router" in training)


@pytest.mark.parametrize(("ep", "even"), [(2, True), (8, True), (16, False), (64, False)])
def test_grouped_experts_are_even_over_whole_groups(ep: int, even: bool) -> None:
    found = predicted("pangu-pro-moe-72b", ep=ep).experts
    assert found is not None
    assert (found.time_factor == 1.0) is even
    assert found.router == "grouped"


def test_a_report_names_the_factors_and_where_they_hold() -> None:
    spec = read_spec_document(document())
    plan = estimate(spec)
    assert plan.experts is not None
    for lang, words in (("en", "router: bias"), ("zh", "路由器：偏置")):
        line = str(experts_line(plan, lang))
        assert "EP32" in line
        assert f"{plan.experts.time_factor:.2f}" in line
        assert f"{plan.experts.memory_factor:.2f}" in line
        assert words in line
        assert any("EP32" in text for text in plan_block(plan, lang, name="plan").lines)
    forced = str(experts_line(predicted(training={"router": "forced"}), "en"))
    assert forced.startswith("experts: load of the busiest EP32 rank 1.00x the mean")
    assert forced.endswith("router: forced")
