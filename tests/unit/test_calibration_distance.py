"""What a doubling of the cluster beyond the records costs, measured on the records."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.calibration.evidence import highest_mfu
from autodeploy.calibration.shipped.class_spreads import (
    LEAST_IN_CLASS,
    class_spreads,
    covering,
    log_sigma_of,
    ranks_per_doubling,
    slopes_by_chip,
    unexplained_variance,
    weights_of,
)
from autodeploy.costs.prediction_spread import (
    ELSEWHERE,
    PER_UNSEEN,
    RANKS_PER_DOUBLING,
    UNCALIBRATED,
    Z80,
    class_variance,
    classes_of_run,
    distance_variances,
    is_carried,
    shares_node,
)
from autodeploy.specs.planset import MeasuredMfu

AXES = {"ranks": 8, "ep": 1, "cp": 1, "pp": 1, "seq_length": 4096}


def row(*, moe: bool = False, shared: bool = False, **other: object) -> dict[str, object]:
    return {"moe": moe, "shares_node": shared, "family": "chip", "model_family": "m", "features": [], **AXES, **other}


BETWEEN = {
    name: {"log_sigma": 0.3, "parameter_variance": 0.01, "distance_variance": 0.006, "unexplained_variance": 0.09}
    for name in UNCALIBRATED.values()
}
SLOPES = {ELSEWHERE: 0.02}


def test_growth_without_any_series_is_judged() -> None:
    nothing = np.zeros(0)
    assert slopes_by_chip({"a": nothing}) == pytest.approx({"a": RANKS_PER_DOUBLING, ELSEWHERE: RANKS_PER_DOUBLING})


def test_a_chip_without_series_takes_the_growth_of_the_others_each_chip_once() -> None:
    slopes = slopes_by_chip({"a": np.full(9, 0.01), "b": np.array([0.03]), "c": np.zeros(0)})
    assert slopes["c"] == slopes[ELSEWHERE] == pytest.approx(((0.01**2 + 0.03**2) / 2.0) ** 0.5, rel=1e-5)
    assert slopes["a"] == pytest.approx(ranks_per_doubling(np.full(9, 0.01), 0.03**2))


def test_own_series_outweigh_those_of_others_the_more_there_are() -> None:
    few, many = (ranks_per_doubling(np.full(count, 0.01), 0.03**2) for count in (1, 40))
    assert 0.01 < many < few < 0.03
    assert few == pytest.approx(((0.01**2 + LEAST_IN_CLASS * 0.03**2) / (1 + LEAST_IN_CLASS)) ** 0.5, rel=1e-5)


def test_classes_name_who_shares_a_node() -> None:
    assert classes_of_run(row(shared=True)) == ("dense, shared nodes", "dense")
    assert classes_of_run(row(moe=True)) == ("moe", "moe")
    assert shares_node(64, 2, 8)
    assert not shares_node(64, 8, 8)
    assert not shares_node(8, 2, 8)


def test_a_spread_comes_from_the_narrowest_class_with_enough_records() -> None:
    rows = [row(model_family=str(n)) for n in range(8)] + [row(model_family=f"s{n}", shared=True) for n in range(4)]
    residuals = np.array([0.01] * 8 + [0.2] * 4)
    variances = np.array([0.001] * 8 + [0.004] * 4)
    found = class_spreads(rows, residuals, variances, BETWEEN, SLOPES)
    assert set(found) == {"dense, whole nodes", "dense"}, "four runs whose nodes are shared are too few"
    narrow, every = found["dense, whole nodes"], found["dense"]
    own, other = (0.01 / Z80) ** 2, BETWEEN["uncalibrated/dense"]["unexplained_variance"]
    assert narrow["log_sigma"] == pytest.approx(((8 * own + 4 * (other + 0.001)) / 12) ** 0.5, rel=1e-5)
    assert narrow["parameter_variance"] == pytest.approx(0.001)
    of_all = 12 * log_sigma_of(residuals) ** 2 + 4 * (other + every["parameter_variance"] + every["distance_variance"])
    assert every["log_sigma"] == pytest.approx((of_all / 16) ** 0.5, rel=1e-5)


def test_what_a_class_left_out_was_off_by_holds_how_far_it_was_from_the_others() -> None:
    rows = [row(model_family=str(n)) for n in range(8)]
    rows[0] |= {"features": ["own"], "ranks": 32}
    assert distance_variances(rows, [str(each["model_family"]) for each in rows], SLOPES).tolist() == pytest.approx(
        [PER_UNSEEN**2 + (2 * 0.02) ** 2, *[0.0] * 7]
    )
    assert distance_variances(rows, ["one"] * 8, SLOPES).tolist() == [0.0] * 8, "nothing to be far from"
    found = class_spreads(rows, np.full(8, 0.01), np.zeros(8), BETWEEN, SLOPES)["dense"]
    assert found["distance_variance"] == pytest.approx((PER_UNSEEN**2 + 0.04**2) / 8, rel=1e-5)


def test_what_is_left_unexplained_makes_intervals_hold_the_next_residual() -> None:
    residuals, explained, once = np.arange(1.0, 10.0) / 100.0, np.full(9, 0.03**2), np.ones(9)
    left = unexplained_variance(residuals, explained, once)
    assert log_sigma_of(residuals / np.sqrt(explained + left), once) == pytest.approx(1.0)
    assert left == pytest.approx((0.08 / Z80) ** 2 - 0.03**2)
    assert unexplained_variance(residuals, np.full(9, 0.09**2), once) == 0.0, "what is explained is enough"


def test_the_more_a_chip_has_run_the_less_other_chips_say_of_it() -> None:
    widths = []
    for count in (4, 40, 4000):
        found = class_spreads(
            [row(model_family=str(n)) for n in range(count)], np.full(count, 0.01), np.zeros(count), BETWEEN, SLOPES
        )
        widths.append(found["dense"]["log_sigma"])
    assert 0.3 > widths[0] > widths[1] > widths[2] > 0.01 / Z80


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
    assert class_variance(0.1, 0.004, 0.0) == class_variance(0.1, 0.004, 0.004) == pytest.approx(0.01)
    assert class_variance(0.1, 0.004, 0.009) == pytest.approx(0.015)
