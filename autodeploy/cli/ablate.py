"""`autodeploy ablate`: what each feature buys."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.exits import GATE_FAILED
from autodeploy.cli.options import Lang, LanguageOption, ListFormat, Output, SimpleFormat, language, read_spec
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.plan_details import AblationReport, AblationRow

app = typer.Typer()
WITHIN_SHARE = 0.8  # of the published figures, for the command to pass
MODES = ("baseline", "alone", "cumulative", "leave_one_out")


@app.command(epilog="Example: autodeploy ablate spec.yaml --order adaptive_pipe,edpb")
def ablate(
    spec: Annotated[
        str | None, typer.Argument(metavar="SPEC", help="spec in YAML or JSON; - reads YAML from stdin")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="predict the published ablations instead, and compare")
    ] = False,
    cases: Annotated[
        Path | None, typer.Option("--cases", metavar="FOLDER", help="with --published: a folder of your own cases")
    ] = None,
    order: Annotated[
        str, typer.Option("--order", metavar="FEATURE,...", help="order in which features are accumulated")
    ] = "",
    output_format: SimpleFormat = ListFormat.TABLE,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Predict what each feature of a strategy contributes, or compare published ablations with predictions.

    The strategy is the spec's own, or the best plan of a search. `--published` exits with 1 if
    fewer than 80 % of the published figures are reproduced within their tolerance.
    """
    from autodeploy.cli.output import talk, write_report

    if published:
        from autodeploy.analysis.ablation.cases import CASES
        from autodeploy.analysis.ablation.published import ablate_published

        report = ablate_published(cases or CASES, tell=talk)
        text = published_text(report, language(lang))
    else:
        from autodeploy.analysis.ablation.feature_ablation import ablate as ablate_spec
        from autodeploy.kit.errors import SpecError

        if spec is None:
            raise SpecError(Message("common.give_either", one="SPEC", other="--published"))
        names = [name.strip() for name in order.split(",") if name.strip()]
        report = ablate_spec(read_spec(spec), order=names)
        text = ablation_text(report, language(lang))
    write_report(report.model_dump_json(indent=2) if output_format is ListFormat.JSON else text, output)
    within = [row.within_tolerance for row in report.rows if row.within_tolerance is not None]
    if published and sum(within) < WITHIN_SHARE * len(within):
        raise typer.Exit(GATE_FAILED)


def ablation_text(report: AblationReport, lang: Language = "en") -> str:
    """A table for each way to switch."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.wording import command_text

    blocks = []
    names = ("feature", "s_per_step", "throughput", "moved")
    feature, step, throughput, moved = (command_text(lang, name) for name in names)
    for mode in MODES:
        rows = [_cells(row, lang) for row in report.rows if row.mode == mode]
        table = table_text([feature, step, throughput, "GiB", moved], rows, right=frozenset({1, 2, 3}))
        blocks.append(f"{command_text(lang, mode)}\n{table}")
    return "\n".join(blocks)


def _cells(row: AblationRow, lang: Language) -> list[str]:
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import part_name, report_text, seconds

    if row.step_time_s is None or row.peak_memory_gib is None:
        return [row.feature, "-", "", "- !", in_language(row.reason or "", lang)]
    moved = report_text(lang, "comma").join(
        f"{part_name(lang, part) if part in part_name else part} {change:+.3g} s"
        for part, change in list(row.moved.items())[:2]
    )
    change = "" if row.mode == "baseline" or row.predicted is None else f"{row.predicted:+z.1f} %"
    room = "" if row.fits else " !"
    return [row.feature, seconds(row.step_time_s), change, f"{row.peak_memory_gib:.1f}{room}", moved]


def published_text(report: AblationReport, lang: Language = "en") -> str:
    """Published against predicted, then how many are within tolerance and why the others are not."""
    from autodeploy.cli.output import table_text
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import check_text, command_text, titled

    rows = [
        [
            row.case if row.feature == row.case else titled(lang, row.case, row.feature),
            f"{row.published:.4g} {row.unit}",
            "" if row.predicted is None else f"{row.predicted:.4g}",
            row.tolerance or "",
            check_text(lang, "passed" if row.within_tolerance else "failed"),
        ]
        for row in report.rows
    ]
    columns = [command_text(lang, name) for name in ("feature", "published", "predicted", "tolerance", "verdict")]
    lines = [table_text(columns, rows, right=frozenset({1, 2}))]
    why = ((row, in_language(row.reason, lang)) for row in report.rows if row.reason)
    lines += [titled(lang, titled(lang, row.case, row.feature), reason) + "\n" for row, reason in why]
    within = sum(bool(row.within_tolerance) for row in report.rows)
    lines.append(command_text(lang, "within_count", within=within, count=len(report.rows)) + "\n")
    return "\n".join(lines)
