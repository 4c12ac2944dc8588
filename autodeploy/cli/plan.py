"""`autodeploy plan` and `autodeploy estimate`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.exits import exit_code
from autodeploy.cli.one_line import (
    BatchOption,
    CardsOption,
    ClusterOption,
    DeviceOption,
    ModelOption,
    SeqOption,
    TargetOption,
    TokensOption,
    one_line_spec,
)
from autodeploy.cli.options import (
    Format,
    Lang,
    LanguageOption,
    OptionalSpecFile,
    Output,
    ReportFormat,
    Server,
    SpecFile,
    language,
    read_spec,
)
from autodeploy.cli.remote import answer_of
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.kit.errors import SpecError
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec

app = typer.Typer()
SPARE_NODES = (1, 2, 4)


class Detail(StrEnum):
    """Levels of detail of an estimate."""

    OPERATORS = "operators"


@app.command(
    epilog="Examples: autodeploy plan examples/deepseek_v3_cloudmatrix_384.yaml; "
    "autodeploy plan spec.yaml -f json -o plans.json; autodeploy plan spec.yaml --lang zh; "
    "autodeploy plan --model config.json --cluster ascend-800t-a2 --cards 512 --seq 8k --batch 4M-tokens"
)
def plan(
    spec_file: OptionalSpecFile = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    device: DeviceOption = None,
    cards: CardsOption = None,
    seq: SeqOption = None,
    batch: BatchOption = None,
    tokens: TokensOption = None,
    target: TargetOption = None,
    server: Server = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, max=100, metavar="K", help="number of plans to rank and print")
    ] = None,
    detail: Annotated[
        bool,
        typer.Option("--detail", help="print the whole report: run, evidence, uncertain parameters"),
    ] = False,
    spare_table: Annotated[
        bool,
        typer.Option(
            "--spare-table",
            help="also plan with 1, 2 and 4 fewer nodes, and tell whether checkpoints of the best plan load there",
        ),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="search again where an equal spec was planned before")] = False,
    output_format: Format = ReportFormat.TABLE,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Find the best plans for a spec, or for the model and cluster that options name. Exit code 3: infeasible.

    An equal spec is answered from the database.
    """
    options = {"model": model, "cluster": cluster, "device": device, "cards": cards}
    options |= {"seq": seq, "batch": batch, "tokens": tokens, "target": target}
    spec = _with_top(one_line_spec(spec_file, options), top)
    if spare_table:
        spec = _with_spares(spec)
    plan_set = _plan_here(spec, fresh=fresh) if server is None else _plan_there(spec, server, fresh=fresh)
    show(plan_set, output_format, output, lang, detail=detail, server=server)
    raise typer.Exit(exit_code(plan_set.status))


