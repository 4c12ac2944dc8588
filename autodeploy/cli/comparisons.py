"""`autodeploy compare` and `ablate`: plans side by side, features one by one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from autodeploy.cli.exits import GATE_FAILED
from autodeploy.cli.options import Lang, LanguageOption, ListFormat, Output, Server, SimpleFormat, language, read_spec
from autodeploy.cli.remote import answer_of
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.plan_details import AblationReport, AblationRow, Comparison
    from autodeploy.specs.published_effects import Outcome, PublishedReport, PublishedRow


compare_app = typer.Typer()


class CompareFormat(StrEnum):
    """Formats of a comparison."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


@compare_app.command(
    epilog="Examples: autodeploy compare p_7kq2abcd p_x2m4abcd; autodeploy compare before.json after.json"
)
def compare(
    plans: Annotated[
        list[str], typer.Argument(metavar="A B...", help="plan ids, or PlanSet files, of which the best plan counts")
    ],
    server: Server = None,
    output_format: Annotated[CompareFormat, typer.Option("-f", "--format", help="json: the Comparison")] = (
        CompareFormat.TABLE
    ),
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Show the differences between two to five plans."""
    from autodeploy.cli.check import baseline_document
    from autodeploy.cli.output import write_report
    from autodeploy.kit.errors import SpecError
    from autodeploy.reports.comparison import render_comparison_markdown
    from autodeploy.specs.questions import CompareRequest

    if not 2 <= len(plans) <= 5:
        raise SpecError(Message("field_fault.has_entries", count=len(plans)), path="A B...", hint="2 to 5")
    named = [document for plan in plans if (document := baseline_document(plan)) is not None]
    asked = CompareRequest(plans=tuple(named))
    comparison = answer_of(server, lambda of: of.compare(asked))
    if output_format is CompareFormat.JSON:
        write_report(comparison.model_dump_json(indent=2), output)
    elif output_format is CompareFormat.MARKDOWN:
        write_report(render_comparison_markdown(comparison, language(lang)), output)
    else:
        write_report(comparison_text(comparison, language(lang)), output)


def comparison_text(comparison: Comparison, lang: Language) -> str:
    """The plans, a table for each group of fields, and what becomes of checkpoints."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.comparison import checkpoint_lines, comparison_tables
    from autodeploy.reports.wording import check_text

    blocks = [f"{plan.plan_id}  {plan.model}  {plan.layout}" for plan in comparison.plans]
    blocks.append("")
    for table in comparison_tables(comparison, lang):
        blocks.append(table_text(table.titles, table.rows, right=frozenset(table.right)))
    if not comparison.differences:
        blocks.append(check_text(lang, "all_equal"))
    return "\n".join([*blocks, *checkpoint_lines(comparison, lang)])


ablate_app = typer.Typer()


@ablate_app.command(epilog="Example: autodeploy ablate spec.yaml --order adaptive_pipe,edpb")
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
    quick: Annotated[
        bool, typer.Option("--quick", help="with --published: without the ends of what the cases assume")
    ] = False,
    order: Annotated[
        str, typer.Option("--order", metavar="FEATURE,...", help="order in which features are accumulated")
    ] = "",
    output_format: SimpleFormat = ListFormat.TABLE,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Predict what each feature of a strategy contributes, or compare published ablations with predictions.

    The strategy is the spec's own, or the best plan of a search. `--published` exits with 1 if
    a figure is missed and no flip of one named input explains it.
    """
    from autodeploy.cli.output import talk, write_report

    if published:
        from autodeploy.analysis.ablation.cases import CASES
        from autodeploy.analysis.ablation.published import ablate_published

        told = ablate_published(cases or CASES, ends=not quick, tell=talk)
        shown = told.model_dump_json(indent=2)
        text = published_text(told, language(lang))
        failed = any(each.verdict == "missed" and each.confirmed < each.counted - each.met for each in told.systems)
    else:
        from autodeploy.cli.here import Here
        from autodeploy.kit.errors import SpecError

        if spec is None:
            raise SpecError(Message("common.give_either", one="SPEC", other="--published"))
        names = [name.strip() for name in order.split(",") if name.strip()]
        report = Here().ablate(read_spec(spec), names)
        shown, failed = report.model_dump_json(indent=2), False
        text = ablation_text(report, language(lang))
    write_report(shown if output_format is ListFormat.JSON else text, output)
    if failed:
        raise typer.Exit(GATE_FAILED)


def ablation_text(report: AblationReport, lang: Language = "en") -> str:
    """A table for each way to switch."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.wording import command_text
    from autodeploy.specs.plan_details import Mode

    blocks = []
    feature, step, throughput, moved = command_text.each(lang, "feature", "s_per_step", "throughput", "moved")
    for mode in get_args(Mode):
        rows = [_ablate_cells(row, lang) for row in report.rows if row.mode == mode]
        table = table_text([feature, step, throughput, "GiB", moved], rows, right=frozenset({1, 2, 3}))
        blocks.append(f"{command_text(lang, mode)}\n{table}")
    return "\n".join(blocks)


def _ablate_cells(row: AblationRow, lang: Language) -> list[str]:
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


def published_text(report: PublishedReport, lang: Language = "en") -> str:
    """Published against predicted, each row at both ends of what it assumes, and what the rows make of each system."""
    from autodeploy.cli.output import table_text
    from autodeploy.messages import label
    from autodeploy.reports.wording import command_text, titled

    rows = [
        [
            titled(lang, row.case, row.feature),
            row.unit if row.published is None else f"{row.published:.4g} {row.unit}",
            f"{row.predicted:.4g}",
            row.band,
            label(lang, row.verdict),
        ]
        for row in report.rows
    ]
    columns = command_text.each(lang, "feature", "published", "predicted", "tolerance", "verdict")
    lines = [table_text(columns, rows, right=frozenset({1, 2}))]
    lines += [text for row in report.rows if (text := _row_text(row, lang))]
    systems = [
        [label(lang, f"system_{each.system}"), label(lang, each.verdict), f"{each.met}/{each.counted}"]
        for each in report.systems
    ]
    lines.append(table_text(command_text.each(lang, "system", "verdict", "figures"), systems))
    counted = [each for each in report.systems if each.verdict != "not_countable"]
    lines.append(
        command_text(
            lang,
            "published_count",
            met=sum(each.verdict == "met" for each in counted),
            count=len(counted),
            open=len(report.systems) - len(counted),
            rows=sum(row.verdict == "met" for row in report.rows),
            figures=sum(row.verdict != "not_countable" for row in report.rows),
        )
        + "\n"
    )
    return "\n".join(lines)


def _row_text(row: PublishedRow, lang: Language) -> str:
    """A row's words, further figures, ends of its assumed inputs and cause of a miss, in lines of their own."""
    from autodeploy.reports.wording import command_text, titled

    lines = [f"  {row.says}"]
    if row.beside:
        lines.append("  " + ", ".join(f"{name} {value:.4g}" for name, value in row.beside.items()))
    for path in dict.fromkeys(each.input for each in row.ends):
        ends = "; ".join(_outcome_text(each) for each in row.ends if each.input == path)
        lines.append(f"  {path}: {ends}")
    if row.flip is not None:
        confirmed = "confirmed_cause" if row.has_confirmed_cause else "unconfirmed_cause"
        cause = command_text(lang, confirmed, input=row.flip.input, outcome=_outcome_text(row.flip))
        lines.append(f"  {titled(lang, cause, row.why)}")
    return "\n".join([titled(lang, row.case, row.feature), *lines, ""])


def _outcome_text(outcome: Outcome) -> str:
    figure = "-" if outcome.predicted is None else f"{outcome.predicted:.4g}"
    return f"{outcome.value} -> {figure}"
