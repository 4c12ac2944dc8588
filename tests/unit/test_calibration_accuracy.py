"""The accuracy page: its figures, its worst records, its plot and the HTML report of `validate`."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import plotly.graph_objects as go
import pytest

from autodeploy.calibration.profile_fit import Calibration, calibrate
from autodeploy.calibration.record_prediction import predict_record
from autodeploy.calibration.shipped.class_spreads import covering
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.calibration.validation import validate
from autodeploy.cli.validate_html import report_html
from autodeploy.costs.prediction_spread import UNCALIBRATED, Z80
from autodeploy.reports.figures import figure_json
from autodeploy.reports.figures.charts import Point, predicted_against_measured, predicted_against_measured_svg
from docs.accuracy_page.aims import Line
from docs.accuracy_page.errors import (
    Runs,
    carried_over,
    errors_of,
    kendall_tau,
    layout_groups,
    ordered_pairs,
    runs_of,
    step_s,
)
from docs.accuracy_page.page import aims_table, table
from docs.accuracy_page.splits import held, left_out_intervals, share_inside, table_without, with_runs
from docs.accuracy_page.worst import diagnoses, doubted, listed, misses

if TYPE_CHECKING:
    from autodeploy.specs.record import Record

DOCS = Path(__file__).resolve().parents[2] / "docs"
H100 = "nvidia-h100"


def few() -> list[Record]:
    """Five runs with experts on H100: four of one configuration, one of another model."""
    moe = [r for r in shipped_records() if r.cluster.profile == H100 and r.training.precision == "bf16"]
    return [r for r in moe if r.model.name in {"gpt-oss-120b", "qwen3-30b-a3b"}]


@cache
def h100() -> Calibration:
    return calibrate(few(), H100)


def group_of_layouts(residuals: dict[str, float] | None = None) -> Runs:
    """The vTrain runs of 18.4B with given residuals, else none."""
    records = tuple(r for r in shipped_records() if r.model.name == "GPT-18.4B")
    values = np.array([(residuals or {}).get(r.id, 0.0) for r in records])
    return Runs(records, values, values)


def test_errors_are_of_speed() -> None:
    found = errors_of(np.log([1.25, 0.8]))
    assert found.n == 2
    assert found.mape == pytest.approx(0.225)
    assert found.bias == pytest.approx((0.25 - 0.2) / 2)


def test_kendall_tau() -> None:
    up = np.arange(5.0)
    assert kendall_tau(up, up) == 1.0
    assert kendall_tau(up, -up) == -1.0
    assert kendall_tau(np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 1.0])) == pytest.approx(1 / 3)


def test_a_right_model_orders_everything_right() -> None:
    runs = group_of_layouts()
    pairs = ordered_pairs(runs)
    assert pairs.pairs == pairs.in_sample == pairs.left_out > 50
    (group,) = layout_groups(runs)
    assert (group.layouts, group.tau, group.regret) == (15, 1.0, 0.0)


def test_a_wrong_order_costs_pairs_and_regret() -> None:
    runs = group_of_layouts({"vtrain_multi_039": -2.0})  # the slowest layout, predicted fastest
    times = [step_s(r) for r in runs.records]
    (group,) = layout_groups(runs)
    assert group.regret == pytest.approx(max(times) / min(times) - 1.0)
    pairs = ordered_pairs(runs)
    assert pairs.left_out == pairs.pairs - 14


def test_one_anchor_removes_what_all_share() -> None:
    found = carried_over(h100(), few(), H100)  # a device's own fit, for the shape of the result
    assert (found.plain.n, found.after_anchor.n, found.after_anchor_other_model.n) == (5, 20, 8)
    assert found.after_anchor_other_model.mape > found.after_anchor.mape > 0.0
    assert found.plain.mape == pytest.approx(errors_of(runs_of(h100()).in_sample).mape, abs=1e-9)


def test_memory_of_megatron_bridge_is_met() -> None:
    runs = [r for r in shipped_records() if r.id.startswith("mbridge_moonlight")]
    shares = [predict_record(r).memory_gib / (r.measured.peak_memory_gib or 0.0) for r in runs]
    assert len(shares) == 6
    assert np.mean(np.abs(np.array(shares) - 1.0)) < 0.09


def test_intervals_hold_more_with_the_uncertainty_of_the_parameters() -> None:
    # Five runs leave most factors as uncertain as their priors: their residuals alone promise too much.
    nothing = np.zeros(len(h100().records))
    with_them, alone = (left_out_intervals(h100(), [h100()], variances) for variances in (None, nothing))
    widths = [sum(held.half_width for held in found) for found in (with_them, alone)]
    assert widths[0] > widths[1]
    assert share_inside(with_them) >= share_inside(alone)


def test_a_chip_with_few_runs_has_the_spread_between_classes_of_the_others() -> None:
    table = table_without("nvidia-a100-80g", [h100()])
    known = with_runs(table, h100(), np.zeros(5), np.zeros(5, dtype=bool))
    assert known["classes"] == table["classes"]
    with covering(known):
        (first, *_) = h100().records
        found = held(first, 0.0, 0.0)
    name = UNCALIBRATED[first.model.is_moe]
    assert found.half_width >= Z80 * table["classes"][name]["log_sigma"]


def test_repeats_stand_once_and_experts_far_off_are_listed() -> None:
    ranked = misses([runs_of(h100())])
    assert len(ranked) == 2
    assert sum(miss.repeats for miss in ranked) == 3
    assert [abs(m.left_out) for m in ranked] == sorted((abs(m.left_out) for m in ranked), reverse=True)
    assert listed(ranked, 0) == [m for m in ranked if abs(m.left_out) > 0.2]


def test_diagnoses_are_of_records_that_ship() -> None:
    known = {record.id for record in shipped_records()}
    assert set(diagnoses()) <= known
    assert {each.cause for each in diagnoses().values()} <= {"record", "model", "coverage"}
    assert not any(doubted(runs_of(h100())))


def test_a_figure_stands_beside_its_aim() -> None:
    lines = [Line("a", "1 %", "2 %", True), Line("  b", "3 %", "2 %", False), Line("c", "4 %", "told")]
    assert aims_table(lines).splitlines()[2:] == ["| a | 1 % | 2 % | met |", "| b | 3 % | 2 % | **missed** |"]
    assert table(("a",), [("x|y",)]).splitlines()[-1] == "| x\\|y |"


def test_the_page_is_short_and_says_no_number_that_is_none() -> None:
    text = (DOCS / "accuracy.md").read_text(encoding="utf-8")
    for word in ("family left out", "CloudMatrix 384", "nan", "No diagnosis yet"):
        assert (word in text) is (word not in {"nan", "No diagnosis yet"})
    assert len(text.splitlines()) < 320


def test_the_plot_is_drawn_without_scripts_and_always_the_same() -> None:
    points = [Point("a <1>", "A", 100.0, 110.0), Point("b", "B", 2000.0, 1500.0)]
    text = predicted_against_measured_svg(points, "Plot")
    assert text == predicted_against_measured_svg(points, "Plot")
    circles = [e for e in ElementTree.fromstring(text).iter() if e.tag.endswith("circle")]
    assert len(circles) == 4  # two runs and two in the legend
    with pytest.raises(ValueError, match="at least one point"):
        predicted_against_measured_svg([], "Plot")


def test_the_figure_has_a_trace_a_group_and_the_diagonal() -> None:
    figure = go.Figure(
        figure_json(predicted_against_measured([Point("a", "A", 100.0, 110.0), Point("b", "B", 2000.0, 1500.0)]))
    )
    assert [trace.name for trace in figure.data] == [None, "A", "B"]
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_the_html_report_stands_alone() -> None:
    records = [r for r in shipped_records() if r.cluster.profile == H100][::5]
    report = validate(records)
    text = report_html(report, records)
    assert text == report_html(report, records)
    before, _, scripts = text.partition("<script")
    assert "plotly.js v" in scripts
    assert "<svg" in before
    assert all(record.id in before for record in records)
    assert not any(f'{name}="http' in before for name in ("src", "href"))
    assert math.isfinite(report.summary.time.mape if report.summary.time else math.nan)
    chinese = report_html(report, records, "zh")
    for said in ("实测 tokens/s/卡", "预测 tokens/s/卡与实测", "稠密"):
        assert said in chinese.partition("<script")[0]
    assert '"text": "\\u5b9e\\u6d4b tokens/s/\\u5361"' in chinese


def test_the_html_report_of_memory_alone_has_no_plot() -> None:
    records = [r for r in shipped_records() if r.id == "mbridge_moonlight_none"]
    text = report_html(validate(records), records)
    assert "<svg" not in text
    assert "<script" not in text
    assert "moonlight" in text
