"""Strategies of a search at what the sweep proves of them."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.importers.spec_file import read_spec_document
from autodeploy.planner import plan, strategy_bounds
from autodeploy.planner.bounds import sampled

SPEC = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {"effort": "fast", "top_k": 3, "fix": {"tp": 2, "micro_batch_size": 1}, "allow": {"pp": [2, 4]}},
}


def test_no_plan_takes_less_than_the_bounds_of_its_strategy() -> None:
    spec = read_spec_document(SPEC)
    found = strategy_bounds(spec, 1000)
    of_axes = {tuple(each.axes[name] for name in ("tp", "pp", "vpp", "schedule")): each for each in found.sample}
    assert len(of_axes) == len(found.sample) == found.total
    for each in plan(spec).plans:
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
