"""What is recommended: plans that fit, hold in other worlds, and differ; and what the fastest one bets on."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.search.planner import plan
from autodeploy.search.ranking.expected_cost import FLOOR
from autodeploy.search.ranking.regret import WORTH_TIE
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.search import SearchSpec

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet


@cache
def planned(risk: str, memory_limit_gib: float | None = None, top_k: int = 5) -> PlanSet:
    """Qwen3-30B-A3B on two nodes of eight, where its best plans are."""
    search: dict[str, Any] = {"effort": "fast", "risk": risk, "top_k": top_k, "memory_limit_gib": memory_limit_gib}
    search["allow"] = {"tp": [1], "pp": [1, 2], "vpp": [1, 2], "cp": [1], "ep": [8, 16], "micro_batch_size": [1]}
    return plan(
        read_spec_document(
            {
                "model": "qwen3-30b-a3b",
                "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
                "training": {"seq_length": 4096, "global_batch_size": 256},
                "search": search,
            }
        )
    )


def test_the_recommended_plan_is_above_the_floor() -> None:
    found = planned("averse")
    assert found.risk is not None
    assert found.risk.risk == "averse"
    assert found.risk.least_p_fits == FLOOR
    best = found.plans[0]
    assert best.p_fits is not None
    assert best.p_fits >= FLOOR
    assert best.regret_p80_pct is not None


def test_rank_is_by_expected_cost_and_plans_below_the_floor_come_last() -> None:
    found = planned("averse")
    above = [each for each in found.plans if each.regret_p80_pct is not None]
    assert list(found.plans[: len(above)]) == above, "plans that are likely to fit come first"
    shown_next = 2 if found.risk is not None and found.risk.instead is not None else 0
    costs = [each.expected_step_time_s or 0.0 for each in above]
    assert costs[0] <= min(costs) * (1.0 + WORTH_TIE)
    assert all(b >= a * (1.0 - WORTH_TIE) for a, b in pairwise(costs[shown_next:])), "but for ties"


def test_the_fastest_plan_is_that_of_the_neutral_ranking() -> None:
    averse, neutral = planned("averse"), planned("neutral")
    assert averse.fastest is not None
    assert neutral.fastest is not None
    assert averse.fastest.strategy == neutral.plans[0].strategy
    assert averse.fastest.step_time_s == neutral.plans[0].step_time_s
    assert averse.optimality == neutral.optimality
    assert neutral.risk is not None
    assert neutral.risk.risk == "neutral"


def test_a_plan_that_may_not_fit_counts_with_its_remedy() -> None:
    found = planned("averse", 30.0, 1)
    assert found.fastest is not None
    assert found.fastest.p_fits < 0.9
    bets = {bet.kind: bet for bet in found.fastest.bets}
    assert bets["memory"].cost_pct is not None
    assert bets["memory"].cost_pct > 0.0
    for each in found.plans:
        if each.p_fits is not None and each.p_fits < 0.9:
            assert each.expected_step_time_s is not None
            assert each.expected_step_time_s >= each.step_time_s


def test_with_less_memory_nothing_recommended_is_tighter() -> None:
    for found in (planned("averse", 30.0, 1), planned("averse")):
        best = found.plans[0]
        assert best.peak_memory_gib <= best.memory_limit_gib
        assert best.p_fits is not None
        assert best.p_fits >= FLOOR


def in_outline(chosen: Plan) -> tuple[object, ...]:
    s = chosen.strategy
    return s.tp, s.cp, s.pp, s.ep, s.etp, s.micro_batch_size, s.schedule in {"dualpipev", "adaptive_pipe"}


def test_plans_differ_in_more_than_chunks_but_for_what_is_launched_instead() -> None:
    found = planned("averse")
    assert found.risk is not None
    first, *others = found.plans
    shown_next = [each for each in others if each.plan_id == found.risk.instead]
    assert shown_next == others[: len(shown_next)], "what is launched where the first does not start is second"
    rest = others[len(shown_next) :]
    assert len({in_outline(each) for each in (first, *rest)}) == 1 + len(rest)
    assert not {in_outline(each) for each in shown_next} & {in_outline(each) for each in rest}


def test_one_plan_is_asked_for_and_given() -> None:
    found = planned("averse", 30.0, 1)
    assert len(found.plans) == 1
    assert found.plans[0].p_fits is not None
    assert found.plans[0].p_fits >= FLOOR


def test_the_box_is_printed_with_widths_and_their_basis() -> None:
    found = planned("averse").risk
    assert found is not None
    names = [number.name for number in found.box]
    assert len(names) == len(set(names)) > 10
    assert {"experts", "imbalance", "host_sync"} <= set(names)
    assert all(number.low < number.high and number.basis for number in found.box)
    assert max(number.influence for number in found.box) > 0.0


def test_the_same_spec_is_ranked_alike() -> None:
    again = planned.__wrapped__("averse", 30.0, 1)
    assert (again.plans, again.fastest, again.risk) == tuple(
        getattr(planned("averse", 30.0, 1), name) for name in ("plans", "fastest", "risk")
    )


@pytest.mark.parametrize(("robust", "risk"), [("regret", "averse"), ("worst_time", "averse"), ("off", "neutral")])
def test_robust_of_earlier_versions_is_read_as_risk(robust: str, risk: str) -> None:
    assert SearchSpec.model_validate({"robust": robust}).risk == risk
    spec = read_spec_document(
        {
            "model": "llama2-7b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "search": {"robust": robust},
        }
    )
    assert spec.search.risk == risk
    assert any("search.risk" in doubt for doubt in spec.doubts)
