"""`autodeploy check`: a gate for CI."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from autodeploy.cli.conversion import (
    Cluster,  # noqa: TC001 - typer reads annotations
    Device,  # noqa: TC001 - typer reads annotations
    NumNpus,  # noqa: TC001 - typer reads annotations
    Settings,  # noqa: TC001 - typer reads annotations
    TargetRelease,  # noqa: TC001 - typer reads annotations
)
from autodeploy.cli.exits import GATE_FAILED
from autodeploy.cli.options import Lang, LanguageOption, ListFormat, Output, Server, language
from autodeploy.cli.remote import answer_of
from autodeploy.cli.verify import Megatron, MindSpeed, MindSpeedLLM, Python, Stages, trees_of, witness
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.specs.answers import CheckReport
    from autodeploy.specs.questions import LaunchRequest


# What `check` and `improve` share.
Asked = TypeVar("Asked", bound="LaunchRequest")
LaunchFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="spec with a strategy, or script, YAML or TOML of a framework")
]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """A file and what it does not say: variables as NAME=VALUE, and the cluster it is for."""

    file: Path
    settings: list[str] | None
    cluster: str | None
    device: str | None
    num_npus: int | None
    target_release: str | None = None

    def read(self) -> Launch:
        """The launch in the file.

        Raises SpecError with line and column, or with every bad or missing field.
        """
        from autodeploy.analysis.launch_checks.launch import launch_of
        from autodeploy.cli.conversion import read_foreign

        imported = read_foreign(self.file, self.settings, None, self.target_release, self.cluster)
        return launch_of(imported, self.cluster, self.device, self.num_npus)

    @property
    def text(self) -> str:
        """The file with the line that names its release."""
        from autodeploy.formats.common.checkout import launch_text
        from autodeploy.specs.spec import vendor_of

        return launch_text(self.file, self.target_release, vendor_of(self.cluster)).text

    def request(self, kind: type[Asked], **more: Any) -> Asked:
        """The request about the file, for this process or a server; `more` is the rest of it."""
        from autodeploy.cli.conversion import variables_of
        from autodeploy.specs.questions import LocalFile

        asked = {
            "file": self.text,
            "variables": variables_of(self.settings),
            "cluster": self.cluster,
            "device": self.device,
            "num_npus": self.num_npus,
            **more,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return kind.about_file(LocalFile(self.file, self.target_release), **given)


app = typer.Typer()
_EXAMPLES = {"--min-mfu": "35%", "--max-slowdown": "5%"}


class CheckFormat(StrEnum):
    """Formats of a check."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    ANNOTATIONS = "annotations"


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
    target_release: TargetRelease = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="PLAN",
            help="plan id, or a file: PlanSet, plan, check report, or the script before the change",
        ),
    ] = None,
    min_mfu: Annotated[str | None, typer.Option("--min-mfu", metavar="X", help="lowest MFU allowed, e.g. 35%")] = None,
    max_memory: Annotated[
        str, typer.Option("--max-memory", metavar="X", help="highest peak memory allowed, relative to usable memory")
    ] = "100%",
    min_p_fits: Annotated[
        str,
        typer.Option("--min-p-fits", metavar="X", help="lowest probability that the peak stays within --max-memory"),
    ] = "10%",
    max_slowdown: Annotated[
        str | None,
        typer.Option(
            "--max-slowdown",
            metavar="X",
            help="highest slowdown allowed relative to the baseline, else to the best plan",
        ),
    ] = None,
    allow_rule: Annotated[
        list[str] | None,
        typer.Option("--allow-rule", metavar="NAME", help="rule that the launch may violate; repeatable"),
    ] = None,
    allow_flag: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-flag", metavar="FLAG", help="flag of your own fork, or @FILE with one a line; repeatable"
        ),
    ] = None,
    server: Server = None,
    output_format: Annotated[CheckFormat, typer.Option("-f", "--format", help="json: the CheckReport")] = (
        CheckFormat.TABLE
    ),
    output: Output = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="also write Markdown there")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="also write JUnit XML there")] = None,
    annotations: Annotated[
        bool, typer.Option("--annotations", help="also print what GitHub shows at the lines of the file, on stderr")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="also run it on the CPU at toy widths, as `verify` does a plan; needs trees")
    ] = False,
    megatron: Megatron = None,
    mindspeed: MindSpeed = None,
    mindspeed_llm: MindSpeedLLM = None,
    python: Python = None,
    stages: Stages = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Check a launch against limits: legality, memory, time relative to the best plan or a baseline.

    Exit codes: 0 passed, 1 a gate failed, 2 invalid file or option. Scripts are parsed, never executed; with
    --run their flags are given to the framework's own entry.
    """
    from autodeploy.analysis.launch_checks.legality import refuse_unknown_rules
    from autodeploy.cli.output import write_report
    from autodeploy.specs.answers import CheckLimits
    from autodeploy.specs.questions import CheckRequest, LocalFile

    limits = CheckLimits(
        max_memory=share(max_memory, "--max-memory", most=100.0),
        min_p_fits=share(min_p_fits, "--min-p-fits", most=1.0),
        min_mfu=None if min_mfu is None else share(min_mfu, "--min-mfu", most=1.0),
        max_slowdown=None if max_slowdown is None else share(max_slowdown, "--max-slowdown", most=100.0),
        allow_rules=tuple(allow_rule or ()),
        allow_flags=tuple(_named(allow_flag)),
    )
    refuse_unknown_rules(limits.allow_rules, "--allow-rule")
    asked = LaunchOptions(file, settings, cluster, device, num_npus, target_release)
    request = asked.request(CheckRequest, limits=limits, baseline=_baseline(asked, baseline))
    if baseline is not None and baseline != request.baseline:
        request = request.against_file(LocalFile(Path(baseline), target_release))
    report = answer_of(server, lambda of: of.check(request))
    if output_format in {CheckFormat.JSON, CheckFormat.JUNIT}:
        _tell_doubts(report, lang)
    name = file.name
    write_report(_shown(report, output_format, lang, name), output)
    if markdown is not None:
        write_report(_shown(report, CheckFormat.MARKDOWN, lang, name), markdown)
    if junit is not None:
        write_report(_shown(report, CheckFormat.JUNIT, lang, name), junit)
    if annotations:
        sys.stderr.write(_shown(report, CheckFormat.ANNOTATIONS, lang, str(file)))
    if run:
        witness(
            asked.read(), trees_of(megatron, mindspeed, mindspeed_llm), python, stages, None, ListFormat.TABLE, lang
        )
    if not report.passed:
        raise typer.Exit(GATE_FAILED)


def _tell_doubts(report: CheckReport, lang: LanguageOption) -> None:
    """Gaps of every prediction, on stderr: a form for machines is read by none who would see it there."""
    from autodeploy.cli.output import talk
    from autodeploy.reports.check_report import unmodelled

    for line in unmodelled(report, language(lang)):
        talk(line)


def share(text: str, option: str, *, most: float) -> float:
    """`95%` or `0.95` as a share.

    Raises SpecError when it is no number, or out of range.
    """
    from autodeploy.kit.errors import SpecError

    hint = Message("common.such_as", example=_EXAMPLES.get(option, "95%"))
    bare = text.strip()
    try:
        value = float(bare.removesuffix("%")) / (100.0 if bare.endswith("%") else 1.0)
    except ValueError:
        raise SpecError(Message("field_fault.is_no_number", value=repr(text[:40])), path=option, hint=hint) from None
    if not 0.0 <= value <= most or (option == "--max-memory" and value == 0.0):
        raise SpecError(
            Message("common.is_outside", value=repr(text[:40]), range=f"0-{100.0 * most:.0f} %"),
            path=option,
            hint=hint,
        )
    return value


def _shown(report: CheckReport, form: CheckFormat, lang: LanguageOption, name: str) -> str:
    from autodeploy.reports import check_report

    if form is CheckFormat.JSON:
        return report.model_dump_json(indent=2)
    if form is CheckFormat.MARKDOWN:
        return check_report.render_check_markdown(report, language(lang))
    if form is CheckFormat.JUNIT:
        return check_report.render_check_junit(report, language(lang), name=name)
    if form is CheckFormat.ANNOTATIONS:
        return check_report.render_check_annotations(report, language(lang), name=name)
    return check_report.render_check(report, language(lang))


def _named(given: list[str] | None) -> Iterator[str]:
    """Names as they were given; of `@FILE` those on its lines, without comments."""
    from autodeploy.specs.text_files import read_text

    for name in given or ():
        lines = read_text(Path(name[1:])).splitlines() if name.startswith("@") else [name]
        yield from (text for line in lines if (text := line.partition("#")[0].strip()))


def is_launch(path: Path, text: str) -> bool:
    """Whether a file is a launch and no plan: a script, a framework's YAML or a spec."""
    from autodeploy.formats.common.source import Source
    from autodeploy.kit.errors import SpecError

    source = Source(text, path.name)
    try:
        return source.syntax == "script" or (
            bool(source.document) and source.document.keys().isdisjoint({"gates", "plans", "plan_id"})
        )
    except SpecError:
        return False


