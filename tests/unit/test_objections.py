"""What an experienced engineer would object to, and the page that shows it beside the plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.specs.planset import Bet, Evidence, ExpertImbalance, Fastest, MeasuredMfu, Plan, Valley
from autodeploy.specs.strategy import Recompute
from docs.objections import RULES, objections
from docs.recommendations import CASES, Case, page
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec


def plan_of(*, strategy: dict[str, Any] | None = None, parts: dict[str, float] | None = None, **changes: Any) -> Plan:
    """A plan of TP2 PP8 EP32 with 240 micro batches that nothing is to be said against."""
    found = factories.plan(1, spec=factories.spec())
    plain = {"tp": 2, "pp": 8, "vpp": 1, "ep": 32, "etp": 1, "swap_optimizer": False, "layers_per_stage": None}
    breakdown = found.breakdown.model_copy(
        update={"pipeline_bubble_s": 0.02 * found.step_time_s, "exposed_swap_s": 0.0, **(parts or {})}
    )
    usual = {"mfu": 0.30, "peak_memory_gib": 50.0, "memory_limit_gib": 61.0, "micro_batches": 240}
    return found.model_copy(
        update={
            "strategy": found.strategy.model_copy(update=plain | (strategy or {})),
            "breakdown": breakdown,
            **usual,
            **changes,
        }
    )


def on(profile: str) -> Spec:
    spec = factories.spec()
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"profile": profile})})


A3, A2 = on("cloudmatrix-384"), on("ascend-800t-a2")


def test_nothing_is_said_against_a_plan_that_breaks_no_rule() -> None:
    assert objections(plan_of(), A3) == ()


@pytest.mark.parametrize(
    ("changes", "spec", "said"),
    [
        ({"strategy": {"tp": 16, "ep": 8}}, A2, "TP16 crosses nodes of 8 ranks"),
        ({}, A2, "EP32 spreads a layer's experts over 4 nodes of 8 ranks"),
        (
            {"strategy": {"ep": 64, "etp": 16}},
            A3,
            "EP64 x ETP16 spreads a layer's experts over 2 supernodes of 768 ranks",
        ),
        ({"strategy": {"ep": 256}}, A3, "1 expert a rank: a hot expert is a hot rank"),
        ({"strategy": {"ep": 4}}, A3, "64 experts on every rank"),
        ({"strategy": {"pp": 32}, "micro_batches": 960}, A3, "32 stages of 1.9 layers on average"),
        ({"micro_batches": 24}, A3, "24 micro batches for 8 stages: 2.0 % of the step is bubble"),
        ({"parts": {"pipeline_bubble_s": 20.0}}, A3, "of the step is bubble"),
        ({"strategy": {"recompute": Recompute(granularity="full")}}, A3, "Every layer runs forward twice"),
        ({"strategy": {"swap_optimizer": True}}, A3, "Optimizer states live on the host"),
        ({"peak_memory_gib": 60.0}, A3, "60.0 of 61.0 GiB"),
        ({"p_fits": 0.62}, A3, "which fits with 62 %"),
        (
            {"best_measured_mfu": MeasuredMfu(highest=0.25, runs=1, record="DeepSeek-V3 on 256 910C")},
            A3,
            "30.0 % MFU: the only published run of the class reached 25.0 %",
        ),
        (
            {"evidence": (Evidence(axis="ep", value=32, runs=3), Evidence(axis="feature", value="coc", runs=0))},
            A3,
            "No published run on these chips has coc.",
        ),
    ],
)
def test_each_rule_objects_where_it_is_broken(changes: dict[str, Any], spec: Spec, said: str) -> None:
    (text,) = objections(plan_of(**changes), spec)
    assert said in text


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": {"recompute": Recompute(granularity="full", per_stage=tuple([{"full": 2}] * 8))}},
        {"strategy": {"ep": 64}},
        {"best_measured_mfu": MeasuredMfu(highest=0.31, runs=4, record="a run")},
        {"peak_memory_gib": 57.9, "p_fits": 0.93},
        {"evidence": (Evidence(axis="ep", value=32, runs=3),)},
    ],
)
def test_a_rule_that_is_kept_says_nothing(changes: dict[str, Any]) -> None:
    assert objections(plan_of(**changes), A3) == ()


def test_objections_come_in_the_order_of_the_rules() -> None:
    worst = plan_of(
        strategy={"tp": 16, "pp": 32, "ep": 256, "recompute": Recompute(granularity="full"), "swap_optimizer": True},
        micro_batches=24,
        peak_memory_gib=60.9,
        best_measured_mfu=MeasuredMfu(highest=0.2, runs=2, record="a run"),
        evidence=(Evidence(axis="ep", value=256, runs=0),),
        experts=ExpertImbalance(
            ep=256, time_factor=1.7, memory_factor=2.0, memory_factor_of_stage=1.8, router="auxiliary_loss"
        ),
    )
    said = objections(worst, A2)
    assert len(said) == len(RULES)
    assert "(taken to have 1.70 times the mean)" in said[2]


def test_the_page_shows_what_answers_say_and_needs_none_of_it() -> None:
    spec = factories.spec()
    bare = factories.plan_set(2, spec=spec).model_copy(update={"reference": None})
    ranked = bare.plans[1]
    full = bare.model_copy(
        update={
            "fastest": Fastest(
                plan_id=ranked.plan_id,
                rank=2,
                step_time_s=0.9 * bare.plans[0].step_time_s,
                p_fits=0.55,
                strategy=ranked.strategy,
                bets=(Bet(kind="unproven", name="ep", text="no run has EP 48", cost_pct=4.2),),
            ),
            "valley": Valley(layouts=12, within=0.03, shared={"tp": 2}),
        }
    )
    case = Case("DeepSeek-V3", factories.spec_document())
    plain, rich = page([(case, spec, bare)]), page([(case, spec, full)])
    assert "fastest by prediction" not in plain.partition("## ")[2]
    for text in ("| fastest by prediction |", "no run has EP 48", "4.2 %"):
        assert text in rich
    for text in (plain, rich):
        assert all(f"- {rule}\n" in text for rule in RULES)
        assert "What an experienced engineer would object to" in text


def test_every_case_is_a_valid_spec() -> None:
    assert len({case.title for case in CASES}) == len(CASES) == 8
    for case in CASES:
        assert case.read().cluster.num_npus
