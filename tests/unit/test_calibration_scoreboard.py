"""The scoreboard: refits without some records, shares by configuration, and scripts with a published speed."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.calibration.fit import left_out_residuals
from autodeploy.calibration.profile_fit import Calibration, calibrate
from autodeploy.calibration.shipped.tables import fitted_profiles, shipped_records
from docs.accuracy_page.aims import Line, binomial_chance, by_configuration, shipped_start
from docs.accuracy_page.refits import overlays_of, residuals_without, without
from docs.accuracy_page.splits import Held
from docs.scoreboard import launches
from hardware_profiles import list_profiles, load_profile
from hardware_profiles.loader import recalibrated

if TYPE_CHECKING:
    from autodeploy.specs.record import Record

H100 = "nvidia-h100"


@cache
def few() -> tuple[Record, ...]:
    """Runs with experts on H100 of two models."""
    kept = ("gpt-oss-120b", "qwen3-30b-a3b", "qwen3-235b-a22b")
    return tuple(r for r in shipped_records() if r.cluster.profile == H100 and r.model.name in kept)


@cache
def fitted() -> Calibration:
    return calibrate(few(), H100)


def test_a_fit_without_a_family_is_the_left_out_prediction() -> None:
    def is_gpt(record: Record) -> bool:
        return record.model.name == "gpt-oss-120b"

    labels = ["gpt" if is_gpt(r) else r.id for r in fitted().records]
    marks = np.array([is_gpt(r) for r in fitted().records])
    expected = left_out_residuals(fitted().fit, labels)
    assert residuals_without(fitted(), is_gpt)[marks] == pytest.approx(expected[marks])
    rest = without(fitted(), is_gpt)
    assert not any(is_gpt(r) for r in rest.records)
    assert rest.fit.residuals == pytest.approx(residuals_without(fitted(), is_gpt)[~marks])
    assert np.diag(rest.fit.covariance).sum() > np.diag(fitted().fit.covariance).sum()


def test_overlays_in_place_of_the_shipped_ones_last_as_long_as_asked() -> None:
    before = load_profile(H100)
    overlays = overlays_of(fitted())
    assert set(overlays) == {H100, "nvidia-h800"}
    with recalibrated(overlays):
        assert load_profile(H100) != before
        assert load_profile(H100, calibrated=False) == load_profile(H100, overlay=None, calibrated=False)
    assert load_profile(H100) == before


def test_a_fit_starts_from_the_shipped_factors() -> None:
    for name in fitted_profiles():
        assert np.isfinite(shipped_start(name)).all()
        assert shipped_start(name).any()


def test_a_configuration_counts_once_at_the_run_in_the_middle() -> None:
    records = [r for r in few() if r.model.name == "gpt-oss-120b"]
    held = [Held(r, 0.01 * n, 0.02) for n, r in enumerate(records)]
    (one,) = by_configuration(held)
    assert one.record.id == records[len(records) // 2].id


def test_a_share_far_from_the_nominal_one_is_unlikely() -> None:
    assert binomial_chance(8, 10) == pytest.approx(1.0)
    assert binomial_chance(10, 10) == pytest.approx(0.8**10 + sum_below(6, 10), abs=1e-3)
    assert binomial_chance(3, 10) < 0.01


def sum_below(most: int, count: int) -> float:
    """Probabilities of the numbers inside that are rarer than all of them."""
    return sum(math.comb(count, k) * 0.8**k * 0.2 ** (count - k) for k in range(most + 1))


def test_scripts_with_a_published_speed_have_a_record() -> None:
    found = launches(shipped_records())
    assert len(found) == 3
    for record, _ in found:
        assert record.measured.tokens_per_s_per_npu
        assert record.cluster.profile in list_profiles()


def test_a_line_says_whether_its_aim_is_met() -> None:
    assert Line("figure", "1 %", "2 %", True).text().startswith("met ")
    assert Line("figure", "3 %", "2 %", False).text().startswith("MISSED ")
    assert Line("figure", "3 %", "told").text().startswith("- ")
