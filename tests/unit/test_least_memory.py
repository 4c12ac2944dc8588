"""The plan that takes least memory, and the proof that none takes much less."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.messages import in_language
from autodeploy.reports.plan_report import render_plan_set
from autodeploy.search.planner import Progress, plan, reestimate
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet


@cache
def planned(objective: str = "peak_memory", limit_gib: float | None = None, **fix: Any) -> PlanSet:
    """Llama2-7B on one node of eight, in micro batches of one."""
    fix = {"cp": 1, "vpp": 1, "micro_batch_size": 1} | fix
    search: dict[str, Any] = {"effort": "fast", "objective": objective, "fix": fix, "top_k": 3, "risk": "neutral"}
    document: dict[str, Any] = {
        "model": "llama2-7b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "search": search | ({"memory_limit_gib": limit_gib} if limit_gib else {}),
    }
    return plan(read_spec_document(document))


def test_the_least_memory_is_found_and_proven() -> None:
    found = planned()
    gib = [each.highest_gib for each in found.plans]
    assert gib == sorted(gib)
    assert found.optimality.objective == "peak_memory"
    assert found.optimality.bound is not None
    assert found.optimality.bound <= gib[0]
    for each in found.plans:
        assert each.gap == pytest.approx(1.0 - found.optimality.bound / each.highest_gib)
    assert found.plans[0].gap is not None
    assert found.plans[0].gap < 0.02
    fastest = planned("step_time")
    assert gib[0] < 0.5 * min(each.highest_gib for each in fastest.plans)
    assert found.plans[0].step_time_s > fastest.plans[0].step_time_s


def test_nothing_fits_below_the_bound_and_the_plan_fits_above_it() -> None:
    """A search for time under a limit is the judge: what it says of feasibility is tested by brute force elsewhere."""
    found = planned(tp=2, pp=4, vpp=1, micro_batch_size=1)
    bound, least = found.optimality.bound, found.plans[0].highest_gib
    assert bound is not None
    below = planned("step_time", bound * 0.999, tp=2, pp=4, vpp=1, micro_batch_size=1)
    assert below.status == "infeasible"
    above = planned("step_time", least * 1.001, tp=2, pp=4, vpp=1, micro_batch_size=1)
    assert above.plans
    assert above.plans[0].step_time_s <= found.plans[0].step_time_s * (1.0 + 1e-9)


def test_the_same_spec_gives_the_same_plans() -> None:
    again = plan(Spec.model_validate(planned().search.spec))
    first = planned()
    assert again.plans == first.plans
    assert again.optimality == first.optimality
    counts = first.counts
    assert counts.enumerated == sum(counts.rejected.values()) + counts.too_big + counts.pruned + counts.solved


def test_progress_has_no_bound_in_seconds() -> None:
    events: list[Progress] = []
    plan(Spec.model_validate(planned(tp=2, pp=4, vpp=1, micro_batch_size=1).search.spec), progress=events.append)
    assert events[-1].gap is not None
    assert all(event.bound_s is None for event in events)
    assert all(event.gap is None for event in events[:-1])


def test_a_plan_of_least_memory_is_estimated_as_it_was_found() -> None:
    spec = Spec.model_validate(planned().search.spec)
    assert planned().plans
    for each in planned().plans:
        assert reestimate(spec, each).highest_gib == pytest.approx(each.highest_gib, rel=1e-9)


def test_its_words_speak_of_memory_in_both_languages() -> None:
    found = planned()
    assert "GiB of peak memory" in found.plans[0].explanation
    for each in found.plans:
        assert in_language(each.explanation, "zh") != each.explanation
    alone = planned(tp=2, pp=4, vpp=1, micro_batch_size=1).plans[0]
    assert alone.explanation.startswith("its memory goes to ")
    assert "显存" in in_language(alone.explanation, "zh")
    assert "peak_memory" not in render_plan_set(found)
