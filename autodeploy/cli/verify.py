"""`autodeploy verify`: a plan's launch run by its own framework on the CPU, and its counts held against the plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, Output, SimpleFormat, language

if TYPE_CHECKING:
    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.analysis.witness.documents import StageReport, WitnessReport
    from autodeploy.messages import Language

app = typer.Typer()

Megatron = Annotated[Path | None, typer.Option("--megatron", metavar="DIR", help="tree of Megatron-LM")]
MindSpeed = Annotated[Path | None, typer.Option("--mindspeed", metavar="DIR", help="tree of MindSpeed")]
MindSpeedLLM = Annotated[Path | None, typer.Option("--mindspeed-llm", metavar="DIR", help="tree of MindSpeed-LLM")]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PYTHON",
        help="interpreter of an environment with torch; default: this one",
        envvar="AUTODEPLOY_TORCH_PYTHON",
    ),
]
Stages = Annotated[
    str | None,
    typer.Option("--stages", metavar="N,N", help="pipeline stages to run, from 0; default: first, middle, last"),
]

RealWidths = Annotated[
    bool,
    typer.Option(
        "--real-widths", help="run at the launch's own widths, tensors without numbers, and compare memory too"
    ),
]


@app.command(
    epilog="Examples: autodeploy verify p_7kq2abcd --megatron trees/megatron; autodeploy verify p_7kq2abcd "
    "--megatron trees/megatron --mindspeed trees/mindspeed --mindspeed-llm trees/mindspeed-llm --stages 0,7"
)
def verify(
    plan_id: Annotated[str, typer.Argument(metavar="PLAN_ID", help="plan id from the report, p_...")],
    megatron: Megatron = None,
    mindspeed: MindSpeed = None,
    mindspeed_llm: MindSpeedLLM = None,
    python: Python = None,
    stages: Stages = None,
    real_widths: RealWidths = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FORMAT", help="framework to run, where the plan is for any")
    ] = None,
    output: Output = None,
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Run a plan's launch on the CPU, at toy widths or its own, one rank a stage, and compare its counts.

    Exit codes: 0 all numbers agree, 1 one differs or a stage stops. Nothing is downloaded.
    """
    from autodeploy.analysis.launch_checks.launch import launch_of
    from autodeploy.cli.conversion import stored
    from autodeploy.formats.import_document import import_document

    trees = trees_of(megatron, mindspeed, mindspeed_llm)
    with stored(plan_id) as (services, view):
        target = to or view.plan_set.search.spec["search"]["target"]
        if target == "any":
            target = "mindspeed-llm" if mindspeed_llm is not None else "megatron"
        text = services.export(view, target, language(lang)).text
    launch = launch_of(import_document(text, f"{plan_id}.sh"))
    witness(launch, trees, python, stages, output, output_format, lang, real_widths=real_widths)


def trees_of(megatron: Path | None, mindspeed: Path | None, mindspeed_llm: Path | None) -> dict[str, Path]:
    """The trees that are given, by component."""
    given = {"megatron": megatron, "mindspeed": mindspeed, "mindspeed-llm": mindspeed_llm}
    return {name: tree for name, tree in given.items() if tree is not None}


def witness(
    launch: Launch,
    trees: dict[str, Path],
    python: str | None,
    stages: str | None,
    output: Path | None,
    output_format: ListFormat,
    lang: LanguageOption,
    *,
    real_widths: bool = False,
) -> None:
    """Runs a launch and reports; the command ends with exit code 1 where a number differs or a stage stops."""
    import sys

    from autodeploy.analysis.witness.verify import verify as verify_launch
    from autodeploy.cli.exits import GATE_FAILED
    from autodeploy.cli.output import notify, write_answer

    def tell(report: StageReport) -> None:
        notify("witness_stage", stage=report.stage, rank=report.rank, seconds=report.seconds)

    python = python or sys.executable
    found = verify_launch(launch, trees, python=python, stages=_numbers(stages), real_widths=real_widths, told=tell)
    write_answer(found, output_format, output, lambda: render(found, language(lang)))
    if not found.agrees:
        raise typer.Exit(GATE_FAILED)


def _numbers(stages: str | None) -> list[int] | None:
    from autodeploy.kit.errors import SpecError
    from autodeploy.messages import Message

    if stages is None:
        return None
    try:
        return sorted({int(word) for word in stages.split(",")})
    except ValueError:
        message = Message("common.is_not_of_form", value=repr(stages[:40]), form="N,N")
        raise SpecError(message, path="--stages", hint=Message("common.such_as", example="0,7")) from None


def render(report: WitnessReport, lang: Language) -> str:
    """One table a stage: every number as predicted and as seen."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.wording import command_text

    titles = command_text.each(lang, "witness_number", "witness_predicted", "witness_seen", "witness_verdict")
    blocks = [command_text(lang, "witness_title", release=report.release, ranks=report.ranks)]
    for stage in report.stages:
        blocks.append(command_text(lang, "witness_stage", stage=stage.stage, rank=stage.rank, seconds=stage.seconds))
        if stage.error:
            blocks.append(command_text(lang, "witness_stopped", error=stage.error, where=stage.where or "-"))
            continue
        rows = [
            [
                number.name,
                _short(number.predicted),
                _short(number.seen),
                command_text(lang, f"witness_{number.verdict}")
                + (f" ({number.decided_by})" if number.decided_by else ""),
            ]
            for number in stage.numbers
        ]
        blocks.append(table_text(titles, rows, right=frozenset({1, 2})).rstrip())
        if stage.unpredicted:
            listed = ", ".join(f"{m.group} {m.operation} {m.size_bytes} x {m.calls}" for m in stage.unpredicted)
            blocks.append(command_text(lang, "witness_unpredicted", messages=listed))
    return "\n\n".join(blocks) + "\n"


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:21]}..."
