"""Decisions: what not knowing a number costs the recommended plan, and what tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from autodeploy.calibration.uncertain_numbers import SETTLED_BY, Uncertain, cause_of
from autodeploy.search.ranking.selection import decisions
from autodeploy.search.ranking.sensitivities import Responses
from autodeploy.search.ranking.uncertainty_set import UncertaintySet
from autodeploy.specs.planset import BoxNumber
from hardware_profiles import load_profile

pytestmark = pytest.mark.unit


@dataclass
class Plan:
    """A considered plan, of which its row and axes count."""

    row: int
    axes: dict[str, object]
    regret: float | None = 0.0
    extra: dict[str, object] = field(default_factory=dict)


def advised(nominal: list[float], low: list[list[float]], high: list[list[float]]) -> SimpleNamespace:
    """Advice of plans whose first is recommended; log step times, and what each number adds at its ends."""
    numbers = tuple(Uncertain(f"n{i}", f"n{i}", (f"n{i}",), 0.1, "prior") for i in range(len(low[0])))
    box = UncertaintySet(numbers, np.eye(len(numbers)))
    answers = Responses(box, np.array(nominal), np.array(low), np.array(high))
    plans = [Plan(row, {"tp": 2**row, "pp": 4, "swap_optimizer": row == 1, "dp": None}) for row in range(len(nominal))]
    return SimpleNamespace(weighed=plans, responses=answers, weights=np.ones(len(nominal)))


def test_a_number_that_turns_the_order_is_priced_at_its_worse_end():
    (turned, kept) = decisions(advised([0.0, 0.02], [[-0.05, 0.1], [0.0, 0.1]], [[0.08, -0.1], [0.0, -0.1]]))
    assert turned is not None
    assert turned.regret == pytest.approx(np.expm1(0.08 - 0.02))
    assert turned.instead == {"tp": 2, "swap_optimizer": "on"}
    BoxNumber(name="n", meaning="n", low=0.9, high=1.1, basis="prior", instead=turned.instead)
    assert kept is None


def test_what_the_recommended_plan_costs_as_predicted_is_no_numbers():
    (decision,) = decisions(advised([0.03, 0.0], [[0.0], [0.0]], [[0.04], [0.0]]))
    assert decision is not None
    assert decision.regret == pytest.approx(np.expm1(0.07) - np.expm1(0.03))


def test_plans_that_may_not_fit_are_no_alternatives():
    advice = advised([0.0, 0.02], [[0.0], [0.0]], [[0.08], [0.0]])
    advice.weighed[1].regret = None
    assert decisions(advice) == [None]


def test_every_cause_is_told_by_some_measurement():
    profile = load_profile("ascend-800t-a2")
    for names, cause, by in (
        (("gemm_peak_fraction",), "kernels", "probe"),
        (("link_hccs",), "exchange_inside", "probe"),
        (("link_scale_out",), "exchange_across", "probe_across"),
        (("device_scatter",), "exchange_across", "probe_across"),
        (("host_issue",), "host", "probe"),
        (("imbalance_excess",), "imbalance", "expert_load_file"),
        (("release_current",), "software", "launch"),
        (("fragmentation",), "memory", "launch"),
    ):
        assert cause_of(names, profile) == cause
        assert SETTLED_BY[cause] == by
