"""The validation report as one HTML file: a plot and tables, readable without scripts and without a network."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from autodeploy.calibration.validation import RlRow, Row, ServedRow
from autodeploy.cli.validate import extent_words, statistics_table, unmeasured_table
from autodeploy.messages import in_language, text_of
from autodeploy.reports.figures.charts import Point, predicted_against_measured, predicted_against_measured_svg
from autodeploy.reports.figures.layout import figure_json, plotly_js
from autodeploy.reports.wording import command_text, part_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

    from autodeploy.calibration.unmeasured import UnmeasuredReport
    from autodeploy.calibration.validation import ValidationReport
    from autodeploy.messages import Language
    from autodeploy.specs.record import Record

Kind = TypeVar("Kind", Row, ServedRow, RlRow)

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b2430}
table{border-collapse:collapse;margin:1rem 0;font-size:13px}caption{text-align:left;font-weight:600;padding:.3rem 0}
th,td{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"""
# The static plot is there from the start; plotly.js takes its place where scripts run.
SCRIPT = """const plot=document.getElementById("plot"),figure=JSON.parse(document.getElementById("figure").textContent);
plot.replaceChildren();Plotly.newPlot(plot,figure.data,figure.layout,{displaylogo:false,responsive:true});"""


def report_html(report: ValidationReport, records: Sequence[Record], lang: Language = "en") -> str:
    """The whole page; the same bytes for the same report.

    records : those of the report's first rows, in their order; rows of unread lines follow.
    """
    points = speed_points(report, records, lang)
    runs, served, steps = _rows_of(report, Row), _rows_of(report, ServedRow), _rows_of(report, RlRow)
    title = command_text(lang, "predicted_against_measured")
    parts = [
        f'<!doctype html>\n<html lang="{lang}">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
        f"<p>{escape(command_text(lang, 'what_errors_are'))}</p>",
        f'<div id="plot">{predicted_against_measured_svg(points, title, lang=lang)}</div>' if points else "",
        _table(
            command_text(lang, "error"), *statistics_table(report.summary.model_dump(), lang), frozenset(range(1, 6))
        ),
        _runs_table(runs, lang) if runs or not (served or steps) else "",
        _served_table(served, lang) if served else "",
        _steps_table(steps, lang) if steps else "",
        *_unmeasured_tables(report.unmeasured, lang),
        _scripts(points, lang) if points else "",
        "</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part)


def speed_points(report: ValidationReport, records: Sequence[Record], lang: Language = "en") -> list[Point]:
    """Measured and predicted tokens per second and card of every run that counts for time."""
    points = []
    for row, record in zip(_rows_of(report, Row), records, strict=False):
        if row.predicted is not None and row.error.time is not None and row.counts_for_time:
            predicted = row.predicted.tokens_per_s_per_npu
            kind = "experts" if record.model.is_moe else "dense"
            group = text_of(lang, f"page.accuracy.{kind}", device=record.cluster.profile)
            points.append(Point(f"{row.model} ({row.id})", group, predicted / (1.0 + row.error.time), predicted))
    return points


def _rows_of(report: ValidationReport, kind: type[Kind]) -> list[Kind]:
    return [row for row in report.rows if isinstance(row, kind)]


def _scripts(points: Sequence[Point], lang: Language) -> str:
    figure = json.dumps(figure_json(predicted_against_measured(points, lang)), allow_nan=False, sort_keys=True)
    figure = figure.replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="figure">{figure}</script>\n'
        f"<script>{plotly_js()}</script>\n<script>{SCRIPT}</script>"
    )


def _table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Set[int]) -> str:

    def line(tag: str, cells: Sequence[str]) -> str:
        marked = (f"<{tag}{' class=n' if i in numbers else ''}>{escape(c)}</{tag}>" for i, c in enumerate(cells))
        return f"<tr>{''.join(marked)}</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return (
        f"<table>\n<caption>{escape(caption)}</caption>\n<thead>{line('th', titles)}</thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>"
    )


def _runs(lang: Language, names: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[int]) -> str:
    """A table of runs; the titles are keys of section `command`, but for units and TPOT."""
    titles = [name if name.isupper() or "/" in name else command_text(lang, name) for name in names]
    return _table(command_text(lang, "run"), titles, rows, numbers)


def _runs_table(rows: Sequence[Row], lang: Language) -> str:
    titles = ["run", "model", "measured", "predicted", "error", "gib", "predicted", "error", "part", "notes"]
    return _runs(lang, titles, [_run(row, lang) for row in rows], frozenset(range(2, 8)))


