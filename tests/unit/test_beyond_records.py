"""Widths of kinds of runs that no fit sees, from the mean error of each source."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autodeploy.calibration.shipped.tables import sides, student_80
from autodeploy.costs.prediction_spread import coverage


@pytest.mark.parametrize(("freedom", "value"), [(2, 1.886), (5, 1.476), (10, 1.372), (30, 1.310)])
def test_few_sources_widen_by_students_t(freedom: int, value: float) -> None:
    """Quantiles of 90 %, Abramowitz and Stegun, table 26.10."""
    assert student_80(freedom) == pytest.approx(value, rel=0.02)


def test_longer_and_shorter_times_have_widths_of_their_own() -> None:
    down, up = sides([-0.1, 0.6, 0.4, 0.5])
    assert down == pytest.approx(student_80(1) * 0.1)
    assert up == pytest.approx(student_80(3) * math.sqrt((0.36 + 0.16 + 0.25) / 3))
    assert sides([0.2, 0.3])[0] == sides([0.2, 0.3])[1]


def test_intervals_by_source_hold_four_of_five_new_sources() -> None:
    rng = np.random.default_rng(7)
    inside = []
    for _ in range(400):
        *known, new = rng.normal(0.0, 0.4, 8)
        down, up = sides(known)
        inside.append(-down <= new <= up)
    assert 0.75 < np.mean(inside) < 0.88


def test_shipped_widths_hold_most_runs_of_sources_left_out() -> None:
    table = coverage()
    residuals = [-row["left_out"] for row in table["others"]]
    low, high = -table["beyond"]["shorter"], table["beyond"]["longer"]
    assert np.mean([low <= each <= high for each in residuals]) >= 0.7
    assert math.exp(high - low) <= 6.0
