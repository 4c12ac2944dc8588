"""`autodeploy validate`: predictions against measured runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import Lang, LanguageOption, Output, language

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.calibration.unmeasured import UnmeasuredReport
    from autodeploy.messages import Language
    from autodeploy.reports.tables import Table

app = typer.Typer()
SERVED = "generation"  # kind of rows of measured serving


class ValidationFormat(StrEnum):
    """Formats of the comparison."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"


@app.command(epilog="Example: autodeploy validate runs.jsonl -f json")
def validate(
    records: Annotated[Path, typer.Argument(metavar="RECORDS.jsonl", help="measured runs, one JSON object per line")],
    profile_overlay: Annotated[
        Path | None,
        typer.Option("--profile-overlay", metavar="FILE", help="calibration overlay to apply to the profile"),
    ] = None,
    output_format: Annotated[
        ValidationFormat, typer.Option("-f", "--format", help="html: a single file with plots and tables")
    ] = ValidationFormat.TABLE,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Predict measured runs and report the errors."""
    from autodeploy.calibration.validation import validate_file
    from autodeploy.cli.output import write_report

    report, measured = validate_file(records, profile_overlay)
    if output_format is ValidationFormat.JSON:
        write_report(report.model_dump_json(indent=2), output)
    elif output_format is ValidationFormat.HTML:
        from autodeploy.cli.validate_html import report_html

        write_report(report_html(report, measured, language(lang)), output)
    else:
        spoken = language(lang)
        text = report_text(report.model_dump(mode="json"), spoken) + unmeasured_text(report.unmeasured, spoken)
        write_report(text, output)


def report_text(report: dict[str, Any], lang: Language = "en") -> str:
    """One line a run, then the summary: all errors are predicted / measured - 1 of speeds and of memory."""
    from autodeploy.cli.output import table_text
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import command_text, titled

    names = ("run", "tokens_per_s_per_npu", "predicted", "error", "why")
    run, tokens, predicted, error, skipped = command_text.each(lang, *names)
    columns = [run, tokens, predicted, error, "GiB", predicted, error, skipped]
    trained = [row for row in report["rows"] if row.get("kind") != SERVED]
    served = [row for row in report["rows"] if row.get("kind") == SERVED]
    lines = []
    if trained or not served:
        lines.append(table_text(columns, [_row(row, lang) for row in trained], right=frozenset(range(1, 7))))
    if served:
        titles = [run, *(f"{name} ms" for name in ("TPOT", predicted)), error, "tokens/s/die"]
        titles += [predicted, error, skipped]
        lines.append(table_text(titles, [_served_row(row, lang) for row in served], right=frozenset(range(1, 7))))
    lines.append("\n" + table_text(*statistics_table(report["summary"], lang), right=frozenset(range(1, 6))) + "\n")
    said = [(row["id"], text) for row in report["rows"] for text in row.get("diagnoses") or ()]
    if said:
        lines.append(command_text(lang, "notes") + "\n")
        lines += [f"  {titled(lang, name, in_language(text, lang))}\n" for name, text in said]
    count = sum(1 for row in report["rows"] if not row.get("skipped"))
    lines.append(titled(lang, command_text(lang, "runs"), f"{count}/{len(report['rows'])}") + "\n")
    return "".join(lines)


def unmeasured_text(report: UnmeasuredReport, lang: Language = "en") -> str:
    """Shapes and sizes without a measured efficiency by class; -f json and html list each."""
    from autodeploy.reports.tables import Block, in_columns
    from autodeploy.reports.wording import command_text

    block = Block(command_text(lang, "unmeasured"), table=unmeasured_table(report, lang))
    return f"\n{in_columns(block)}" if block.table and block.table.rows else ""


def statistics_table(summary: dict[str, Any], lang: Language) -> tuple[list[str], list[list[str]]]:
    """Titles and rows: errors of each set of records, then of time by class."""
    from autodeploy.reports.wording import command_text, signed_percent

    sets = [(command_text(lang, name), summary.get(name)) for name in ("time", "peak_memory")]
    sets += [("TPOT", summary.get("tpot")), (command_text(lang, "rl"), summary.get("rl"))]
    sets += [(f"  {name}", values) for name, values in (summary.get("by_class") or {}).items()]
    shares = ("mape", "median_ape", "p90_ape")
    rows = [
        [name, str(s["n"]), *(f"{100 * s[share]:.1f} %" for share in shares), signed_percent(s["bias"])]
        for name, s in sets
        if s and s["n"]
    ]
    runs, mean, bias = command_text.each(lang, "runs", "mean", "bias")
    return ["", runs, mean, "P50", "P90", bias], rows


def unmeasured_table(report: UnmeasuredReport, lang: Language) -> Table:
    """Classes of shapes of which some have no measured efficiency: of how many, and how far these reach."""
    from autodeploy.messages import text_of
    from autodeploy.reports.tables import Table
    from autodeploy.reports.wording import command_text

    rows = [
        [c.number, c.number_kind, f"{c.unmeasured}/{c.shapes}", f"{c.profile}, {c.kind}: {extent_words(c.extent)}"]
        for c in report.classes
        if c.unmeasured
    ]
    number, kind, shape = command_text.each(lang, "number", "kind", "shape")
    return Table([number, kind, text_of(lang, "shape_reason.not_measured"), shape], rows, {2})


def extent_words(extent: Mapping[str, tuple[int, int]]) -> str:
    """`m 512-8192, n 1024`."""
    parts = [f"{axis} {low:,}" if low == high else f"{axis} {low:,}-{high:,}" for axis, (low, high) in extent.items()]
    return ", ".join(parts)


def _row(row: dict[str, Any], lang: Language) -> list[str]:
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import signed_percent

    measured, predicted = row.get("measured") or {}, row.get("predicted") or {}
    error = row.get("error") or {}
    speed = "tokens_per_s_per_npu" if measured.get("tokens_per_s_per_npu") is not None else "step_time_s"
    unit = " s" if speed == "step_time_s" and measured.get(speed) is not None else ""
    return [
        str(row["id"]),
        _number(measured.get(speed)) + unit,
        _number(predicted.get(speed)) + (unit if predicted.get(speed) is not None else ""),
        signed_percent(error.get("time")),
        _number(measured.get("peak_memory_gib")),
        _number(predicted.get("peak_memory_gib")) if measured.get("peak_memory_gib") is not None else "",
        signed_percent(error.get("memory")),
        in_language(str(row.get("skipped") or ""), lang),
    ]


def _served_row(row: dict[str, Any], lang: Language) -> list[str]:
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import signed_percent

    measured, predicted, error = (row.get(name) or {} for name in ("measured", "predicted", "error"))
    rate = "decode_tokens_per_s_per_die"
    return [
        str(row["id"]),
        _number(measured.get("tpot_ms")),
        _number(predicted.get("tpot_ms")),
        signed_percent(error.get("tpot")),
        _number(measured.get(rate)),
        _number(predicted.get(rate)),
        signed_percent(error.get("time")),
        in_language(str(row.get("skipped") or ""), lang),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
