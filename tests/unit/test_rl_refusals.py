"""Specs of post-training that can't be: refused where they stand, or answered by the rule that binds and the nearest
change that fits.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.messages import in_language
from autodeploy.search.planner import plan
from tests.support.pace import at_most
from tests.unit.test_rl_planning import ANY_DEPTH, QUICK, spec_of

SEPARATE: dict[str, Any] = {**QUICK, "rl.placement": "separate"}
LATIN = re.compile(r"^[ -~]*$")


@pytest.mark.parametrize(
    ("changes", "path", "hint"),
    [
        ({"rl": {"response_length": {"mean": 5000, "max": 4096}}}, "/training/rl/response_length/max", "at least 5000"),
        (
            {"rl": {"response_length": {"mean": 9, "histogram": {"8": 1.0}}}},
            "/training/rl/response_length/histogram",
            "",
        ),
        ({"rl": {"updates_per_step": 3}}, "/training/rl/updates_per_step", "a divisor of prompts_per_step"),
        ({"rl": {"critic": "same"}}, "/training/rl/critic", "ppo"),
        ({"rl": {"generation_precision": "fp8"}}, "/training/rl/generation_precision", "one of bf16"),
        ({"fix": {"rl.generation.precision": "fp8"}}, "/search/fix/rl.generation.precision", "one of bf16"),
        ({"fix": {"rl.placement": "colocated", "rl.staleness": 2}}, "/search/fix/rl.staleness", "async"),
        ({"fix": {"rl.placement": "separate", "rl.offload": "optimizer"}}, "/search/fix/rl.offload", "colocated"),
        ({"fix": {"rl.mode": "graph"}}, "/search/fix/rl.mode", "rl.generation.mode"),
        ({"target": "mindspeed-rl", "fix": {"rl.placement": "async"}}, "/search/fix/rl.placement", "verl"),
        ({"fix": {**SEPARATE, "rl.generation_npus": 16}}, "/search/fix/rl.generation_npus", "less than 16"),
        ({"spare_nodes": [1]}, "/search/spare_nodes", "leave it out"),
        ({"target": "mindspeed-llm"}, "/search/target", "verl"),
    ],
)
def test_what_contradicts_itself_is_refused_where_it_stands(changes: Any, path: str, hint: str) -> None:
    with at_most(5.0), pytest.raises(SpecError) as caught:
        plan(spec_of(**changes))
    assert caught.value.errors[0].path == path
    assert hint in caught.value.errors[0].hint


@pytest.mark.parametrize(
    ("changes", "rule", "near"),
    [
        (
            {"rl": {"response_length": {"max": 8_000_000}}, "fix": {**SEPARATE, "pp": 1}},
            "generation_kv",
            "responses of at most",
        ),
        (
            {"cards": 64, "fix": {**SEPARATE, "rl.generation_npus": 24, "rl.generation.tp": 16}},
            "generation_cards",
            "rl.generation_npus: 16 or 32",
        ),
        (
            {"cards": 64, "target": "verl", "fix": {**SEPARATE, "rl.generation_npus": 12}},
            "whole_nodes",
            "rl.generation_npus: 8 or 16",
        ),
        ({"cards": 1, "memory_limit_gib": 20, "fix": {"rl.placement": "colocated"}}, "memory", "cluster.num_npus"),
    ],
)
def test_what_fits_nowhere_names_rule_and_nearest_change(changes: Any, rule: str, near: str) -> None:
    result = plan(spec_of(risk="neutral", **changes))
    assert result.status == "infeasible"
    assert result.infeasible is not None
    assert any(each.startswith(rule) for each in result.infeasible.binding_rules)
    assert any(near in each.change for each in result.infeasible.nearest)
    for said in (*result.infeasible.binding_rules, *(each.change for each in result.infeasible.nearest)):
        assert in_language(said, "zh") != said or LATIN.match(said) is not None


def test_the_nearest_cards_are_a_plan() -> None:
    """What a refusal names is searched, and found."""
    fixed = {**ANY_DEPTH, "rl.placement": "separate", "rl.generation.tp": 8}
    refused = plan(spec_of(cards=32, fix={**fixed, "rl.generation_npus": 12}, target="any", risk="neutral"))
    assert refused.infeasible is not None
    (change,) = [each.change for each in refused.infeasible.nearest if each.change.startswith("rl.generation_npus")]
    for cards in map(int, re.findall(r"\d+", change)):
        named = spec_of(cards=32, fix={**fixed, "rl.generation_npus": cards}, target="any", risk="neutral")
        assert plan(named).plans
