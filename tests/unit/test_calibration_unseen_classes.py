"""Spreads of what no run is like, and the scores of intervals of classes that were left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.calibration.shipped.unseen_classes import (
    FACTORS,
    Unseen,
    left_out_residuals,
    residuals_of,
    shape_factor,
)
from docs.accuracy_page.classes import LeftOut, Range, ranges_of, scores, scores_by_class

pytestmark = pytest.mark.unit


def unseen(source: str, base: float, slope: float) -> Unseen:
    """A run whose residual falls by `slope` for each logarithm of the cost of a new shape."""
    at = base - slope * np.log(FACTORS) if slope else np.array([base])
    return Unseen(cast("Any", None), "updates", source, at, cast("Any", SimpleNamespace()))


def test_a_source_is_predicted_by_what_the_others_say_of_a_new_shape() -> None:
    runs = [unseen("one", 0.4, 0.5), unseen("two", -0.4, 0.5), unseen("three", 0.1, 0.0)]
    place = shape_factor(runs[1:])
    assert place is not None
    assert FACTORS[place] < 1.0
    assert left_out_residuals(runs)[0] == runs[0].at[place]
    assert left_out_residuals(runs)[2] == 0.1
    assert residuals_of(runs[:1], ())[0] == pytest.approx(0.4)


@given(st.floats(-1.0, 1.0), st.floats(-1.0, 0.0), st.floats(0.0, 1.0))
def test_an_interval_scores_its_width_and_ten_times_what_lies_outside(value: float, low: float, high: float) -> None:
    outside = max(0.0, low - value, value - high)
    assert Range(low, high).score(value) == pytest.approx(high - low + 10.0 * outside)
    assert Range(low, high).holds(value) is (outside == 0.0)


def test_one_global_width_has_not_seen_the_class_that_it_is_given_to() -> None:
    def of(name: str, number: int, residual: float) -> LeftOut:
        return LeftOut(name, f"{name}{number}", residual, Range(-0.1, 0.1), Range(-0.05, 0.05))

    found = [*(of("calm", n, 0.01 * n) for n in range(8)), *(of("wild", n, 0.5) for n in range(2))]
    widths = {one.of_class: each.high for one, each in zip(found, ranges_of(found)["global"], strict=True)}
    assert widths["wild"] < 0.08 < 0.5 == pytest.approx(widths["calm"])
    assert scores(found)["ours"].inside == 0.8
    assert scores_by_class(found)["wild"][1]["ours"].score == pytest.approx(0.2 + 10.0 * 0.4)