def _served_table(rows: Sequence[ServedRow], lang: Language) -> str:
    """Measured serving: time per output token [ms], tokens per second and die."""
    titles = ["run", "model", "TPOT", "predicted", "error", "tokens/s/die", "predicted", "error", "part", "notes"]
    return _runs(lang, titles, [_served(row, lang) for row in rows], frozenset(range(2, 8)))


def _served(row: ServedRow, lang: Language) -> list[str]:
    measured, predicted = row.measured, row.predicted
    notes = [row.skipped or "", *row.diagnoses, *row.warnings]
    return [
        row.id,
        row.model,
        _rounded(measured.tpot_ms, " ms"),
        _rounded(predicted.tpot_ms if predicted else None, " ms"),
        _html_share(row.error.tpot, sign=True),
        _rounded(measured.decode_tokens_per_s_per_die),
        _rounded(predicted.decode_tokens_per_s_per_die if predicted else None),
        _html_share(row.error.time, sign=True),
        ", ".join(f"{name.removesuffix('_s')} {100 * s:.0f} %" for name, s in row.parts.items()),
        "; ".join(in_language(note, lang) for note in notes if note),
    ]


def _steps_table(rows: Sequence[RlRow], lang: Language) -> str:
    """Measured steps of post-training: step time [s], tokens per second and card."""
    titles = ["run", "model", "step", "predicted", "tokens_per_s_per_npu", "predicted", "error", "part", "notes"]
    return _runs(lang, titles, [_step(row, lang) for row in rows], frozenset(range(2, 7)))


def _step(row: RlRow, lang: Language) -> list[str]:
    measured, predicted = row.measured, row.predicted
    notes = [row.skipped or "", *row.diagnoses, *row.warnings]
    return [
        row.id,
        row.model,
        _rounded(measured.step_time_s, " s"),
        _rounded(predicted.step_time_s if predicted else None, " s"),
        _rounded(measured.tokens_per_s_per_npu),
        _rounded(predicted.tokens_per_s_per_npu if predicted else None),
        _html_share(row.error.time, sign=True),
        ", ".join(f"{part_name(lang, name)} {100 * s:.0f} %" for name, s in row.parts.items()),
        "; ".join(in_language(note, lang) for note in notes if note),
    ]


def _rounded(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:,.4g}{unit}"


def _unmeasured_tables(report: UnmeasuredReport, lang: Language) -> Iterator[str]:
    """Classes of shapes without a measured efficiency, then every such shape."""
    if not report.shapes:
        return
    yield _table(command_text(lang, "unmeasured"), *unmeasured_table(report, lang))
    each = [
        [
            s.profile,
            s.kind,
            extent_words({axis: (v, v) for axis, v in s.shape.items()}),
            s.number,
            text_of(lang, f"shape_reason.{s.reason.replace(' ', '_')}"),
            str(s.runs),
        ]
        for s in report.shapes
    ]
    titles = [command_text(lang, name) for name in ("profile", "kind", "shape", "number", "why", "runs")]
    shapes = _table("", titles, each, frozenset({5}))
    yield f"<details>\n<summary>{command_text(lang, 'shape')} ({len(each)})</summary>\n{shapes}\n</details>"


def _run(row: Row, lang: Language) -> list[str]:
    measured: Mapping[str, Any] = row.measured.model_dump()
    speed = "step_time_s" if measured["tokens_per_s_per_npu"] is None else "tokens_per_s_per_npu"
    unit = " s" if speed == "step_time_s" else " tokens/s"
    predicted = row.predicted
    gib = measured["peak_memory_gib"]
    timed = measured[speed] is not None
    notes = [
        row.skipped or "",
        "" if row.counts_for_time else command_text(lang, "few_iterations"),
        *row.diagnoses,
        *row.warnings,
    ]
    return [
        row.id,
        row.model,
        f"{measured[speed]:,.4g}{unit}" if timed else "",
        f"{getattr(predicted, speed):,.4g}{unit}" if timed and predicted else "",
        _html_share(row.error.time, sign=True),
        f"{gib:.1f}" if gib is not None else "",
        f"{predicted.peak_memory_gib:.1f}" if gib is not None and predicted else "",
        _html_share(row.error.memory, sign=True),
        ", ".join(f"{_part(n, lang)} {100 * s:.0f} %" for n, s in row.parts.items()),
        "; ".join(in_language(note, lang) for note in notes if note),
    ]


def _part(name: str, lang: Language) -> str:
    if lang != "en" and name in part_name:
        return part_name(lang, name)
    return name.removesuffix("_s").replace("_", " ")


def _html_share(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"
