"""`autodeploy improve`: the best single changes of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from autodeploy.cli.check import LaunchFile, LaunchOptions, with_database
from autodeploy.cli.import_file import Cluster, Device, NumNpus, Settings  # noqa: TC001 - typer reads annotations
from autodeploy.cli.options import Lang, LanguageOption, ListFormat, Output, Server, SimpleFormat, language

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.messages import Language
    from autodeploy.specs.answers import Improvement, ImproveReport

app = typer.Typer()


@app.command(
    epilog="Examples: autodeploy improve pretrain.sh --cluster cloudmatrix-384; autodeploy improve spec.yaml -f json"
)
def improve(
    file: LaunchFile,
    cluster: Cluster = None,
    device: Device = None,
    num_npus: NumNpus = None,
    settings: Settings = None,
    server: Server = None,
    output_format: SimpleFormat = ListFormat.TABLE,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Find the three changes of a launch that gain most, and the best that keep its checkpoints loadable."""
    from autodeploy.cli.output import write_report

    asked = LaunchOptions(file, settings, cluster, device, num_npus)
    if server is None:
        report = _here(asked.read())
    else:
        report = asked.on_server(server, lambda client, request: client.improve(request))
    text = (
        report.model_dump_json(indent=2) if output_format is ListFormat.JSON else improve_text(report, language(lang))
    )
    write_report(text, output)


def improve_text(report: ImproveReport, lang: Language = "en") -> str:
    """The launch, then its improvements as a table, then those that keep the layout where they are others."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.recommendation import rescaled_line
    from autodeploy.reports.wording import command_text, report_text, seconds, wrap

    plan = report.plan
    lines = [command_text(lang, "as_it_is", step=seconds(plan.step_time_s), peak=f"{plan.peak_memory_gib:.1f}")]
    if not plan.fits:
        lines.append(
            "  " + report_text(lang, "does_not_fit", excess=f"{plan.peak_memory_gib - plan.memory_limit_gib:.1f}")
        )
    if (rescaled := rescaled_line(plan, lang)) is not None:
        lines += wrap(rescaled, hanging="  ")
    columns = [command_text(lang, name) for name in ("change", "gain", "s_per_step")]
    columns += ["GiB", *(command_text(lang, name) for name in ("checkpoint", "in_the_spec"))]
    shown = list(report.improvements)
    shown += [other for other in report.keeping_layout if other.name not in {i.name for i in shown}]
    if shown:
        lines.append(table_text(columns, [_cells(i, lang) for i in shown], right=frozenset({1, 2, 3})))
        lines += _flag_lines(shown, lang)
    else:
        lines.append(command_text(lang, "nothing_gains", count=report.tried) + "\n")
    if report.best_gain_pct is not None:
        gains = report.best_gain_pct > 0.0
        gain = {"gain": f"{report.best_gain_pct:.1f}"} if gains else {}
        lines.append(command_text(lang, "best_gains" if gains else "no_faster_plan", **gain) + "\n")
    return "\n".join(lines)


def _cells(improvement: Improvement, lang: Language) -> list[str]:
    from autodeploy.reports.wording import change_name, check_text, command_text, seconds

    return [
        change_name(lang, improvement.name),
        f"{improvement.gain_pct:+z.1f} %",
        seconds(improvement.step_time_s),
        f"{improvement.peak_memory_gib:.1f}",
        check_text(lang, "checkpoint_loaded") if improvement.keeps_checkpoint_layout else command_text(lang, "convert"),
        ", ".join(f"{name} {_value(value)}" for name, value in improvement.changes.items()),
    ]


def _flag_lines(shown: Sequence[Improvement], lang: Language) -> list[str]:
    """Below the table, for the author of a script: the flags that each change adds and drops."""
    from autodeploy.reports.wording import change_name, command_text, report_text, titled, wrap

    lines = []
    for improvement in shown:
        flags_by_key = [("add_flags", improvement.add_flags), ("drop_flags", improvement.drop_flags)]
        flags = report_text(lang, "semicolon").join(
            command_text(lang, key, flags=" ".join(f)) for key, f in flags_by_key if f
        )
        if flags:
            of_change = titled(lang, change_name(lang, improvement.name), flags)
            lines += wrap(of_change, hanging="  ")
    return [*lines, ""] if lines else []


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(_value(item) for name, item in value.items() if name != "per_stage")
    if isinstance(value, list | tuple):
        return "/".join(_value(item) for item in value)
    return str(value)


def _here(launch: Launch) -> ImproveReport:
    """In this process; the database is opened only where it has a say: the overlay of its cluster."""
    stored = with_database(launch, lambda services: services.improve(launch))
    if stored is not None:
        return stored
    from autodeploy.analysis.what_if.improve import improve as improvements_of
    from autodeploy.search import planner

    return improvements_of(launch, planner=planner)
