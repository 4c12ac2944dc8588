"""More memory never makes the best plan worse: of one candidate exactly, of a whole search by no more than its gap."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autodeploy.search.placement.solve import solve
from autodeploy.search.planner import plan
from autodeploy.specs.reading import read_spec_document
from tests.property.test_solver_brute_force import random_problem

SPACE = {"tp": [4], "pp": [1, 2], "cp": [1], "micro_batch_size": [1]}


@pytest.mark.parametrize("block", range(3))
def test_a_larger_limit_never_takes_a_plan_away(block: int) -> None:
    """With room for everything at the end: recomputation goes, and step times fall or stay, up to the solver's gap."""
    found = []
    for seed in range(10 * block, 10 * (block + 1)):
        problem = random_problem(seed)
        limits = np.geomspace(0.5, 3.0, 5) * problem.limit_bytes
        answers = [solve(replace(problem, limit_bytes=float(limit))) for limit in limits]
        for tight, wide in itertools.pairwise(answers):
            assert wide.step_s <= tight.step_s * (1 + 1e-9)
            assert wide.bound_s <= wide.step_s * (1 + 1e-9)
        found.append((answers[0].step_s, answers[-1].step_s))
    assert any(first > last * (1 + 1e-6) for first, last in found), "no problem was short of memory"


@pytest.mark.parametrize("target", ["any", "mindspeed-llm"])
def test_a_search_with_more_memory_is_no_worse_than_its_gap(target: str) -> None:
    base: dict[str, Any] = {
        "model": "llama2-7b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
        "training": {"seq_length": 8192, "global_batch_size": 64},
    }
    steps = []
    for limit in (18.0, 26.0, 61.0):
        search = {"target": target, "effort": "fast", "top_k": 1, "risk": "neutral", "allow": SPACE}
        search["memory_limit_gib"] = limit
        found = plan(read_spec_document(base | {"search": search}))
        steps.append(found.plans[0].step_time_s)
        assert found.plans[0].peak_memory_gib <= limit
        gap = found.optimality.gap or 0.0
        assert all(steps[-1] <= step * (1 + gap) for step in steps[:-1])
    assert steps[-1] < steps[0], "the tightest limit was not tight"
