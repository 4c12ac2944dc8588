"""What a plan still loses, which plans nothing beats, and a batch that may move."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.search.planner import plan, reestimate
from autodeploy.search.ranking.diversity import pareto_set
from autodeploy.search.ranking.infeasible import round_batches
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.spec import Spec
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet


@cache
def planned(batch: int = 127, tolerance_pct: float = 0.0) -> PlanSet:
    """127 sequences divide by nothing."""
    size: Any = {"value": batch, "tolerance_pct": tolerance_pct}
    return plan(
        read_spec_document(
            {
                "model": "llama2-7b",
                "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
                "training": {"seq_length": 4096, "global_batch_size": size},
                "search": {"effort": 0.02, "top_k": 3, "risk": "neutral", "fix": {"cp": 1, "vpp": 1}},
            }
        )
    )


def test_losses_and_the_ideal_time_are_the_step() -> None:
    for found in planned().plans:
        ideal_s = found.mfu * found.step_time_s
        assert ideal_s + sum(loss.seconds for loss in found.headroom) == pytest.approx(found.step_time_s, rel=1e-9)
        seconds = [loss.seconds for loss in found.headroom]
        assert seconds == sorted(seconds, reverse=True)
        assert found.headroom[-1].mfu_up_to_here == pytest.approx(1.0)
        first = found.headroom[0]
        assert first.mfu_points == pytest.approx(100.0 * (ideal_s / (found.step_time_s - first.seconds) - found.mfu))
        assert first.mfu_up_to_here == pytest.approx(found.mfu + first.mfu_points / 100.0)
        assert any(loss.mfu_up_to_here > 0.5 for loss in found.headroom), "what it takes to more than half of peak"


def test_nothing_beats_a_plan_of_the_pareto_set() -> None:
    def made(number: int, rate: float, gib: float, cards: int) -> Any:
        return factories.plan(
            number, plan_id=f"p_{number}", tokens_per_s=rate, peak_memory_gib=gib, num_npus_used=cards
        )

    plans = [made(1, 100.0, 60.0, 8), made(2, 90.0, 50.0, 8), made(3, 80.0, 55.0, 8), made(4, 70.0, 70.0, 4)]
    assert [point.plan_id for point in pareto_set(plans, plans[:1])] == ["p_1", "p_2", "p_4"]
    assert [point.rank for point in pareto_set(plans, plans[:1])] == [1, None, None]


def test_a_search_tells_its_pareto_set() -> None:
    found = planned()
    assert found.pareto[0].plan_id == found.plans[0].plan_id
    rates = [point.tokens_per_s for point in found.pareto]
    gib = [point.peak_memory_gib for point in found.pareto]
    assert rates == sorted(rates, reverse=True)
    assert gib == sorted(gib, reverse=True), "what is slower takes less memory, on the same cards"


def test_a_batch_that_may_move_moves_to_one_that_divides() -> None:
    fixed, free = planned().plans[0], planned(tolerance_pct=2.0)
    best = free.plans[0]
    batch = best.micro_batches * best.strategy.micro_batch_size * (best.strategy.dp or 1)
    assert batch == 128
    assert best.tokens_per_s > 1.03 * fixed.tokens_per_s
    assert "a global batch of 128 instead of 127" in free.warnings[0]
    again = reestimate(Spec.model_validate(free.search.spec), best)
    assert again.step_time_s == pytest.approx(best.step_time_s, rel=1e-12)


def test_a_batch_that_divides_stays() -> None:
    best = planned(128, 2.0).plans[0]
    assert best.micro_batches * best.strategy.micro_batch_size * (best.strategy.dp or 1) == 128


def test_batches_stay_within_the_tolerance() -> None:
    assert round_batches(1000, 48, 0.0) == []
    for batch in round_batches(1000, 48, 0.03):
        assert 970 <= batch <= 1030
    assert 1024 in round_batches(1000, 48, 0.03)
