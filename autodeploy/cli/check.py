"""`autodeploy check`: a gate for CI."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.exits import GATE_FAILED
from autodeploy.cli.import_file import Cluster, Device, NumNpus, Settings  # noqa: TC001 - typer reads annotations
from autodeploy.cli.launch_file import LaunchFile, LaunchOptions, with_database
from autodeploy.cli.options import Lang, Output, Server, Tongue, language

if TYPE_CHECKING:
    from autodeploy.checks import Launch
    from autodeploy.specs.check import CheckLimits, CheckReport

app = typer.Typer()


class CheckFormat(StrEnum):
    """How a check is shown."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"


@app.command(
    epilog="Examples: autodeploy check pretrain.sh --cluster cloudmatrix-384; "
    "autodeploy check pretrain.sh --cluster ascend-800t-a2 --max-slowdown 5% --junit check.xml; "
    "autodeploy check launch.yaml --baseline best.json --min-mfu 0.35 --max-memory 95%"
)
def check(
    file: LaunchFile,
    cluster: Cluster = None,
    device: Device = None,
    num_npus: NumNpus = None,
    settings: Settings = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="PLAN", help="plan id, or a file with a PlanSet, plan or check")
    ] = None,
    min_mfu: Annotated[str | None, typer.Option("--min-mfu", metavar="X", help="such as 0.35 or 35%")] = None,
    max_memory: Annotated[str, typer.Option("--max-memory", metavar="X", help="of the card's usable memory")] = "100%",
    max_slowdown: Annotated[
        str | None, typer.Option("--max-slowdown", metavar="X", help="against the baseline, else against the best plan")
    ] = None,
    server: Server = None,
    output_format: Annotated[CheckFormat, typer.Option("-f", "--format", help="json prints the CheckReport")] = (
        CheckFormat.TABLE
    ),
    output: Output = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="also write Markdown there")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="also write JUnit XML there")] = None,
    lang: Lang = Tongue.EN,
) -> None:
    """Gate a launch: will it fit, how far is it from the best plan, is it slower than a baseline?

    Exit codes: 0 passed, 1 a gate failed, 2 the file or an option is wrong. Scripts are read, never run.
    """
    from autodeploy.cli.output import write_report
    from autodeploy.specs.check import CheckLimits

    limits = CheckLimits(
        max_memory=share(max_memory, "--max-memory", most=1.0),
        min_mfu=None if min_mfu is None else share(min_mfu, "--min-mfu", most=1.0),
        max_slowdown=None if max_slowdown is None else share(max_slowdown, "--max-slowdown", most=100.0),
    )
    asked = LaunchOptions(file, settings, cluster, device, num_npus)
    if server is None:
        report = _here(asked.read(), limits, baseline)
    else:
        held = {"limits": limits.model_dump(), "baseline": baseline_document(baseline)}
        report = asked.on_server(server, lambda client, request: client.check(request), **held)
    name = file.name
    write_report(_shown(report, output_format, lang, name), output)
    if markdown is not None:
        write_report(_shown(report, CheckFormat.MARKDOWN, lang, name), markdown)
    if junit is not None:
        write_report(_shown(report, CheckFormat.JUNIT, lang, name), junit)
    if not report.passed:
        raise typer.Exit(GATE_FAILED)


def share(text: str, option: str, *, most: float) -> float:
    """`95%` or `0.95` as a share.

    Raises
    ------
    SpecError
        when it is no number, or out of range.
    """
    from autodeploy.errors import SpecError

    bare = text.strip()
    try:
        value = float(bare.removesuffix("%")) / (100.0 if bare.endswith("%") else 1.0)
    except ValueError:
        raise SpecError(f"{text[:40]!r} is no share", path=option, hint="such as 95% or 0.95") from None
    if not 0.0 <= value <= most or (option == "--max-memory" and value == 0.0):
        raise SpecError(f"{text[:40]!r} is not from 0 to {most:.0%}", path=option, hint="such as 95% or 0.95")
    return value


def _shown(report: CheckReport, form: CheckFormat, lang: Tongue, name: str) -> str:
    from autodeploy.reports import check_report

    if form is CheckFormat.JSON:
        return report.model_dump_json(indent=2)
    if form is CheckFormat.MARKDOWN:
        return check_report.render_check_markdown(report, language(lang))
    if form is CheckFormat.JUNIT:
        return check_report.render_check_junit(report, language(lang), name=name)
    return check_report.render_check(report, language(lang))


def _here(launch: Launch, limits: CheckLimits, baseline: str | None) -> CheckReport:
    """In this process; the database is opened only where it has a say: an overlay, or a plan id."""
    document = baseline_document(baseline)
    stored = with_database(
        launch,
        lambda services: services.check(launch, limits, services.baseline(document)),
        always=isinstance(document, str),
    )
    if stored is not None:
        return stored
    from autodeploy import planner
    from autodeploy.checks import check as check_launch

    if document is None:
        return check_launch(launch, limits, planner=planner)
    from autodeploy.services.check_intake import baseline_plan

    return check_launch(launch, limits, planner=planner, baseline=baseline_plan(document))


def baseline_document(baseline: str | None) -> str | dict[str, Any] | None:
    """A plan id as it is; a file as the document in it.

    Raises
    ------
    SpecError
        when it is neither.
    """
    from autodeploy.cli.why_not import PLAN_ID
    from autodeploy.errors import SpecError
    from autodeploy.importers.documents import load_json, load_yaml, read_text

    if baseline is None or PLAN_ID.fullmatch(baseline):
        return baseline
    text = read_text(Path(baseline))
    document = load_json(text) if text.lstrip().startswith("{") else load_yaml(text)
    if not isinstance(document, dict):
        raise SpecError(
            f"{baseline[:100]} is no plan", path="--baseline", hint="autodeploy plan SPEC -f json -o best.json"
        )
    return document
