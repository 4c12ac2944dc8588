"""Strategies of a search at what the sweep proves of them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.search.planner import plan, strategy_bounds
from autodeploy.search.questions import sampled
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet

SPEC: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {
        "effort": "fast",
        "risk": "neutral",
        "top_k": 3,
        "fix": {"tp": 2, "micro_batch_size": 1},
        "allow": {"pp": [2, 4]},
    },
}


@cache
def planned() -> PlanSet:
    return plan(read_spec_document(SPEC))


def test_no_plan_takes_less_than_the_bounds_of_its_strategy() -> None:
    spec = read_spec_document(SPEC)
    found = strategy_bounds(spec, 1000)
    of_axes = {tuple(each.axes[name] for name in ("tp", "pp", "vpp", "schedule")): each for each in found.sample}
    assert len(of_axes) == len(found.sample) == found.total
    for each in planned().plans:
        s = each.strategy
        bound = of_axes[s.tp, s.pp, s.vpp, s.schedule]
        assert bound.step_time_s <= each.step_time_s
        assert bound.peak_memory_gib <= each.peak_memory_gib
        assert bound.mfu >= each.mfu
        assert bound.mfu * bound.step_time_s == pytest.approx(each.mfu * each.step_time_s)
        assert (bound.dp, bound.num_npus) == (s.dp, each.num_npus_used)


def test_a_sample_has_the_lowest_bounds_and_reaches_across_the_others() -> None:
    spec = read_spec_document(SPEC)
    every, few = strategy_bounds(spec, 1000), strategy_bounds(spec, 5)
    assert few.total == every.total > 5
    assert len(few.sample) == 5
    assert few.sample[:2] == every.sample[:2]
    assert few == strategy_bounds(spec, 5)
    places = sampled(np.arange(1000.0)[::-1], 100)
    assert places[:40].tolist() == list(range(999, 959, -1))
    assert len(set(places.tolist())) == 100
    assert places[-1] < 20


def test_every_solved_strategy_is_told_with_its_time_and_memory() -> None:
    spec = read_spec_document(SPEC)
    found = planned()
    solved, fastest = found.solved, found.fastest
    assert fastest is not None
    numbers = (solved.dp, solved.num_npus, solved.step_time_s, solved.peak_memory_gib, solved.mfu)
    assert len({len(column) for column in (*solved.axes.values(), *numbers)}) == 1
    assert len(found.pareto) < len(solved.step_time_s) <= found.counts.solved
    assert list(solved.step_time_s) == sorted(solved.step_time_s)
    assert solved.step_time_s[0] == pytest.approx(fastest.step_time_s, rel=1e-5)
    assert max(solved.peak_memory_gib) <= found.plans[0].memory_limit_gib * (1 + 1e-9)
    names = ("tp", "pp", "vpp", "schedule")
    keys = list(zip(*(solved.axes[name] for name in names), strict=True))
    assert len(set(keys)) == len(keys)
    bounds = {tuple(each.axes[name] for name in names): each for each in strategy_bounds(spec, 1000).sample}
    drawn = zip(keys, solved.dp, solved.step_time_s, solved.peak_memory_gib, solved.mfu, strict=True)
    for key, dp, step_time_s, peak_memory_gib, mfu in drawn:
        assert dp == bounds[key].dp
        assert step_time_s >= bounds[key].step_time_s * (1 - 1e-5)
        assert peak_memory_gib >= bounds[key].peak_memory_gib * (1 - 1e-5)
        assert mfu * step_time_s == pytest.approx(fastest.step_time_s * _mfu_of_fastest(found), rel=1e-5)


def _mfu_of_fastest(found: PlanSet) -> float:
    """MFU goes with the inverse of the step time: all plans here have one batch and one number of cards."""
    assert found.fastest is not None
    first = found.plans[0]
    return first.mfu * first.step_time_s / found.fastest.step_time_s


def test_the_search_for_memory_tells_what_it_solved_too() -> None:
    found = plan(read_spec_document({**SPEC, "search": {**SPEC["search"], "objective": "peak_memory"}}))
    gib = found.solved.peak_memory_gib
    assert list(gib) == sorted(gib)
    assert gib[0] == pytest.approx(found.plans[0].peak_memory_gib, rel=1e-5)
