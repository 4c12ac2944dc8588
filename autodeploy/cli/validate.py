"""`autodeploy validate`: predictions against measured runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import Output  # noqa: TC001 - typer reads annotations while the program runs

if TYPE_CHECKING:
    from autodeploy.calibration.unmeasured import UnmeasuredReport

app = typer.Typer()


class ValidationFormat(StrEnum):
    """How the comparison is shown."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"


@app.command(epilog="Example: autodeploy validate runs.jsonl -f json")
def validate(
    records: Annotated[Path, typer.Argument(metavar="RECORDS.jsonl", help="measured runs, one JSON object a line")],
    profile_overlay: Annotated[
        Path | None, typer.Option("--profile-overlay", metavar="FILE", help="calibrated numbers over the profile's")
    ] = None,
    output_format: Annotated[
        ValidationFormat, typer.Option("-f", "--format", help="html is one file with the plot and tables")
    ] = ValidationFormat.TABLE,
    output: Output = None,
) -> None:
    """Predict every measured run and say how far off the prediction is."""
    from autodeploy.cli.output import write_report
    from autodeploy.errors import SpecError
    from autodeploy.specs.record import Unread, read_lines

    if not records.is_file():
        raise SpecError(f"{records} is not a file", hint="a JSON Lines file of measured runs")
    from autodeploy.calibration.validate import validate as compare

    lines = list(read_lines(records))
    measured = [line for line in lines if not isinstance(line, Unread)]
    unread = [line for line in lines if isinstance(line, Unread)]
    if unread and not measured:
        raise unread[0].error
    report = compare(measured, profile_overlay, unread)
    if output_format is ValidationFormat.JSON:
        write_report(report.model_dump_json(indent=2), output)
    elif output_format is ValidationFormat.HTML:
        from autodeploy.cli.validate_html import report_html

        write_report(report_html(report, measured), output)
    else:
        write_report(report_text(report.model_dump(mode="json")) + unmeasured_text(report.unmeasured), output)


def report_text(report: dict[str, Any]) -> str:
    """One line a run, then the summary: all errors are predicted / measured - 1."""
    from autodeploy.cli.output import table_text

    columns = ["run", "tokens/s/card", "predicted", "error", "GiB", "predicted", "error", "skipped"]
    rows = [_row(row) for row in report["rows"]]
    lines = [table_text(columns, rows, right=frozenset(range(1, 7)))]
    summary = report["summary"]
    for name in ("time", "memory"):
        lines.append(f"{name}: {_statistics(summary[name])}\n")
    by_class = summary.get("by_class") or {}
    lines += [f"  {name}: {_by_class(values)}\n" for name, values in by_class.items()]
    said = [f"  {row['id']}: {text}\n" for row in report["rows"] for text in row.get("diagnoses") or ()]
    lines += ["read otherwise than written:\n", *said] if said else []
    skipped = [row for row in report["rows"] if row.get("skipped")]
    lines.append(f"{len(report['rows'])} runs, {len(skipped)} skipped\n")
    return "".join(lines)


def unmeasured_text(report: UnmeasuredReport) -> str:
    """Shapes and sizes without a measured efficiency by class; -f json and html list each."""
    from autodeploy.calibration.unmeasured import class_lines

    if not report.classes:
        return ""
    lines = class_lines(report)
    return "no measured efficiency for:\n" + "".join(f"  {line}\n" for line in lines) if lines else ""


def _row(row: dict[str, Any]) -> list[str]:
    measured, predicted = row.get("measured") or {}, row.get("predicted") or {}
    error = row.get("error") or {}
    speed = "tokens_per_s_per_npu" if measured.get("tokens_per_s_per_npu") is not None else "step_time_s"
    unit = " s" if speed == "step_time_s" and measured.get(speed) is not None else ""
    return [
        str(row["id"]),
        _number(measured.get(speed)) + unit,
        _number(predicted.get(speed)) + (unit if predicted.get(speed) is not None else ""),
        _share(error.get("time")),
        _number(measured.get("peak_memory_gib")),
        _number(predicted.get("peak_memory_gib")) if measured.get("peak_memory_gib") is not None else "",
        _share(error.get("memory")),
        str(row.get("skipped") or ""),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def _statistics(values: dict[str, Any] | None) -> str:
    if not values or not values.get("n"):
        return "nothing to compare"
    parts = [f"{values['n']} runs"]
    for name, title in (
        ("median_ape", "median error"),
        ("mape", "mean"),
        ("p90_ape", "90th percentile"),
        ("bias", "bias"),
    ):
        if values.get(name) is not None:
            parts.append(f"{title} {100 * values[name]:.1f} %")
    return ", ".join(parts)


def _by_class(values: Any) -> str:
    if not isinstance(values, dict):
        return str(values)
    if "n" in values:
        return _statistics(values)
    return "; ".join(f"{name} {_statistics(part)}" for name, part in values.items())
