"""Validation: predicted against measured for single records, and what holds of all that ship."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.calibration.record_prediction import (
    NOISE_UNSURE_LAUNCH,
    measured_step_s,
    predict_record,
    record_memory_spread,
)
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.calibration.validation import Statistics, ValidationReport, classes_of, validate
from autodeploy.costs.prediction_spread import (
    REPEAT_NOISE,
    UNCALIBRATED,
    Z80,
    TimedRuns,
    conditioned,
    coverage,
    spread_of,
)
from autodeploy.search.ranking.uncertainty import p_fits
from autodeploy.specs.record import Measured, Record
from docs import readme

if TYPE_CHECKING:
    from autodeploy.calibration.validation import Row


@cache
def shipped() -> tuple[Record, ...]:
    return tuple(shipped_records())


@cache
def reports() -> dict[str, ValidationReport]:
    """Of each shipped file."""
    return readme.validated()


@cache
def rows() -> tuple[Row, ...]:
    return tuple(row for report in reports().values() for row in report.rows)


def timed(position: int) -> Record:
    """A dense MindSpeed-LLM run on one node or several."""
    found = [r for r in shipped() if r.framework == "mindspeed-llm" and measured_step_s(r) and not r.model.is_moe]
    return found[position]


def measuring(record: Record, *, time: float, memory: float) -> Record:
    """The record as if it had been measured: prediction is off by these relative errors."""
    predicted = predict_record(record)
    measured = Measured(
        tokens_per_s_per_npu=predicted.tokens_per_s_per_npu / (1.0 + time),
        peak_memory_gib=predicted.allocator_peak_gib / (1.0 + memory),
        memory_counts="allocated",
    )
    return record.model_copy(update={"measured": measured, "short_run": False, "memory_regime": None})


# -- single records ----------------------------------------------------------------------------------------------


def test_statistics_of_two_records() -> None:
    records = [measuring(timed(0), time=0.10, memory=-0.04), measuring(timed(1), time=-0.30, memory=0.02)]
    found = validate(records)
    assert [row.id for row in found.rows] == [r.id for r in records]
    assert [row.error.time for row in found.rows] == pytest.approx([0.10, -0.30])
    assert [row.error.memory for row in found.rows] == pytest.approx([-0.04, 0.02])
    assert found.summary.time is not None
    assert found.summary.memory is not None
    expected = Statistics(n=2, mape=0.2, median_ape=0.2, p90_ape=0.28, bias=-0.1)
    assert found.summary.time.model_dump() == pytest.approx(expected.model_dump())
    assert found.summary.memory.bias == pytest.approx(-0.01)
    assert found.summary.skipped == 0
    assert found.summary.by_class["dense"] == found.summary.time
    assert "moe" not in found.summary.by_class


def test_a_row_says_where_the_time_goes() -> None:
    (row,) = validate([measuring(timed(0), time=0.0, memory=0.0)]).rows
    assert row.predicted is not None
    assert row.measured.tokens_per_s_per_npu == pytest.approx(row.predicted.tokens_per_s_per_npu)
    assert list(row.parts.values()) == sorted(row.parts.values(), reverse=True)
    assert 0.9 < sum(row.parts.values()) <= 1.0 + 1e-9


def test_short_runs_are_shown_and_not_counted() -> None:
    short = measuring(timed(0), time=0.5, memory=0.0).model_copy(update={"short_run": True})
    found = validate([short])
    assert found.rows[0].error.time == pytest.approx(0.5)
    assert not found.rows[0].counts_for_time
    assert found.summary.time is None
    assert found.summary.memory is not None


def test_a_record_that_cannot_be_predicted_is_skipped_with_its_reason() -> None:
    record = timed(0)
    unknown = record.model_copy(update={"cluster": record.cluster.model_copy(update={"device": "910D"})})
    found = validate([unknown, measuring(record, time=0.0, memory=0.0)])
    assert found.rows[0].skipped
    assert "910D" in found.rows[0].skipped
    assert found.rows[0].predicted is None
    assert found.summary.skipped == 1
    assert found.summary.time is not None
    assert found.summary.time.n == 1


def test_nothing_to_validate_is_an_empty_report() -> None:
    assert validate([]) == ValidationReport.model_validate(
        {"rows": (), "summary": {"time": None, "memory": None, "by_class": {}, "skipped": 0}}
    )


def test_classes_name_model_length_size_framework_device_profile_and_release() -> None:
    found = classes_of(timed(0))
    assert found[0] == "dense"
    assert any(name.startswith("device 910C") for name in found)
    assert "profile cloudmatrix-384" in found
    assert "framework mindspeed-llm" in found
    assert sum(name in {"one node", "several nodes"} for name in found) == 1
    assert sum(name.startswith("release ") for name in found) == 1


# -- the interval ------------------------------------------------------------------------------------------------

RUN = {
    "moe": False,
    "ranks": 64,
    "shares_node": False,
    "tp": 8,
    "pp": 2,
    "cp": 1,
    "ep": 1,
    "seq_length": 4096,
    "features": [],
}


def test_an_interval_is_the_spread_of_its_class() -> None:
    spread = spread_of("ascend-910b", RUN)
    assert spread.log_sigma == pytest.approx(coverage()["classes"]["ascend-910b/dense, whole nodes"]["log_sigma"])
    assert spread.extrapolated == ()
    assert spread.basis.endswith("configurations of ascend-910b/dense, whole nodes")
    low, high = spread.interval(10.0)
    assert math.log(10.0 / low) == pytest.approx(math.log(high / 10.0)) == pytest.approx(Z80 * spread.log_sigma)


@pytest.mark.parametrize(("axis", "value"), [("ranks", 65_536), ("cp", 512), ("pp", 256), ("seq_length", 8_388_608)])
def test_distance_from_the_records_widens_the_interval(axis: str, value: int) -> None:
    near, far = spread_of("ascend-910b", RUN), spread_of("ascend-910b", {**RUN, axis: value})
    assert axis in far.extrapolated
    assert far.log_sigma > near.log_sigma
    assert spread_of("ascend-910b", {**RUN, axis: 4 * value}).log_sigma > far.log_sigma


def test_a_feature_without_records_widens_the_interval() -> None:
    near, far = spread_of("ascend-910b", RUN), spread_of("ascend-910b", {**RUN, "features": ["mutual_routing"]})
    assert far.log_sigma > near.log_sigma
    assert far.extrapolated == ("mutual_routing",)


def test_a_device_without_runs_of_a_kind_has_the_spread_between_classes() -> None:
    for moe, name in UNCALIBRATED.items():
        run = {**RUN, "moe": moe}
        entry = coverage()["classes"][name]
        unknown, carried = spread_of("some-other-chip", run), spread_of("ascend-910c", run)
        for spread in (unknown, carried):
            assert "device family" in spread.extrapolated
            assert spread.basis.key == "calibration.spread_between_classes"
            assert spread.log_sigma >= entry["log_sigma"]
        uncertain = spread_of("ascend-910c", run, entry["parameter_variance"] + 0.01)
        assert uncertain.log_sigma**2 == pytest.approx(carried.log_sigma**2 + 0.01)


def test_an_unknown_device_is_no_farther_from_runs_than_the_farthest_of_their_axes() -> None:
    largest = max(row["ranks"] for row in coverage()["records"] if not row["moe"])
    far = spread_of("some-other-chip", {**RUN, "moe": False, "ranks": 16 * largest})
    assert "ranks" not in spread_of("some-other-chip", {**RUN, "moe": False, "ranks": largest}).extrapolated
    assert "ranks" in far.extrapolated


def test_runs_of_the_cluster_leave_what_its_strategies_do_not_share() -> None:
    carried, timed = spread_of("ascend-910c", RUN), spread_of("ascend-910c", RUN, cluster=TimedRuns(timed=True))
    pair = float(coverage()["pair_log_sigma"]) ** 2
    assert "device family" not in timed.extrapolated
    assert timed.log_sigma < carried.log_sigma
    left = conditioned(carried.log_sigma**2, pair)
    assert timed.log_sigma == pytest.approx(math.sqrt(left + REPEAT_NOISE**2))
    assert timed.basis == f"runs of this cluster; {carried.basis}"
    uncertain = spread_of("ascend-910c", RUN, 0.04, cluster=TimedRuns(timed=True))
    assert timed.log_sigma < uncertain.log_sigma <= spread_of("ascend-910c", RUN, 0.04).log_sigma


def test_one_error_given_another_is_that_of_correlated_normal_errors() -> None:
    rng = np.random.default_rng(7)
    common, own = rng.normal(0.0, 0.1, 400_000), rng.normal(0.0, 0.05, (2, 400_000))
    first, second = common + own
    slope = np.cov(first, second)[0, 1] / first.var()
    left = float((second - slope * first).var())
    assert conditioned(float(second.var()), float((second - first).var())) == pytest.approx(left, rel=0.01)
    assert conditioned(0.01, 0.02) == conditioned(0.01, 0.05) == 0.01
    assert conditioned(0.01, 0.0) == 0.0


def test_runs_whose_groups_share_nodes_have_a_spread_of_their_own() -> None:
    whole = spread_of("nvidia-a100", {**RUN, "seq_length": 2048})
    shared = spread_of("nvidia-a100", {**RUN, "tp": 2, "shares_node": True, "seq_length": 2048})
    assert shared.log_sigma > 1.9 * whole.log_sigma
    assert shared.basis.endswith("configurations of nvidia-a100/dense, shared nodes")
    few = spread_of("ascend-910b", {**RUN, "tp": 2, "shares_node": True})
    assert few.basis.endswith("configurations of ascend-910b/dense")


def test_the_nearest_record_is_one_of_the_table() -> None:
    nearest = spread_of("ascend-910b", RUN).nearest_record
    assert nearest is not None
    assert any(f"({row['id']})" in nearest and row["family"] == "ascend-910b" for row in coverage()["records"])


# -- everything that ships -----------------------------------------------------------------------------------------


def test_every_shipped_record_is_predicted() -> None:
    assert len(rows()) == len(shipped()) > 200
    assert [row.id for row in rows() if row.skipped] == []
    assert [report.summary.skipped for report in reports().values()] == [0, 0]
    for row in rows():
        assert row.predicted is not None
        numbers = row.predicted.model_dump()
        low, high = numbers.pop("step_time_interval_s")
        memory = numbers.pop("memory_interval")
        assert np.isfinite([low, high, memory["low_gib"], memory["high_gib"], *numbers.values()]).all(), row.id
        assert 0.0 < memory["low_gib"] < memory["high_gib"], row.id
        assert 0.0 < low < row.predicted.step_time_s < high, row.id


def test_every_published_run_passes_the_arithmetic_rules() -> None:
    broken = {row.id: rule for row in rows() for rule in row.warnings if rule.startswith("rule ")}
    assert broken == {}


def test_the_median_error_of_time_is_below_15_percent() -> None:
    runs = 0
    for report in reports().values():
        assert report.summary.time is not None
        assert report.summary.time.median_ape < 0.15
        runs += report.summary.time.n
    assert runs > 150


def test_no_run_that_ran_is_called_out_of_memory_nearly_for_certain() -> None:
    """Of an interval of 80 % one end is passed by one in ten runs: none is as far beyond its card as that."""
    chances = {}
    # As likely as not where less is predicted than the card has.
    large = {row.id for row in rows() if row.predicted and row.fits is not True}
    assert large
    for record in (each for each in shipped() if each.id in large):
        predicted = predict_record(record)
        need, limit = float(np.max(predicted.estimate.card_bytes)), predicted.context.limit_bytes
        chances[record.id] = p_fits(need, limit, record_memory_spread(predicted, on_card=True))
    assert {name: chance for name, chance in chances.items() if chance < 0.1} == {}


def test_a_launch_that_its_source_does_not_vouch_for_holds_memory_of_a_wider_spread() -> None:
    record = next(each for each in shipped() if each.id == "ML022")
    sure, unsure = (
        record_memory_spread(predict_record(record.model_copy(update={"confidence": confidence}))).log_sigma
        for confidence in ("high", "low")
    )
    assert unsure == pytest.approx(math.hypot(sure, NOISE_UNSURE_LAUNCH), rel=1e-12)


def test_four_of_five_published_times_lie_in_their_interval() -> None:
    inside = []
    for record, row in zip(shipped(), rows(), strict=True):
        measured_s = measured_step_s(record)
        if measured_s is not None and row.counts_for_time:
            assert row.predicted is not None
            low_s, high_s = row.predicted.step_time_interval_s
            inside.append(low_s <= measured_s <= high_s)
    assert len(inside) > 150
    assert np.mean(inside) > 0.75


def test_the_accuracy_that_the_readmes_state_is_current() -> None:
    measured = readme.accuracy(reports())
    for language, path in readme.READMES.items():
        text = path.read_text(encoding="utf-8")
        assert readme.replace_parts(text, measured[language]) == text, f"{path.name}: run `make docs`"
