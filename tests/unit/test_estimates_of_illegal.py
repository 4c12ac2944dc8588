"""An illegal strategy is predicted, and the rules that it breaks stand above the prediction."""

from __future__ import annotations

from typing import Any

import pytest

import autodeploy
from autodeploy.reports.plan_report import render_plan
from autodeploy.search import planner
from autodeploy.specs.planset import Plan
from autodeploy.specs.spec import parse_spec

SMALL = {"name": "own", "num_hidden_layers": 12, "hidden_size": 1024, "num_attention_heads": 12, "vocab_size": 32000}
SMALL |= {"num_key_value_heads": 4, "intermediate_size": 2816, "head_dim": 128}
EXPERTS = {"n_routed_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 704}


def spec(
    strategy: dict[str, Any], *, npus: int = 16, batch: int = 32, seq: int = 4096, moe: bool = False, **search: str
) -> dict[str, Any]:
    return {
        "model": SMALL | (EXPERTS if moe else {}),
        "cluster": {"profile": "ascend-800t-a2", "num_npus": npus},
        "training": {"seq_length": seq, "global_batch_size": batch},
        "search": search,
        "strategy": strategy,
    }


ILLEGAL = [
    (spec({"tp": 1, "pp": 1}, batch=24), {"batch_divides"}),
    (spec({"tp": 1, "pp": 4, "micro_batch_size": 3}, batch=32), {"batch_divides"}),
    (spec({"tp": 8}, batch=32), {"heads_divide_by_tp", "kv_heads_divide_by_tp"}),
    (spec({"tp": 2, "cp": 8, "cp_algo": "ulysses"}, batch=32), {"heads_divide_for_ulysses"}),
    (spec({"tp": 4, "pp": 2, "sequence_parallel": True}, seq=4098, batch=32), {"sequence_divides_by_tp"}),
    (spec({"tp": 4, "ep": 4, "cp": 4, "cp_algo": "ring"}, seq=4100, moe=True), {"sequence_divides_by_cp_ring"}),
    (spec({"pp": 2, "vpp": 12, "schedule": "interleaved"}, batch=64), {"stages_have_layers"}),
]


@pytest.mark.parametrize(("document", "names"), ILLEGAL)
def test_an_illegal_strategy_is_predicted_with_its_broken_rules(document: dict[str, Any], names: set[str]) -> None:
    plan = autodeploy.estimate(document)
    assert names <= {rule.rule for rule in plan.broken_rules}
    assert plan.step_time_s > 0


@pytest.mark.parametrize(("document", "names"), ILLEGAL)
def test_an_estimate_names_the_rules_on_which_a_check_fails(document: dict[str, Any], names: set[str]) -> None:
    whole = parse_spec(document)
    assert planner.estimate(whole).broken_rules == planner.launch_rules(whole).broken


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(("document", "names"), ILLEGAL[:3])
def test_broken_rules_stand_above_the_step_time(document: dict[str, Any], names: set[str], lang: Any) -> None:
    whole = parse_spec(document)
    plan = planner.estimate(whole)
    report = "".join(render_plan(whole, plan, lang).split())
    assert all(report.index(f"{name}") < report.index(f"{plan.step_time_s:.3g}"[:4]) for name in names)


@pytest.mark.parametrize(("document", "names"), ILLEGAL[:3])
def test_a_document_keeps_its_broken_rules(document: dict[str, Any], names: set[str]) -> None:
    plan = autodeploy.estimate(document)
    assert Plan.model_validate_json(plan.model_dump_json()).broken_rules == plan.broken_rules


def test_a_legal_strategy_breaks_nothing_and_says_nothing() -> None:
    plan = autodeploy.estimate(spec({"tp": 4, "pp": 2}, batch=32))
    assert plan.broken_rules == ()
    assert "broken_rules" not in plan.model_dump()
