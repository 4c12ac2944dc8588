"""`autodeploy ablate`: what each feature buys."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.exits import GATE_FAILED
from autodeploy.cli.options import ListFormat, Output, SimpleFormat, read_spec

if TYPE_CHECKING:
    from autodeploy.specs.ablation import AblationReport, AblationRow

app = typer.Typer()
WITHIN_SHARE = 0.8  # of the published figures, for the command to pass
TITLES = {
    "baseline": "All features off",
    "alone": "Each alone, against all off",
    "cumulative": "One after the other, against the row above",
    "leave_one_out": "Each left out, against all on",
}


@app.command(epilog="Example: autodeploy ablate spec.yaml --order adaptive_pipe,edpb")
def ablate(
    spec: Annotated[str | None, typer.Argument(metavar="SPEC", help="YAML or JSON spec; - reads stdin")] = None,
    published: Annotated[bool, typer.Option("--published", help="reproduce the published effects")] = False,
    cases: Annotated[
        Path | None, typer.Option("--cases", metavar="FOLDER", help="with --published: cases of your own")
    ] = None,
    order: Annotated[str, typer.Option("--order", metavar="FEATURE,...", help="order of the cumulative rows")] = "",
    output_format: SimpleFormat = ListFormat.TABLE,
    output: Output = None,
) -> None:
    """Switch features of a strategy one at a time; or compare the published effects with this model.

    The strategy is the spec's own, or the best plan of a search. `--published` exits with 1 when fewer than four of
    five figures are within their tolerance.
    """
    from autodeploy.cli.output import talk, write_report

    if published:
        from autodeploy.ablation.cases import CASES
        from autodeploy.ablation.published import ablate_published

        report = ablate_published(cases or CASES, tell=talk)
        text = published_text(report)
    else:
        from autodeploy.ablation.ablate import ablate as ablate_spec
        from autodeploy.errors import SpecError

        if spec is None:
            raise SpecError("give a spec, or --published", hint="autodeploy ablate examples/llama2_70b_32.yaml")
        names = [name.strip() for name in order.split(",") if name.strip()]
        report = ablate_spec(read_spec(spec), order=names)
        text = ablation_text(report)
    write_report(report.model_dump_json(indent=2) if output_format is ListFormat.JSON else text, output)
    within = [row.within_tolerance for row in report.rows if row.within_tolerance is not None]
    if published and sum(within) < WITHIN_SHARE * len(within):
        raise typer.Exit(GATE_FAILED)


def ablation_text(report: AblationReport) -> str:
    """A table for each way to switch."""
    from autodeploy.cli.output import table_text

    blocks = []
    for mode, title in TITLES.items():
        rows = [_cells(row) for row in report.rows if row.mode == mode]
        columns = ["feature", "s/step", "throughput", "GiB", "what moved"]
        blocks.append(f"{title}\n{table_text(columns, rows, right=frozenset({1, 2, 3}))}")
    return "\n".join(blocks)


def _cells(row: AblationRow) -> list[str]:
    from autodeploy.reports.wording import seconds

    assert row.step_time_s is not None
    assert row.peak_memory_gib is not None
    moved = ", ".join(f"{part.removesuffix('_s')} {change:+.3g} s" for part, change in list(row.moved.items())[:2])
    change = "" if row.mode == "baseline" else f"{row.predicted:+.1f} %"
    room = "" if row.fits else " !"
    return [row.feature, seconds(row.step_time_s), change, f"{row.peak_memory_gib:.1f}{room}", moved]


def published_text(report: AblationReport) -> str:
    """Published against predicted, then how many are within tolerance and why the others are not."""
    from autodeploy.cli.output import table_text

    rows = [
        [
            row.case if row.feature == row.case else f"{row.case}: {row.feature}",
            f"{row.published:.4g} {row.unit}",
            f"{row.predicted:.4g}",
            row.tolerance or "",
            "within" if row.within_tolerance else "MISS",
        ]
        for row in report.rows
    ]
    columns = ["effect", "published", "predicted", "tolerance", ""]
    lines = [table_text(columns, rows, right=frozenset({1, 2}))]
    lines += [f"{row.case}: {row.feature}: {row.reason}\n" for row in report.rows if row.reason]
    within = sum(bool(row.within_tolerance) for row in report.rows)
    lines.append(f"{within} of {len(report.rows)} figures within their tolerance\n")
    return "\n".join(lines)
