"""What is said of plans: explanations, ties, what divisibility costs, why nothing fits."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autodeploy.calibration.overlays import covariance_of
from autodeploy.costs.prediction_spread import coverage
from autodeploy.reports.wording import part_name
from autodeploy.search.planner import plan
from autodeploy.search.ranking.explanation import degrees, explanation
from autodeploy.search.ranking.uncertainty import Z_ONE_IN_FIVE, ratio_log_sigma, tied
from autodeploy.specs.planset import PARTS, Breakdown, Plan, PlanSet
from autodeploy.specs.reading import read_spec_document, read_spec_file
from hardware_profiles import load_profile
from hardware_profiles.covariance import Covariance, FittedFactor
from tests import factories

FEW: dict[str, Any] = {"vpp": 1, "cp": 1, "micro_batch_size": 1}
EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def planned(batch: int = 64, num_npus: int = 8, limit_gib: float | None = None, tp: int | None = None) -> PlanSet:
    """Llama2-7B on a few cards."""
    search: dict[str, Any] = {
        "effort": 0.02,
        "top_k": 3,
        "memory_limit_gib": limit_gib,
        "fix": {} if tp is None else {"tp": tp},
    }
    search |= {"risk": "neutral", "allow": {"cp": [1], "vpp": [1, 2]}} if limit_gib is None else {}
    return plan(
        read_spec_document(
            {
                "model": "llama2-7b",
                "cluster": {"profile": "ascend-800t-a2", "num_npus": num_npus},
                "training": {"seq_length": 4096, "global_batch_size": batch},
                "search": search,
            }
        )
    )


def plan_with(rank: int = 1, **parts: float) -> Plan:
    """A plan whose step is the sum of these parts."""
    return factories.plan(rank, step_time_s=sum(parts.values()), breakdown=Breakdown(**parts))


# -- explanation -------------------------------------------------------------------------------------------------


def test_every_part_of_a_step_has_a_name() -> None:
    assert len({part_name("en", part) for part in PARTS}) == len(PARTS)


def test_a_single_plan_says_where_its_time_goes() -> None:
    alone = plan_with(compute_s=70.0, pipeline_bubble_s=20.0, exposed_ep_s=8.0, optimizer_s=2.0)
    expected = "its time goes to compute (70%), bubble (20%), EP (8%)"
    assert explanation(alone, None) == expected


def test_an_explanation_names_what_is_saved_and_what_is_paid() -> None:
    best = plan_with(compute_s=80.0, pipeline_bubble_s=20.0)
    other = plan_with(2, compute_s=90.0, pipeline_bubble_s=5.0, exposed_tp_s=15.0)
    text = explanation(best, other)
    assert text.startswith(f"{degrees(other)} takes 10.0 % longer, adding ")
    assert "15.00 s of TP, 10.00 s of compute" in text
    assert text.endswith(", but saving 15.00 s of bubble")


def test_differences_too_small_to_matter_are_not_told() -> None:
    best, other = plan_with(compute_s=100.0), plan_with(2, compute_s=100.1)
    assert explanation(best, other) == f"{degrees(other)} takes 0.1 % longer"


def test_degrees_leave_out_what_is_one() -> None:
    dense = factories.plan(strategy=factories.strategy(tp=4, pp=2, vpp=1, cp=1, ep=1, dp=12, layers_per_stage=None))
    assert degrees(dense) == "TP4 PP2 DP12"
    assert degrees(factories.plan(1)) == "TP2 PP16 VPP2 EP32 DP24"


def test_plans_of_a_search_are_explained_against_each_other() -> None:
    best, *others = planned().plans
    assert degrees(others[0]) in best.explanation
    assert all(degrees(best) in other.explanation for other in others)


# -- ties and intervals --------------------------------------------------------------------------------------------


NOTHING_FITTED = Covariance(source="no factor", factors=(), log_covariance=())


def test_plans_are_tied_where_their_order_is_wrong_one_time_in_five() -> None:
    resolution = Z_ONE_IN_FIVE * float(coverage()["pair_log_sigma"])
    assert resolution > 0.0
    first = factories.plan(1)
    for share, together in ((0.5, True), (0.99, True), (1.01, False), (3.0, False)):
        second = factories.plan(2, step_time_s=first.step_time_s * math.exp(share * resolution))
        assert tied(first, second, NOTHING_FITTED) is together
        assert tied(second, first, NOTHING_FITTED) is together


def with_sensitivity(rank: int, **slopes: float) -> Plan:
    """A plan whose step time follows the factors so."""
    plain = factories.plan(rank)
    return plain.model_copy(update={"uncertainty": plain.uncertainty.model_copy(update={"sensitivity": slopes})})


def test_what_factors_do_to_both_plans_cancels_in_their_ratio() -> None:
    covariance = Covariance(
        source="two factors",
        factors=(FittedFactor(name="gemm", multiplies=("g",)), FittedFactor(name="roce", multiplies=("r",))),
        log_covariance=((0.01,), (0.003, 0.04)),
    )
    first, same = with_sensitivity(1, gemm=-0.7, roce=-0.2), with_sensitivity(2, gemm=-0.7, roce=-0.2)
    other = with_sensitivity(2, gemm=-0.6, roce=-0.4)
    pair = float(coverage()["pair_log_sigma"])
    assert ratio_log_sigma(first, first, covariance) == 0.0
    assert ratio_log_sigma(first, same, covariance) == pytest.approx(pair)
    expected = pair**2 + 0.1**2 * 0.01 - 2 * 0.1 * 0.2 * 0.003 + 0.2**2 * 0.04
    assert ratio_log_sigma(first, other, covariance) == pytest.approx(math.sqrt(expected))
    assert ratio_log_sigma(other, first, covariance) == ratio_log_sigma(first, other, covariance)


def test_a_tie_names_the_first_plan_it_is_tied_with() -> None:
    ranked = planned().plans
    covariance = covariance_of(load_profile("ascend-800t-a2"))
    assert ranked[0].tie_with is None
    for chosen in ranked[1:]:
        ties = [other.rank for other in ranked[: chosen.rank - 1] if tied(other, chosen, covariance)]
        assert chosen.tie_with == (ties[0] if ties else None)


def test_a_plan_says_what_the_fitted_numbers_leave_open() -> None:
    covariance = covariance_of(load_profile("ascend-800t-a2"))
    for chosen in (*planned().plans, planned().reference):
        assert chosen is not None
        sensitivity = chosen.uncertainty.sensitivity
        assert list(sensitivity) == [factor.name for factor in covariance.factors]
        assert -1.0 < sensitivity["gemm"] < 0.0 < sensitivity["operator"]
        assert sensitivity["experts_2025"] == sensitivity["software_2024"] == sensitivity["nodes_2024"] == 0.0
        variance = covariance.variance_of(np.array(list(sensitivity.values())))
        assert chosen.uncertainty.parameter_log_sigma == pytest.approx(math.sqrt(variance), rel=1e-4)


def test_one_error_scales_both_ends_of_an_interval() -> None:
    for chosen in planned().plans:
        interval = chosen.uncertainty
        assert chosen.step_time_s / interval.low_s == pytest.approx(interval.high_s / chosen.step_time_s)
        assert interval.nearest_record


# -- divisibility ----------------------------------------------------------------------------------------------------


def test_a_batch_that_divides_badly_is_warned_about() -> None:
    # 127 is prime: on eight cards data parallelism is 1 and every micro batch a single sequence.
    (warning,) = planned(batch=127).warnings
    assert warning.startswith("the batch divides badly among the cards: a global batch of 128 instead of 127")
    claimed = float(warning.rpartition("up to ")[2].partition("%")[0]) / 100
    assert claimed > 0.03
    prime, round_one = planned(batch=127).plans[0], planned(batch=128).plans[0]
    gained = round_one.tokens_per_s_per_npu / prime.tokens_per_s_per_npu - 1
    assert gained > 0.03, "the named batch is worth it"
    assert gained == pytest.approx(claimed, abs=0.1)


def test_a_batch_that_divides_well_is_not() -> None:
    assert planned().warnings == planned(batch=128).warnings == ()


# -- infeasible --------------------------------------------------------------------------------------------------------


def _needs_and_has_gib(rule: str) -> tuple[float, float]:
    """The first and the last figure of a rule about memory."""
    figures = re.findall(r"([\d.]+) GiB", rule)
    return float(figures[0]), float(figures[-1])


def test_the_example_that_cannot_fit_names_memory_and_the_nearest_change_that_fits() -> None:
    spec = read_spec_file(EXAMPLES / "cannot_fit.yaml")
    found = plan(spec)
    assert found.status == "infeasible"
    assert found.plans == ()
    assert found.infeasible is not None
    (rule,) = found.infeasible.binding_rules
    assert rule.startswith("memory: ")
    needs, has = _needs_and_has_gib(rule)
    assert needs > has, rule
    change = found.infeasible.nearest[0].change
    assert change.startswith("cluster.num_npus: ")
    npus = int(change.split()[-1])
    assert npus > (spec.cluster.num_npus or 0)
    larger = spec.model_copy(
        update={
            "cluster": spec.cluster.model_copy(update={"num_npus": npus}),
            "search": spec.search.model_copy(
                update={"effort": 0.02, "risk": "neutral", "top_k": 1, "fix": {"cp": 1, "micro_batch_size": 1}}
            ),
        }
    )
    assert plan(larger, alone=True).plans, "the named change really fits"


def test_blocks_and_spares_that_cannot_fit_are_infeasible_and_told_how_many_cards_do() -> None:
    spec = read_spec_document(
        {
            "model": "llama2-70b",
            "cluster": {"profile": "ascend-800t-a2", "blocks": [{"supernode": 0, "nodes": 1}], "spare_npus": 2},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "search": {"effort": 0.02, "top_k": 1, "risk": "neutral", "fix": FEW},
        }
    )
    found = plan(spec)
    assert (found.status, found.plans) == ("infeasible", ())
    assert found.infeasible is not None
    change = found.infeasible.nearest[0].change
    assert change.endswith(", no cluster.blocks")
    npus = int(change.partition(": ")[2].partition(",")[0])
    larger = spec.cluster.model_copy(update={"blocks": None, "num_npus": npus})
    assert plan(spec.model_copy(update={"cluster": larger}), alone=True).plans, "the named change really fits"


def test_a_memory_limit_of_the_users_own_is_a_change_to_lift() -> None:
    found = planned(limit_gib=6.0)
    assert found.status == "infeasible"
    assert found.infeasible is not None
    changes = [near.change for near in found.infeasible.nearest]
    assert "search.memory_limit_gib: null" in changes
    assert all(near.effect.startswith("fits, about ") for near in found.infeasible.nearest)


def test_the_memory_that_is_missing_is_more_than_a_card_has() -> None:
    found = planned(limit_gib=6.0).infeasible
    assert found is not None
    (rule,) = found.binding_rules
    needs, has = _needs_and_has_gib(rule)
    assert needs > has == 6.0, rule


def test_a_pin_that_no_strategy_obeys_is_named() -> None:
    found = planned(tp=3)
    assert found.status == "infeasible"
    assert found.infeasible is not None
    assert [near.change for near in found.infeasible.nearest] == ["remove search.fix.tp"]
    assert found.infeasible.binding_rules, "a rule or the pin that leaves nothing"
