"""Mode fast: all cores, an answer that need not repeat, and a bound that holds all the same."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.reports.plan_report import render_plan_set
from autodeploy.search.choices.effort import FAST, cores
from autodeploy.search.planner import budget_of, plan
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec


def spec_of(mode: str | None, effort: str = "default", **fix: Any) -> Spec:
    search: dict[str, Any] = {"effort": effort, "top_k": 2, "gap": 0.0, "fix": fix, "risk": "neutral"}
    search |= {"mode": mode} if mode else {}
    return read_spec_document(
        {
            "model": "llama2-13b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
            "training": {"seq_length": 4096, "global_batch_size": 32},
            "search": search,
        }
    )


@cache
def planned(mode: str, **fix: Any) -> PlanSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AUTODEPLOY_CORES")
        return plan(spec_of(mode, "fast", **fix))


CASES: list[dict[str, Any]] = [
    {"tp": 4, "pp": 4, "vpp": 1},
    {"tp": 2, "pp": 4, "vpp": 5, "micro_batch_size": 2},
]


def test_cores_are_those_of_the_process_or_fewer_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    here = len(os.sched_getaffinity(0))
    for told, meant in (("1", 1), ("0", 1), (str(here + 5), here), ("many", here), ("", here)):
        monkeypatch.setenv("AUTODEPLOY_CORES", told)
        assert cores() == meant


def test_every_core_works_in_mode_fast_and_one_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTODEPLOY_CORES")
    assert cores() == len(os.sched_getaffinity(0))
    assert budget_of(spec_of("fast")).effort.workers == cores()
    assert budget_of(spec_of("fast", "deep")).effort.workers == cores()
    assert budget_of(spec_of(None)).effort.workers == FAST.workers == 1


@pytest.mark.parametrize("fix", CASES)
def test_neither_mode_finds_a_plan_below_the_other_ones_bound(fix: dict[str, Any]) -> None:
    """The stated gap is what the fast plan can be worse by, whatever its workers did."""
    fast, sure = planned("fast", **fix), planned("reproducible", **fix)
    for one, other in ((fast, sure), (sure, fast)):
        assert one.optimality.bound is not None
        assert one.optimality.bound <= other.plans[0].step_time_s * (1.0 + 1e-9)
        assert one.optimality.gap is not None
        assert one.plans[0].step_time_s * (1.0 - one.optimality.gap) <= other.plans[0].step_time_s * (1.0 + 1e-9)


def test_the_result_says_that_it_need_not_repeat() -> None:
    fast, sure = planned("fast", **CASES[0]), planned("reproducible", **CASES[0])
    assert not fast.reproducible
    assert sure.reproducible
    said = f"search.mode: fast used {len(os.sched_getaffinity(0))} cores"
    assert any(said in warning for warning in fast.warnings)
    assert not any(said in warning for warning in sure.warnings)
    assert said in render_plan_set(fast).replace("\n  ", " ")
    assert "fast 模式" in render_plan_set(fast, "zh")
    assert "time limit" not in render_plan_set(fast)


def test_the_default_mode_repeats() -> None:
    spec = spec_of(None, "fast", **CASES[0])
    assert spec.search.mode == "reproducible"
    first, again = planned("reproducible", **CASES[0]), plan(spec)
    assert again.plans == first.plans
    assert again.optimality == first.optimality
