"""Every example is planned with the real search: one of them as a person would, the others with less effort."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autodeploy.costs.steps.one_strategy import candidate_of
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from autodeploy.space.rules import broken_rules
from autodeploy.specs.planset import PARTS, PlanSet
from autodeploy.specs.reading import read_spec_document, read_spec_file
from autodeploy.specs.strategy import Strategy

pytestmark = pytest.mark.acceptance

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AS_WRITTEN = ("deepseek_v3_cloudmatrix_384",)
FEASIBLE = (*AS_WRITTEN, "llama2_70b_32", "qwen3_235b_128", "broken_node_47", "uneven_batch")
FLOOR = 0.75  # of `search.risk`
# How long a search looks is no matter of the spec.
QUICK: dict[str, Any] = {"effort": 0.02, "top_k": 2}
NARROW = {"cp": 1, "vpp": 1, "schedule": "1f1b"}
WITHOUT_CHUNKS = ("broken_node_47", "llama2_70b_32", "qwen3_235b_128")


@functools.cache
def planned(name: str) -> PlanSet:
    document = read_spec_file(EXAMPLES / f"{name}.yaml").model_dump(mode="json", exclude_none=True)
    if name not in AS_WRITTEN:
        document["search"] |= QUICK
    if name in WITHOUT_CHUNKS:
        document["search"]["fix"] |= {"cp": 1, "vpp": 1}
    if "rl" in document["training"]:
        document["search"]["fix"] |= NARROW | {"micro_batch_size": 1, "rl.placement": "colocated"}
    return planner.plan(read_spec_document(document))


@pytest.mark.parametrize("name", FEASIBLE)
def test_example_has_ranked_plans_that_fit(name: str) -> None:
    result = planned(name)
    assert result.status in {"optimal", "feasible"}
    assert result.reproducible
    assert result.fastest is not None
    assert all(plan.step_time_s >= result.fastest.step_time_s for plan in result.plans)
    best = result.plans[0]
    assert best.p_fits is not None
    assert best.p_fits >= FLOOR
    for plan in result.plans:
        assert plan.fits
        assert plan.peak_memory_gib <= plan.memory_limit_gib
        parts = [getattr(plan.breakdown, part) for part in PARTS]
        assert min(parts) >= 0.0
        assert sum(parts) == pytest.approx(plan.step_time_s, rel=1e-9)
        assert plan.uncertainty.low_s < plan.step_time_s < plan.uncertainty.high_s
        assert 0.0 < plan.mfu < 1.0
    assert result.optimality.bound is not None
    assert result.optimality.bound <= result.fastest.step_time_s
    counts = result.counts
    assert counts.enumerated == sum(counts.rejected.values()) + counts.too_big + counts.pruned + counts.solved


def test_example_of_post_training_has_plans_of_phases_that_fit() -> None:
    result = planned("pangu_ultra_moe_rl_cloudmatrix_384")
    assert result.status in {"optimal", "feasible"}
    assert result.reproducible
    assert result.optimality.bound is not None
    assert result.fastest is not None
    assert result.optimality.bound <= result.fastest.step_time_s
    counts = result.counts
    assert counts.enumerated == sum(counts.rejected.values()) + counts.too_big + counts.pruned + counts.solved
    assert (result.plans[0].p_fits or 0.0) >= 0.9
    for plan in result.plans:
        assert plan.fits
        assert plan.rl is not None
        assert export(result, plan, "verl").text
        assert sum(phase.exposed_s for phase in plan.rl.phases) == pytest.approx(plan.step_time_s, rel=1e-9)
        assert sum(getattr(plan.breakdown, part) for part in PARTS) == pytest.approx(plan.step_time_s, rel=1e-9)
        assert plan.tokens_per_s == plan.rl.tokens_per_s.mean


@pytest.mark.parametrize("name", FEASIBLE)
def test_best_plan_beats_the_usual_starting_point(name: str) -> None:
    result = planned(name)
    assert result.reference is not None
    assert result.plans[0].step_time_s < result.reference.step_time_s


def test_estimate_of_the_best_strategy_is_the_plan() -> None:
    spec = read_spec_file(EXAMPLES / "llama2_70b_32.yaml")
    best = planned("llama2_70b_32").plans[0]
    again = planner.estimate(spec.model_copy(update={"strategy": best.strategy}))
    assert again.step_time_s == pytest.approx(best.step_time_s, rel=1e-12)
    assert again.peak_memory_gib == pytest.approx(best.peak_memory_gib, rel=1e-12)


def test_broken_node_leaves_cards_idle_when_that_pays() -> None:
    best = planned("broken_node_47").plans[0]
    assert best.num_npus_used <= 47 * 8


def test_batch_that_divides_badly_is_warned_about() -> None:
    (warning,) = planned("uneven_batch").warnings
    assert "960" in warning
    assert "batch" in warning


def test_typos_are_all_reported_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        read_spec_file(EXAMPLES / "bad_typos.yaml")
    paths = {error.path for error in caught.value.errors}
    assert {"/model/hiden_size", "/training/seq_lenght", "/cluster/profile", "/search/features/adaptive_pip"} <= paths
    assert all(error.hint for error in caught.value.errors)


def test_trained_strategy_of_pangu_ultra_moe_is_legal_without_a_framework() -> None:
    """TP8 PP16 VPP2 EP32, micro batch 2 (arXiv 2505.04519) under target any."""
    prepared = planner.prepare(read_spec_file(EXAMPLES / "pangu_ultra_moe_718b_6144.yaml"))
    context = prepared.context
    trained = Strategy(
        tp=8, pp=16, vpp=2, ep=32, etp=1, micro_batch_size=2, schedule="adaptive_pipe", moe_dispatcher="hierarchical"
    )
    candidate = candidate_of(
        trained, world=context.world, global_batch=context.global_batch, moe=True, vendor=context.machine.vendor
    )
    assert broken_rules(candidate, context.facts, "any") == [[]]
    assert int(np.asarray(candidate.micro_batches)[0]) == 96


def test_pangu_ultra_moe_is_planned() -> None:
    document = read_spec_file(EXAMPLES / "pangu_ultra_moe_718b_6144.yaml").model_dump(mode="json", exclude_none=True)
    document["search"] |= QUICK | {"risk": "neutral", "top_k": 5, "fix": {"cp": 1}}
    document["search"]["allow"] = {"tp": [8], "pp": [8, 16], "vpp": [1, 2]}
    result = planner.plan(read_spec_document(document), alone=True)
    assert len(result.plans) == 5
    assert all(plan.fits for plan in result.plans)
    axes = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "schedule", "moe_dispatcher")
    assert len({tuple(getattr(plan.strategy, axis) for axis in axes) for plan in result.plans}) == 5
