"""Groups of runs that differ in strategy, and the share of unproven gains that came true on them."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.calibration.evidence import realised_share
from autodeploy.calibration.profile_fit import calibrate
from autodeploy.calibration.shipped.strategy_groups import (
    Gain,
    StrategyGroup,
    Without,
    calibration_of,
    came_true,
    gains,
    realised_of,
    strategy_groups,
    told_apart,
)
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.costs.prediction_spread import coverage
from docs.accuracy_page.aims import shipped_start
from docs.accuracy_page.refits import residuals_without

if TYPE_CHECKING:
    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.specs.record import Record

A100 = "nvidia-a100-80g"


@cache
def layouts() -> tuple[Record, ...]:
    """Thirty layouts of two models on A100."""
    every = [r for r in shipped_records() if r.cluster.profile == A100 and r.id.startswith("vtrain_multi")]
    return tuple(sorted(every, key=lambda record: record.id)[::2])


@cache
def fitted() -> Calibration:
    return calibrate(list(layouts()), A100, start=shipped_start(A100), iterations=1)


def group(model: str) -> StrategyGroup:
    return next(each for each in strategy_groups(layouts()) if each.model == model)


def gain(predicted: float, measured: float, model: str = "a", axis: str = "tp") -> Gain:
    return Gain(f"{model} on 8", model, "910B2", axis, 8, predicted, measured, 50)


def test_groups_share_model_cards_batch_and_stack() -> None:
    shared = {(g.model, g.device, g.records[0].training.precision): g for g in strategy_groups(shipped_records())}
    assert len(shared["GPT-39.1B", "A100-80G", "fp16"].records) == 47
    assert shared["GPT-39.1B", "A100-80G", "fp16"].releases == 1
    for each in shared.values():
        batches = {(r.training.global_batch_size.value, r.training.seq_length) for r in each.records}
        assert len(batches) == 1
    mixed = shared["LLaMA2-13B", "910B2", "bf16"]
    assert mixed.releases > 1


def test_a_fit_without_records_predicts_as_a_refit_does() -> None:
    calibration, of = fitted(), group("GPT-18.4B")
    assert calibration_of(A100, [calibration]) is calibration
    assert calibration_of("nvidia-b200", [calibration]) is None
    out = {record.id for record in of.records}
    without = Without.of(calibration, lambda record: record.id in out)
    residuals = dict(
        zip((r.id for r in calibration.records), residuals_without(calibration, lambda r: r.id in out), strict=True)
    )
    expected = of.log_measured + [residuals[record.id] for record in of.records]
    assert without.log_times(of) == pytest.approx(expected)
    # The model is not far from linear between the two fits.
    assert math.log(without.predict(of.records[0]).step_time_s) == pytest.approx(expected[0], abs=0.02)


def test_one_script_on_two_releases_is_one_strategy() -> None:
    of = next(g for g in strategy_groups(shipped_records()) if g.model == "LLaMA2-13B" and g.releases > 1)
    times = np.arange(len(of.records), dtype=np.float64)
    strategies = told_apart(of, times)
    assert sum(map(len, strategies)) == len(of.records) > len(strategies)
    assert told_apart(of, np.zeros(len(of.records))) == [list(range(len(of.records)))]


def test_gains_compare_the_fastest_run_with_and_without_by_a_fit_that_saw_none() -> None:
    found = gains(layouts(), [fitted()])
    assert found
    for each in found:
        of = group(each.model)
        has = [n for n, row in enumerate(of.rows) if row[each.axis] == each.value]
        measured = np.exp(of.log_measured)
        ratios = {round(float(measured[a] / measured[b]), 9) for a in range(len(measured)) for b in has}
        assert round(math.exp(each.measured), 9) in ratios
        assert 10 <= each.fitted < len(layouts())
    assert gains([layouts()[0]], [fitted()]) == []


def test_the_share_is_the_slope_of_what_was_promised_and_models_count_once() -> None:
    assert came_true([gain(-0.1, 0.2), gain(0.0, 0.1)]) is None
    alone = came_true([gain(0.1, 0.05), gain(0.2, 0.10), gain(-0.3, 5.0)])
    assert alone is not None
    assert (alone.raw, alone.gains, alone.sigma) == (pytest.approx(0.5), 2, None)
    both = came_true([*[gain(0.1, 0.1)] * 9, gain(0.1, 0.0, "b")])
    assert both is not None
    assert both.share == pytest.approx(0.5)  # not 0.9
    assert both.sigma == pytest.approx(0.5)
    assert both.of_model == pytest.approx({"a on 910B2": 1.0, "b on 910B2": 0.0})


def test_the_share_lies_between_none_and_all() -> None:
    lost, more = (came_true([gain(0.1, measured)]) for measured in (-0.2, 0.3))
    assert lost is not None
    assert more is not None
    assert (lost.share, lost.raw, more.share, more.raw) == (0.0, pytest.approx(-2.0), 1.0, pytest.approx(3.0))


def test_one_model_is_no_measurement() -> None:
    one = [record for record in layouts() if record.model.name == "GPT-18.4B"]
    assert realised_of(gains(one, [fitted()])) is None
    both = realised_of(gains(layouts(), [fitted()]))
    assert both is not None
    assert 0.0 <= both["share"] <= 1.0
    assert both["n"] == len(both["of_model"]) == 2


def test_the_shipped_share_says_what_it_rests_on() -> None:
    (share, sigma), table = realised_share(), coverage()["realised"]
    assert 0.0 < share < 1.0
    assert 0.0 < sigma < 1.0
    assert table["n"] == len(table["of_model"]) >= 3
    assert str(table["gains"]) in table["how"]
    assert {"degrees", "features"} <= table.keys()
