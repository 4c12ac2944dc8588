"""`autodeploy compare`: plans side by side, differences only."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import Lang, LanguageOption, Output, Server, language
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.plan_details import Comparison

app = typer.Typer()


class CompareFormat(StrEnum):
    """How a comparison is shown."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


@app.command(epilog="Examples: autodeploy compare p_7kq2abcd p_x2m4abcd; autodeploy compare before.json after.json")
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

    if not 2 <= len(plans) <= 5:
        raise SpecError(Message("field_fault.has_entries", count=len(plans)), path="A B...", hint="2 to 5")
    named = [document for plan in plans if (document := baseline_document(plan)) is not None]
    comparison = _here(named) if server is None else _there(server, named)
    if output_format is CompareFormat.JSON:
        write_report(comparison.model_dump_json(indent=2), output)
    elif output_format is CompareFormat.MARKDOWN:
        write_report(render_comparison_markdown(comparison, language(lang)), output)
    else:
        write_report(comparison_text(comparison, language(lang)), output)


def _here(plans: list[str | dict[str, Any]]) -> Comparison:
    from autodeploy.kit.settings import load_settings
    from autodeploy.reports.comparison import compare_plans
    from autodeploy.service.requests.intake import best_of, with_checkpoints
    from autodeploy.service.session import open_services

    documents = [plan for plan in plans if isinstance(plan, dict)]
    if len(documents) == len(plans):
        pairs = [best_of(document) for document in documents]
        return with_checkpoints(compare_plans(pairs), pairs)
    with open_services(load_settings()) as services:
        return services.compare(plans)


def _there(server: str, plans: list[str | dict[str, Any]]) -> Comparison:
    from autodeploy.cli.remote import connect

    with connect(server) as client:
        return client.compare(plans)


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
