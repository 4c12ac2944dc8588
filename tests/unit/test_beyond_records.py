"""Widths of kinds of runs that no fit sees, from the mean error of each source."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autodeploy.calibration.shipped.unseen_classes import sides, student_80
from autodeploy.costs.prediction_spread import coverage, spread_of


@pytest.mark.parametrize(("freedom", "value"), [(1, 3.078), (2, 1.886), (5, 1.476), (10, 1.372), (30, 1.310)])
def test_few_sources_widen_by_students_t(freedom: int, value: float) -> None:
    """Quantiles of 90 %, Abramowitz and Stegun, table 26.10."""
    assert student_80(freedom) == pytest.approx(value, abs=5e-4)


def test_longer_and_shorter_times_have_widths_of_their_own_with_the_spread_of_all_as_one_source_more() -> None:
    down, up = sides([-0.1, 0.6, 0.4, 0.5])
    every = (0.01 + 0.36 + 0.16 + 0.25) / 4
    assert down == pytest.approx(student_80(2) * math.sqrt((0.01 + every) / 2))
    assert up == pytest.approx(student_80(4) * math.sqrt((0.36 + 0.16 + 0.25 + every) / 4))
    assert sides([0.2, 0.3])[0] == pytest.approx(student_80(1) * math.sqrt(0.065))


def test_intervals_by_source_hold_four_of_five_new_sources() -> None:
    rng = np.random.default_rng(7)
    inside = []
    for _ in range(400):
        *known, new = rng.normal(0.0, 0.4, 8)
        down, up = sides(known)
        inside.append(-down <= new <= up)
    assert 0.75 < np.mean(inside) < 0.88


def test_shipped_intervals_hold_most_runs_of_sources_left_out() -> None:
    inside, ratios = [], []
    for row in coverage()["others"]:
        low, high = spread_of(row["family"], row).interval(1.0)
        inside.append(low <= math.exp(-row["left_out"]) <= high)
        ratios.append(high / low)
    assert np.mean(inside) >= 0.7
    assert np.median(ratios) <= 6.0
