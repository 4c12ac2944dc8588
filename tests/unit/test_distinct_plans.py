"""The K best plans: one of each outer strategy, or as many of one as are fast."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import plan, reestimate
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet


def document(**search: Any) -> dict[str, Any]:
    """Llama2-7B on one node of eight, tensor parallel 2."""
    return {
        "model": "llama2-7b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "search": {
            "effort": 0.02,
            "risk": "neutral",
            "top_k": 6,
            "fix": {"tp": 2, "vpp": 1},
            "allow": {"pp": [2, 4]},
            **search,
        },
    }


@cache
def planned(distinct: str) -> PlanSet:
    return plan(read_spec_document(document(distinct=distinct)))


def outer(found: Plan) -> tuple[object, ...]:
    s = found.strategy
    return (s.tp, s.pp, s.vpp, s.cp, s.ep, s.etp, s.micro_batch_size, s.schedule, s.moe_dispatcher)


def test_plans_are_of_different_strategies_unless_asked() -> None:
    plans = planned("strategies").plans
    assert len({outer(each) for each in plans}) == len(plans) > 1
    usual, asked = (read_spec_document(document(**each)).search for each in ({}, {"distinct": "strategies"}))
    assert usual == asked


def test_placements_of_one_strategy_count_when_asked() -> None:
    apart, together = planned("strategies"), planned("placements")
    assert len(together.plans) == 6
    assert len({each.plan_id for each in together.plans}) == 6
    assert len({outer(each) for each in together.plans}) < 6
    assert len({each.strategy.model_dump_json() for each in together.plans}) == 6
    steps = [each.step_time_s for each in together.plans]
    assert steps == sorted(steps)
    assert steps[0] == apart.plans[0].step_time_s
    assert all(b <= a.step_time_s for a, b in zip(apart.plans, steps, strict=False)), "more to choose from"
    for each in together.plans:
        assert each.fits
        assert each.gap == pytest.approx(1.0 - (together.optimality.bound or 0.0) / each.step_time_s)


def test_a_placement_is_estimated_as_it_was_found() -> None:
    found = planned("placements")
    spec = Spec.model_validate(found.search.spec)
    assert found.plans
    for each in found.plans:
        again = reestimate(spec, each)
        assert again.step_time_s == pytest.approx(each.step_time_s, rel=1e-9)
        assert again.peak_memory_gib == pytest.approx(each.peak_memory_gib, rel=1e-9)


def test_other_words_are_refused() -> None:
    with pytest.raises(SpecError) as refused:
        read_spec_document(document(distinct="layouts"))
    assert [e.path for e in refused.value.errors] == ["/search/distinct"]


def test_a_single_strategy_has_as_many_placements_as_are_asked_for() -> None:
    fixed = {"tp": 2, "pp": 4, "vpp": 1, "cp": 1, "micro_batch_size": 1, "schedule": "1f1b"}
    found = plan(read_spec_document({**document(distinct="placements", fix=fixed, allow={}, top_k=4)}))
    assert len({each.plan_id for each in found.plans}) == 4
    assert len({outer(each) for each in found.plans}) == 1
