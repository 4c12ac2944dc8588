"""Columns of the master problem hold every plan that is faster than the incumbent, and little else."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.costs.stages.inner_problem import InnerProblem, chunk_times
from autodeploy.search.placement.master import columns
from autodeploy.search.placement.stage_choices import StageChoices
from cost_models.schedule import makespan_s, operation_order
from tests.property.test_solver_brute_force import everything, random_problem

BLOCKS, CASES = 4, 120


def plans_of(problem: InnerProblem) -> tuple[np.ndarray, np.ndarray]:
    """Layouts that fit [n, pp, vpp, classes], and their makespans [n]."""
    layout, applied = everything(problem)
    if not len(layout):
        return layout, np.zeros(0)
    times = chunk_times(problem, layout, applied)
    order = operation_order(problem.schedule, problem.pp, problem.vpp, problem.micro_batches)
    return layout, makespan_s(order, times.forward_s, times.backward_s, times.hidden_pair_s, problem.p2p_s)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_faster_plan_is_made_of_columns(block: int) -> None:
    compared, kept, known = 0, 0, 0
    for seed in range(5000 + block * CASES // BLOCKS, 5000 + (block + 1) * CASES // BLOCKS):
        problem = random_problem(seed)
        layout, makespan = plans_of(problem)
        if not len(layout):
            continue
        upper_s = float(makespan.min()) * 1.05
        found = columns(problem, StageChoices(problem), upper_s, 10_000)
        assert found is not None, seed
        chunks = [{column.chunks for column in mine} for mine in found]
        for plan in layout[makespan < upper_s]:
            compared += 1
            for stage, held in enumerate(plan.tolist()):
                assert tuple(tuple(mix) for mix in held) in chunks[stage], seed
        kept += sum(map(len, chunks))
        known += sum(len({plan[stage].tobytes() for plan in layout}) for stage in range(problem.pp))
    assert compared > 20
    assert kept < known, "what no faster plan can hold is left out"
