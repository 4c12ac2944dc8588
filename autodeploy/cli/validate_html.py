"""The validation report as one HTML file: a plot and tables, readable without scripts and without a network."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, TypeVar

from autodeploy.calibration.post_training import RlRow
from autodeploy.calibration.record_prediction import ComparedRow
from autodeploy.calibration.validation import Row, ServedRow
from autodeploy.cli.validate import extent_words, statistics_table, unmeasured_table
from autodeploy.messages import in_language, text_of
from autodeploy.reports.figures.charts import Point, predicted_against_measured, predicted_against_measured_svg
from autodeploy.reports.figures.layout import figure_json, plotly_js
from autodeploy.reports.wording import command_text, part_name, signed_percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Set

    from autodeploy.calibration.unmeasured import UnmeasuredReport
    from autodeploy.calibration.validation import ValidationReport
    from autodeploy.messages import Language
    from autodeploy.specs.record import Record

Kind = TypeVar("Kind", bound=ComparedRow)

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
        _trained_table(runs, lang) if runs or not (served or steps) else "",
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


def _runs(
    lang: Language,
    names: Sequence[str],
    rows: Sequence[Kind],
    cells: Callable[[Kind], list[str]],
    part: Callable[[str], str],
) -> str:
    """A table of runs of one kind: name and model, numbers, what takes time, notes.

    names : titles of the numbers, keys of section `command`, but for units and TPOT. cells : the numbers of a row.
    part : name of a part of the time.
    """
    keys = ("run", "model", *names, "part", "notes")
    titles = [key if key.isupper() or "/" in key else command_text(lang, key) for key in keys]
    table = [
        [
            *(row.id, row.model, *cells(row)),
            ", ".join(f"{part(name)} {100 * share:.0f} %" for name, share in row.parts.items()),
            "; ".join(in_language(note, lang) for note in _notes(row, lang)),
        ]
        for row in rows
    ]
    return _table(command_text(lang, "run"), titles, table, frozenset(range(2, 2 + len(names))))


def _notes(row: ComparedRow, lang: Language) -> Iterator[str]:
    if row.skipped:
        yield row.skipped
    if isinstance(row, Row) and not row.counts_for_time:
        yield command_text(lang, "few_iterations")
    yield from (*row.diagnoses, *row.warnings)


def _trained_table(rows: Sequence[Row], lang: Language) -> str:
    """Measured training: tokens per second and card, or step time [s], and memory [GiB]."""
    titles = ("measured", "predicted", "error", "gib", "predicted", "error")
    return _runs(lang, titles, rows, _trained, lambda name: _part(name, lang))


def _trained(row: Row) -> list[str]:
    measured, predicted = row.measured, row.predicted
    speed = "step_time_s" if measured.tokens_per_s_per_npu is None else "tokens_per_s_per_npu"
    unit = " s" if speed == "step_time_s" else " tokens/s"
    seen, gib = getattr(measured, speed), measured.peak_memory_gib
    return [
        _rounded(seen, unit),
        _rounded(getattr(predicted, speed), unit) if seen is not None and predicted else "",
        signed_percent(row.error.time),
        f"{gib:.1f}" if gib is not None else "",
        f"{predicted.peak_memory_gib:.1f}" if gib is not None and predicted else "",
        signed_percent(row.error.memory),
    ]


def _part(name: str, lang: Language) -> str:
    if lang != "en" and name in part_name:
        return part_name(lang, name)
    return name.removesuffix("_s").replace("_", " ")


def _served_table(rows: Sequence[ServedRow], lang: Language) -> str:
    """Measured serving: time per output token [ms], tokens per second and die."""
    titles = ("TPOT", "predicted", "error", "tokens/s/die", "predicted", "error")
    return _runs(lang, titles, rows, _served, lambda name: name.removesuffix("_s"))


def _served(row: ServedRow) -> list[str]:
    measured, predicted = row.measured, row.predicted
    return [
        _rounded(measured.tpot_ms, " ms"),
        _rounded(predicted.tpot_ms if predicted else None, " ms"),
        signed_percent(row.error.tpot),
        _rounded(measured.decode_tokens_per_s_per_die),
        _rounded(predicted.decode_tokens_per_s_per_die if predicted else None),
        signed_percent(row.error.time),
    ]


def _steps_table(rows: Sequence[RlRow], lang: Language) -> str:
    """Measured steps of post-training: step time [s], tokens per second and card."""
    titles = ("step", "predicted", "tokens_per_s_per_npu", "predicted", "error")
    return _runs(lang, titles, rows, _step, lambda name: part_name(lang, name))


def _step(row: RlRow) -> list[str]:
    measured, predicted = row.measured, row.predicted
    return [
        _rounded(measured.step_time_s, " s"),
        _rounded(predicted.step_time_s if predicted else None, " s"),
        _rounded(measured.tokens_per_s_per_npu),
        _rounded(predicted.tokens_per_s_per_npu if predicted else None),
        signed_percent(row.error.time),
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
    titles = command_text.each(lang, "profile", "kind", "shape", "number", "why", "runs")
    shapes = _table("", titles, each, frozenset({5}))
    yield f"<details>\n<summary>{command_text(lang, 'shape')} ({len(each)})</summary>\n{shapes}\n</details>"