@app.command(epilog="Example: autodeploy estimate spec.yaml -f json")
def estimate(
    spec_file: SpecFile,
    server: Server = None,
    detail: Annotated[
        Detail | None,
        typer.Option("--detail", help="operators: print the time of every operator instead, by kind of layer"),
    ] = None,
    output_format: Annotated[ReportFormat, typer.Option("-f", "--format", help="json: the Plan")] = (
        ReportFormat.TABLE
    ),
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Predict time and memory of the strategy in the spec. Exit code 3: it does not fit.

    Rules of the target that it violates stand above the prediction; the exit code is that of a prediction.
    """
    from autodeploy.cli.output import write_report, write_text_report
    from autodeploy.reports.plan_report import render_plan
    from autodeploy.specs.spec import no_strategy

    spec = read_spec(spec_file)
    if spec.strategy is None:
        raise no_strategy()
    if detail is Detail.OPERATORS:
        _show_operators(spec, server, output_format, output, lang)
        return
    predicted = answer_of(server, lambda asked: asked.estimate(spec))
    if output_format is ReportFormat.JSON:
        write_report(predicted.model_dump_json(indent=2), output)
    elif output_format is ReportFormat.TABLE:
        write_text_report(render_plan(spec, predicted, language(lang)), output)
    else:
        raise _no_such_form(output_format)
    raise typer.Exit(exit_code("optimal" if predicted.may_fit else "infeasible"))


def _show_operators(
    spec: Spec, server: str | None, output_format: ReportFormat, output: Path | None, lang: LanguageOption
) -> None:
    """The operators of the spec's strategy, as tables or JSON."""
    from autodeploy.cli.output import write_report, write_text_report
    from autodeploy.kit.errors import SpecError
    from autodeploy.reports.operator_table import render_operators
    from autodeploy.search.planner import operators

    if server is not None:
        raise SpecError(Message("common.excludes_it", what="--detail operators"), path="--server")
    report = operators(spec, answer_of(None, lambda here: here.estimate(spec)))
    if output_format is ReportFormat.JSON:
        write_report(report.model_dump_json(indent=2), output)
    elif output_format is ReportFormat.TABLE:
        write_text_report(render_operators(report, language(lang)), output)
    else:
        raise _no_such_form(output_format)


def _no_such_form(output_format: ReportFormat) -> SpecError:
    from autodeploy.kit.errors import SpecError

    message = Message("field_fault.is_invalid", value=repr(output_format.value))
    return SpecError(message, path="--format", hint=Message("common.one_of", names="table, json"))


def show(
    plan_set: PlanSet,
    output_format: ReportFormat,
    output: Path | None,
    lang: LanguageOption,
    *,
    detail: bool = False,
    server: str | None = None,
) -> None:
    """The PlanSet in the format asked for; `detail` is of the table, the other formats have all."""
    from autodeploy.cli.output import write_report, write_text_report

    if output_format is ReportFormat.JSON:
        write_report(plan_set.model_dump_json(indent=2), output)
    elif output_format is ReportFormat.MARKDOWN:
        from autodeploy.reports.plan_report import render_markdown

        write_report(render_markdown(plan_set, language(lang)), output)
    elif output_format is ReportFormat.CSV:
        from autodeploy.reports.documents import plans_csv

        write_report(plans_csv(plan_set), output)
    elif output_format is ReportFormat.HTML:
        from api.ui.report_page import search_report

        write_report(search_report(plan_set, language(lang)), output)
    else:
        from autodeploy.cli.output import columns
        from autodeploy.reports.first_report import render_first
        from autodeploy.reports.plan_report import render_plan_set

        render = render_plan_set if detail else render_first
        write_text_report(render(plan_set, language(lang), columns(), _next_lines(plan_set, server)), output)


def _next_lines(plan_set: PlanSet, server: str | None) -> list[str]:
    """Commands about the search where it is stored: in the service, or in the database of the settings."""
    from autodeploy.kit.settings import load_settings
    from autodeploy.reports.plan_report import next_steps
    from autodeploy.specs.spec import spec_of

    if server is None:
        settings = load_settings()
        site = f"http://{settings.host}:{settings.port}{settings.path_prefix}"
    return next_steps(plan_set, spec_of(plan_set.search), (server or site).rstrip("/"), served=server is not None)


def _with_top(spec: Spec, top: int | None) -> Spec:
    if top is None:
        return spec
    return spec.model_copy(update={"search": spec.search.model_copy(update={"top_k": top})})


def _with_spares(spec: Spec) -> Spec:
    search = spec.search.model_copy(update={"spare_nodes": spec.search.spare_nodes or SPARE_NODES})
    return spec.model_copy(update={"search": search})


def _plan_here(spec: Spec, *, fresh: bool = False) -> PlanSet:
    """In this process, stored in the database of the settings; an equal spec of before is answered from there."""
    from autodeploy.cli.output import SearchTalk, notify
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.searches.alone import searches_alone

    with searches_alone(load_settings()) as searches:
        equal = None if fresh else searches.planned_before(spec)
        if equal is not None:
            notify("answered", search=equal.search.id, date=equal.search.created_at[:16].replace("T", " "))
            return equal
        with SearchTalk() as talk:
            return searches.plan_and_store(spec, progress=talk, should_cancel=talk.should_cancel)


def _plan_there(spec: Spec, server: str, *, fresh: bool) -> PlanSet:
    from autodeploy.cli.output import SearchTalk
    from autodeploy.cli.remote import connect, plan_there

    with connect(server) as client, SearchTalk() as talk:
        return plan_there(client, spec, talk, fresh=fresh)
