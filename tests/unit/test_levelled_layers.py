"""Where the layers are of a strategy that does not say it: even as frameworks spread them, or as its features do."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.search.planner import estimate, prepare
from autodeploy.search.ranking.reference_plans import reference_plan
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan

BASIC = ("flash_attention", "fused_rmsnorm", "fused_swiglu")
BALANCED = (*BASIC, "virtual_pipeline_balance")
CASES = [
    ("deepseek-v3", "cloudmatrix-384", 256, {"tp": 2, "pp": 8, "vpp": 2, "ep": 32, "etp": 1}),
    ("pangu-ultra-moe-718b", "ascend-800t-a2", 1024, {"tp": 8, "pp": 16, "vpp": 2, "ep": 16, "etp": 1}),
    ("llama3-8b", "ascend-800t-a2", 16, {"tp": 1, "pp": 8, "vpp": 2}),
    ("qwen3-0.6b", "ascend-800t-a2", 8, {"tp": 1, "pp": 4}),
    ("qwen3-8b", "cloudmatrix-384", 8, {"tp": 1, "pp": 4, "vpp": 3}),
    ("glm-4.5", "cloudmatrix-384", 128, {"tp": 2, "pp": 8, "vpp": 2, "ep": 16, "etp": 1}),
]


def estimated(model: str, profile: str, cards: int, strategy: dict[str, Any], features: tuple[str, ...]) -> Plan:
    vpp = strategy.get("vpp", 1)
    document = {
        "model": model,
        "cluster": {"profile": profile, "num_npus": cards},
        "training": {"seq_length": 4096, "global_batch_size": 32 * cards},
        "search": {"target": "any"},
        "strategy": {
            "schedule": "interleaved" if vpp > 1 else "1f1b",
            "recompute": {"granularity": "full"},
            "features": features,
            **strategy,
        },
    }
    return estimate(read_spec_document(document))


@pytest.mark.parametrize(("model", "profile", "cards", "strategy"), CASES)
def test_a_strategy_that_balances_is_estimated_as_it_would_be_placed(
    model: str, profile: str, cards: int, strategy: dict[str, Any]
) -> None:
    even = estimated(model, profile, cards, strategy, BASIC)
    level = estimated(model, profile, cards, strategy, BALANCED)
    assert level.step_time_s < even.step_time_s
    assert level.strategy.layers_per_stage is not None
    assert even.strategy.layers_per_stage is None
    assert any("spread evenly" in said for said in even.assumptions)
    assert not any("spread evenly" in said for said in level.assumptions)
    # Whatever states the same layers says the same.
    stated = {**strategy, "layers_per_stage": level.strategy.layers_per_stage}
    again = estimated(model, profile, cards, stated, BALANCED)
    assert again.step_time_s == pytest.approx(level.step_time_s, rel=1e-12)
    assert again.peak_memory_gib == pytest.approx(level.peak_memory_gib, rel=1e-12)


@cache
def recipe_of_6k_cards() -> Plan:
    """Pangu Ultra MoE's, as its publisher ran it."""
    document = {
        "model": "pangu-ultra-moe-718b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 6144, "device": "910B3"},
        "training": {"seq_length": 8192, "global_batch_size": 9216},
        "search": {"target": "any"},
    }
    spec = read_spec_document(document)
    prepared = prepare(spec)
    found = reference_plan(spec, prepared.profile, prepared.context, prepared.identity)
    assert found is not None
    return found


def test_the_recipe_of_a_run_that_balanced_its_stages_is_balanced() -> None:
    strategy = recipe_of_6k_cards().strategy
    assert strategy.layers_per_stage is not None
    assert (strategy.tp, strategy.pp, strategy.vpp, strategy.ep) == (8, 16, 2, 32)


def test_the_recipe_of_a_run_that_balanced_its_stages_takes_what_was_published() -> None:
    """30.0 % MFU with attention counted in full, 1.46 million tokens a second (arXiv 2505.04519)."""
    assert recipe_of_6k_cards().tokens_per_s == pytest.approx(1.46e6, rel=0.05)
