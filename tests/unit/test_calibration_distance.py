"""What a doubling of the cluster beyond the records costs, measured on the records."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.calibration.coverage import RANKS_PER_DOUBLING
from autodeploy.calibration.distance import MOST, Rehearsal, ranks_per_doubling, rehearsed_slope
from autodeploy.calibration.spreads import (
    Z80,
    ClassSpread,
    class_spread,
    class_spreads,
    classes_of_run,
    log_sigma_of,
    shares_node,
)


def row(*, moe: bool = False, shared: bool = False) -> dict[str, object]:
    return {"moe": moe, "shares_node": shared}


def rehearsal(residual: float, *, doublings: float = 2.0, name: str = "r") -> Rehearsal:
    return Rehearsal(name, doublings, residual, 0.01)


def test_without_errors_beyond_the_class_a_doubling_costs_nothing() -> None:
    assert rehearsed_slope([rehearsal(0.01)] * 9) == rehearsed_slope([]) == 0.0


def test_the_slope_is_the_least_that_covers_four_in_five() -> None:
    slope = rehearsed_slope([rehearsal(residual) for residual in (0.0, 0.0, 0.0, 0.1, 0.9)])
    assert Z80 * np.hypot(0.01, 2.0 * slope) >= 0.1 > Z80 * np.hypot(0.01, 2.0 * (slope - 0.0025))
    assert rehearsed_slope([rehearsal(9.0)] * 3) == MOST


def test_few_rehearsals_leave_the_prior_and_a_record_counts_once() -> None:
    assert ranks_per_doubling([]) == pytest.approx(RANKS_PER_DOUBLING)
    once = ranks_per_doubling([rehearsal(0.5)])
    assert RANKS_PER_DOUBLING < once == ranks_per_doubling([rehearsal(0.5)] * 7)
    assert (
        once < ranks_per_doubling([rehearsal(0.5, name=str(n)) for n in range(7)]) < rehearsed_slope([rehearsal(0.5)])
    )


def test_classes_name_who_shares_a_node() -> None:
    assert classes_of_run(row(shared=True)) == ("dense, shared nodes", "dense")
    assert classes_of_run(row(moe=True)) == ("moe", "moe")
    assert shares_node(64, 2, 8)
    assert not shares_node(64, 8, 8)
    assert not shares_node(8, 2, 8)


def test_a_spread_comes_from_the_narrowest_class_with_enough_records() -> None:
    rows = [row()] * 5 + [row(shared=True)] * 4
    residuals = np.array([0.01] * 5 + [0.2] * 4)
    variances = np.array([0.001] * 5 + [0.004] * 4)
    found = class_spread(row(), rows, residuals, variances)
    assert (found.log_sigma, len(found.records)) == (pytest.approx(0.01 / Z80), 5)
    assert found.parameter_variance == pytest.approx(0.001)
    found = class_spread(row(shared=True), rows, residuals, variances)
    assert (found.log_sigma, len(found.records)) == (pytest.approx(log_sigma_of(residuals)), 9)
    assert found.parameter_variance == pytest.approx(variances.mean())
    assert class_spread(row(moe=True), rows, residuals, variances).log_sigma >= 0.15
    shipped = class_spreads(rows, residuals, variances)
    assert set(shipped) == {"dense, whole nodes", "dense"}
    assert shipped["dense, whole nodes"]["parameter_variance"] == pytest.approx(0.001)


def test_only_what_the_class_does_not_hold_already_widens() -> None:
    known = ClassSpread(0.1, 0.004, ())
    assert known.variance_with(0.0) == known.variance_with(0.004) == pytest.approx(0.01)
    assert known.variance_with(0.009) == pytest.approx(0.015)
