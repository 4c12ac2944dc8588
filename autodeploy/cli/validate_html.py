"""The validation report as one HTML file: a plot and tables, readable without scripts and without a network."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.unmeasured import extent_words
from autodeploy.figures.accuracy import predicted_against_measured
from autodeploy.figures.accuracy_svg import Point, predicted_against_measured_svg
from autodeploy.figures.layout import figure_json, plotly_js

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from autodeploy.calibration.unmeasured import UnmeasuredReport
    from autodeploy.calibration.validate import Row, Statistics, ValidationReport
    from autodeploy.specs.record import Record

TITLE = "Predicted against measured"
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b2430}
table{border-collapse:collapse;margin:1rem 0;font-size:13px}caption{text-align:left;font-weight:600;padding:.3rem 0}
th,td{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"""
# The static plot is there from the start; plotly.js takes its place where scripts run.
SCRIPT = """const plot=document.getElementById("plot"),figure=JSON.parse(document.getElementById("figure").textContent);
plot.replaceChildren();Plotly.newPlot(plot,figure.data,figure.layout,{displaylogo:false,responsive:true});"""


def report_html(report: ValidationReport, records: Sequence[Record]) -> str:
    """The whole page; the same bytes for the same report.

    Parameters
    ----------
    records : those of the report's first rows, in their order; rows of unread lines follow.
    """
    points = speed_points(report, records)
    summary = [("time", report.summary.time), ("memory", report.summary.memory)]
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{TITLE}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{TITLE}</h1>",
        "<p>Errors are predicted / measured - 1: of tokens per second for time (positive is predicted too fast), of "
        "the allocator's peak for memory.</p>",
        f'<div id="plot">{predicted_against_measured_svg(points, TITLE)}</div>' if points else "",
        _statistics_table("Summary", summary),
        _statistics_table("Time by class", report.summary.by_class.items()),
        _runs_table(report.rows),
        *_unmeasured_tables(report.unmeasured),
        _scripts(points) if points else "",
        "</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part)


def speed_points(report: ValidationReport, records: Sequence[Record]) -> list[Point]:
    """Measured and predicted tokens per second and card of every run that counts for time."""
    points = []
    for row, record in zip(report.rows, records, strict=False):
        if row.predicted is not None and row.error.time is not None and row.counts_for_time:
            predicted = row.predicted.tokens_per_s_per_npu
            group = f"{record.cluster.profile}, {'experts' if record.model.is_moe else 'dense'}"
            points.append(Point(f"{row.model} ({row.id})", group, predicted / (1.0 + row.error.time), predicted))
    return points


def _scripts(points: Sequence[Point]) -> str:
    figure = json.dumps(figure_json(predicted_against_measured(points)), allow_nan=False, sort_keys=True)
    figure = figure.replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="figure">{figure}</script>\n'
        f"<script>{plotly_js()}</script>\n<script>{SCRIPT}</script>"
    )


def _table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[int]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        marked = (f"<{tag}{' class=n' if i in numbers else ''}>{escape(c)}</{tag}>" for i, c in enumerate(cells))
        return f"<tr>{''.join(marked)}</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return (
        f"<table>\n<caption>{escape(caption)}</caption>\n<thead>{line('th', titles)}</thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>"
    )


def _statistics_table(caption: str, sets: Iterable[tuple[str, Statistics | None]]) -> str:
    rows = [
        [name, str(s.n), _share(s.mape), _share(s.median_ape), _share(s.p90_ape), _share(s.bias, sign=True)]
        for name, s in sets
        if s is not None
    ]
    return _table(caption, ["set", "runs", "mean", "median", "90th percentile", "bias"], rows, frozenset(range(1, 6)))


def _runs_table(rows: Sequence[Row]) -> str:
    titles = ["run", "model", "measured", "predicted", "error", "GiB", "predicted", "error", "parts", "notes"]
    return _table("Runs", titles, [_run(row) for row in rows], frozenset(range(2, 8)))


def _unmeasured_tables(report: UnmeasuredReport) -> Iterator[str]:
    """Classes of shapes without a measured efficiency, then every such shape."""
    if not report.shapes:
        return
    titles = ["profile", "class", "number", "its kind", "shapes", "unmeasured", "reaching"]
    rows = [
        [c.profile, c.kind, c.number, c.number_kind, str(c.shapes), str(c.unmeasured), extent_words(c.extent)]
        for c in report.classes
    ]
    yield _table("Shapes and message sizes without a measured efficiency", titles, rows, frozenset({4, 5}))
    each = [
        [
            s.profile,
            s.kind,
            extent_words({axis: (v, v) for axis, v in s.shape.items()}),
            s.number,
            s.reason,
            str(s.runs),
        ]
        for s in report.shapes
    ]
    shapes = _table("Each of them", ["profile", "class", "shape", "number", "why", "runs"], each, frozenset({5}))
    yield f"<details>\n<summary>Each of the {len(each)} shapes</summary>\n{shapes}\n</details>"


def _run(row: Row) -> list[str]:
    measured: Mapping[str, Any] = row.measured.model_dump()
    speed = "step_time_s" if measured["tokens_per_s_per_npu"] is None else "tokens_per_s_per_npu"
    unit = " s" if speed == "step_time_s" else " tokens/s"
    predicted = row.predicted
    gib = measured["peak_memory_gib"]
    timed = measured[speed] is not None
    notes = [
        row.skipped or "",
        "" if row.counts_for_time else "few iterations: not counted for time",
        *row.diagnoses,
        *row.warnings,
    ]
    return [
        row.id,
        row.model,
        f"{measured[speed]:,.4g}{unit}" if timed else "",
        f"{getattr(predicted, speed):,.4g}{unit}" if timed and predicted else "",
        _share(row.error.time, sign=True),
        f"{gib:.1f}" if gib is not None else "",
        f"{predicted.peak_memory_gib:.1f}" if gib is not None and predicted else "",
        _share(row.error.memory, sign=True),
        ", ".join(f"{n.removesuffix('_s').replace('_', ' ')} {100 * s:.0f} %" for n, s in row.parts.items()),
        "; ".join(note for note in notes if note),
    ]


def _share(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"