def _baseline(asked: LaunchOptions, baseline: str | None) -> str | dict[str, Any] | None:
    """A plan id, a document, or the file of the launch before a change, for the same release."""
    from autodeploy.cli.what_if import PLAN_ID
    from autodeploy.specs.text_files import read_text

    if baseline is None or PLAN_ID.fullmatch(baseline) or not is_launch(Path(baseline), read_text(Path(baseline))):
        return baseline_document(baseline)
    return {"file": replace(asked, file=Path(baseline)).text, "filename": Path(baseline).name}


def baseline_document(baseline: str | None) -> str | dict[str, Any] | None:
    """A plan id as it is; a file as the document in it.

    Raises SpecError when it is neither.
    """
    from autodeploy.cli.what_if import PLAN_ID
    from autodeploy.kit.errors import SpecError
    from autodeploy.specs.text_files import load_json, load_yaml, read_text

    if baseline is None or PLAN_ID.fullmatch(baseline):
        return baseline
    text = read_text(Path(baseline))
    document = load_json(text) if text.lstrip().startswith("{") else load_yaml(text)
    if not isinstance(document, dict):
        raise SpecError(
            Message("field_fault.is_no_mapping", value=baseline[:100]),
            path="--baseline",
            hint="autodeploy plan SPEC -f json -o best.json",
        )
    return document
