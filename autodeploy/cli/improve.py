"""`autodeploy improve`: the best single changes of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from autodeploy.cli.import_file import Cluster, Device, NumNpus, Settings  # noqa: TC001 - typer reads annotations
from autodeploy.cli.launch_file import LaunchFile, LaunchOptions, with_database
from autodeploy.cli.options import ListFormat, Output, Server, SimpleFormat

if TYPE_CHECKING:
    from autodeploy.checks import Launch
    from autodeploy.specs.what_if import Improvement, ImproveReport

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
) -> None:
    """Name the three changes of a launch that gain most, and the best that keep its checkpoints' layout."""
    from autodeploy.cli.output import write_report

    asked = LaunchOptions(file, settings, cluster, device, num_npus)
    if server is None:
        report = _here(asked.read())
    else:
        report = asked.on_server(server, lambda client, request: client.improve(request))
    text = report.model_dump_json(indent=2) if output_format is ListFormat.JSON else improve_text(report)
    write_report(text, output)


def improve_text(report: ImproveReport) -> str:
    """The launch, then its improvements as a table, then those that keep the layout where they are others."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.wording import seconds

    plan = report.plan
    room = "" if plan.fits else ", which does not fit"
    lines = [f"as it is: {seconds(plan.step_time_s)} s a step, {plan.peak_memory_gib:.1f} GiB{room}"]
    columns = ["change", "gain", "s/step", "GiB", "checkpoint", "sets"]
    shown = list(report.improvements)
    shown += [other for other in report.keeping_layout if other.name not in {i.name for i in shown}]
    if shown:
        lines.append(table_text(columns, [_cells(i) for i in shown], right=frozenset({1, 2, 3})))
    else:
        lines.append(f"none of {report.tried} single changes gains anything\n")
    if report.best_gain_pct is not None:
        gain = f"the best plan of a short search gains {report.best_gain_pct:+.1f} %: `autodeploy plan`\n"
        lines.append(gain if report.best_gain_pct > 0.0 else "a short search finds no faster plan\n")
    return "\n".join(lines)


def _cells(improvement: Improvement) -> list[str]:
    from autodeploy.reports.wording import seconds

    return [
        improvement.name,
        f"{improvement.gain_pct:+.1f} %",
        seconds(improvement.step_time_s),
        f"{improvement.peak_memory_gib:.1f}",
        "loads" if improvement.keeps_checkpoint_layout else "convert",
        ", ".join(f"{name} {_value(value)}" for name, value in improvement.changes.items()),
    ]


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
    from autodeploy import planner
    from autodeploy.what_if import improve as improvements_of

    return improvements_of(launch, planner=planner)
