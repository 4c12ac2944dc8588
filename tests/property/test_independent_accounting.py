"""Estimates and sweep agree with an accounting that walks over ranks, layers, operators and micro batches one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.evaluation.estimate import Estimate, Layout, estimate_layout, template_layers
from autodeploy.evaluation.stage_classes import step_classes
from autodeploy.evaluation.unit_costs import unit_costs
from tests.support.accounting.cases import Case, candidates_of, cases, degrees, memory_choices, placements
from tests.support.accounting.ranks import Degrees
from tests.support.accounting.step import Step, account

EXACT = 1e-9


def estimated(case: Case, d: Degrees, per_chunk: list[list[int]], applied: dict[str, list[int]]) -> Estimate:
    """The planner's estimate."""
    candidates = candidates_of([d])
    classes = step_classes(unit_costs(case.context, candidates), candidates, case.context)
    layers = template_layers(tuple(c.count for c in classes.layers), d.pp, d.vpp, np.asarray(per_chunk))
    counts = {name: np.asarray(values) for name, values in applied.items()}
    return estimate_layout(classes, candidates, case.context, 0, Layout(layers, counts))


def assert_equal(found: Estimate, expected: Step) -> None:
    """Time, every part, memory of every kind and stage."""
    assert found.step_time_s == pytest.approx(expected.step_s, rel=EXACT)
    assert found.makespan_s == pytest.approx(expected.makespan_s, rel=EXACT)
    np.testing.assert_allclose(found.forward_s, expected.forward_s, rtol=EXACT)
    np.testing.assert_allclose(found.backward_s, expected.backward_s, rtol=EXACT)
    pacing = found.pacing_stage
    assert expected.busy_s[pacing] == pytest.approx(max(expected.busy_s), rel=EXACT)
    small = EXACT * expected.step_s
    slowest = max(sum(tail.values()) for tail in expected.tails)
    totals = [
        {name: expected.parts[pacing].get(name, 0.0) + tail.get(name, 0.0) for name in found.breakdown}
        for tail in expected.tails
        if sum(tail.values()) >= slowest * (1 - EXACT)
    ]
    assert any(found.breakdown == pytest.approx(parts, rel=EXACT, abs=small) for parts in totals), (
        found.breakdown,
        totals,
    )
    for stage, kinds in enumerate(expected.memory):
        mine = {kind: float(values[stage]) for kind, values in found.memory.items()}
        assert mine == pytest.approx(kinds, rel=EXACT)
    np.testing.assert_allclose(found.allocator_bytes, expected.allocator, rtol=EXACT)
    np.testing.assert_allclose(found.first_step_bytes, expected.first_step, rtol=EXACT)
    np.testing.assert_allclose(found.card_bytes, [sum(kinds.values()) for kinds in expected.memory], rtol=EXACT)


@settings(max_examples=120)
@given(st.data(), cases())
def test_an_estimate_equals_the_accounting(data: st.DataObject, case: Case) -> None:
    d = data.draw(degrees(case))
    per_chunk = data.draw(placements(case.run.num_hidden_layers, d.pp, d.vpp))
    applied = data.draw(memory_choices(per_chunk))
    assert_equal(estimated(case, d, per_chunk, applied), account(case.run, d, case.machine, per_chunk, applied))
