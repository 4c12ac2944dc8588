"""What a doubling of the cluster beyond the records costs, measured on the records."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.calibration.evidence import highest_mfu
from autodeploy.calibration.shipped.class_spreads import (
    ClassSpread,
    class_spread,
    class_spreads,
    covering,
    log_sigma_of,
    weights_of,
)
from autodeploy.calibration.shipped.strategy_groups import (
    MAX_PER_DOUBLING,
    Rehearsal,
    ranks_per_doubling,
    rehearsed_slope,
)
from autodeploy.costs.prediction_spread import RANKS_PER_DOUBLING, Z80, classes_of_run, is_carried, shares_node
from autodeploy.specs.planset import MeasuredMfu


def row(*, moe: bool = False, shared: bool = False) -> dict[str, object]:
    return {"moe": moe, "shares_node": shared}


def rehearsal(residual: float, *, doublings: float = 2.0, name: str = "r") -> Rehearsal:
    return Rehearsal(name, doublings, residual, 0.01)


def test_without_errors_beyond_the_class_a_doubling_costs_nothing() -> None:
    assert rehearsed_slope([rehearsal(0.01)] * 9) == rehearsed_slope([]) == 0.0


def test_the_slope_is_the_least_that_covers_four_in_five() -> None:
    slope = rehearsed_slope([rehearsal(residual) for residual in (0.0, 0.0, 0.0, 0.1, 0.9)])
    assert Z80 * np.hypot(0.01, 2.0 * slope) >= 0.1 > Z80 * np.hypot(0.01, 2.0 * (slope - 0.0025))
    assert rehearsed_slope([rehearsal(9.0)] * 3) == MAX_PER_DOUBLING


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
    rows = [row()] * 8 + [row(shared=True)] * 4
    residuals = np.array([0.01] * 8 + [0.2] * 4)
    variances = np.array([0.001] * 8 + [0.004] * 4)
    found = class_spread(row(), rows, residuals, variances)
    assert (found.log_sigma, len(found.records)) == (pytest.approx(0.01 / Z80), 8)
    assert found.parameter_variance == pytest.approx(0.001)
    found = class_spread(row(shared=True), rows, residuals, variances)
    assert (found.log_sigma, len(found.records)) == (pytest.approx(log_sigma_of(residuals)), 12)
    assert found.parameter_variance == pytest.approx(variances.mean())
    assert class_spread(row(moe=True), rows, residuals, variances).log_sigma >= 0.15
    shipped = class_spreads(rows, residuals, variances)
    assert set(shipped) == {"dense, whole nodes", "dense"}
    assert shipped["dense, whole nodes"]["parameter_variance"] == pytest.approx(0.001)


def test_a_spread_holds_the_next_residual_four_times_in_five() -> None:
    # Of nine exchangeable residuals the eighth: the next one lies below it with a probability of 8 / 10.
    assert log_sigma_of(np.arange(9.0, 0.0, -1.0)) == pytest.approx(8.0 / Z80)
    assert log_sigma_of(np.array([0.3, -0.1])) == pytest.approx(0.3 / Z80), "too few: the farthest"


def test_repeats_and_families_weigh_less() -> None:
    rows = [{"configuration": "a", "model_family": "x"}] * 2 + [
        {"configuration": str(n), "model_family": "y"} for n in range(4)
    ]
    assert weights_of(rows).tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.5, 0.5])


def test_a_device_with_few_records_of_a_kind_takes_those_of_another() -> None:
    runs = [{"id": str(n), "family": "a3", "moe": n < 4} for n in range(6)]
    assert not is_carried("a3", {"moe": True}, runs)
    assert is_carried("a3", {"moe": False}, runs)


def test_the_highest_measured_utilisation_is_of_the_class() -> None:
    base = {"family": "chip", "moe": True, "precision": "bf16", "model": "m", "device": "d"}
    rows = [
        {**base, "id": "small", "npus": 8, "mfu": 0.5},
        {**base, "id": "large", "npus": 64, "mfu": 0.3},
        {**base, "id": "other", "npus": 512, "mfu": 0.9, "family": "other"},
    ]
    with covering({"records": rows}):
        found = highest_mfu("chip", moe=True, npus=256, precision="fp16")
        assert highest_mfu("chip", moe=False, npus=256, precision="bf16") is None
        assert highest_mfu("chip", moe=True, npus=256, precision="fp8") is None
    assert found == MeasuredMfu(highest=0.3, runs=1, record="m on 64 d (large)")


def test_only_what_the_class_does_not_hold_already_widens() -> None:
    known = ClassSpread(0.1, 0.004, ())
    assert known.variance_with(0.0) == known.variance_with(0.004) == pytest.approx(0.01)
    assert known.variance_with(0.009) == pytest.approx(0.015)
