"""The program `autodeploy`. Command modules import what is heavy when they run, so that `--help` is quick."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.main import get_command_name

from autodeploy.cli import check, plan, validate, verify
from autodeploy.cli.administration import audit_app, database_app, doctor_app, keys_app
from autodeploy.cli.calibrate import calibrate_app, cluster_app, probe_app
from autodeploy.cli.catalogue import models_app, profiles_app, stacks_app
from autodeploy.cli.commission import commission_app
from autodeploy.cli.comparisons import ablate_app, compare_app
from autodeploy.cli.conversion import export_app, import_file_app
from autodeploy.cli.exits import SERVICE_ERROR, asked_language, report_error
from autodeploy.cli.one_line import init_app
from autodeploy.cli.output import EveryCommand, begin, verbosity
from autodeploy.cli.runs import replay_app, runs_app
from autodeploy.cli.serve import serve_app, worker_app
from autodeploy.cli.what_if import improve_app, recommend_app, why_not_app
from autodeploy.kit.process import collect_seldom, leave, use_one_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer.models import TyperInfo

app = typer.Typer(
    name="autodeploy",
    help="Find the best parallel strategy for training large models on Ascend clusters.",
    epilog="Exit codes: 0 success, 1 a limit of check, validate or replay is exceeded, 2 invalid input, 3 infeasible, "
    "4 service error or timeout.",
    cls=EveryCommand,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# Commands as the help groups them; groups of commands have a name and a sentence.
PANELS: dict[str, tuple[typer.Typer | tuple[str, typer.Typer, str], ...]] = {
    "Plan": (
        init_app,
        plan.app,
        recommend_app,
        import_file_app,
        ("models", models_app, "List and show model presets."),
        ("profiles", profiles_app, "List, show and write hardware profiles."),
        ("stacks", stacks_app, "List and show software stacks."),
    ),
    "Explain": (why_not_app, improve_app, compare_app, ablate_app, validate.app),
    "Launch": (
        export_app,
        commission_app,
        check.app,
        verify.app,
        replay_app,
        ("runs", runs_app, "Add, list and remove measured runs of plans."),
        probe_app,
        calibrate_app,
        ("cluster", cluster_app, "Import a cluster's own files, export its overlay."),
    ),
    "Operate": (
        serve_app,
        worker_app,
        doctor_app,
        ("db", database_app, "Upgrade, downgrade, prune, export and import the database."),
        ("keys", keys_app, "Create, list and revoke API keys of the server."),
        ("audit", audit_app, "List and prune the audit log."),
    ),
}
for panel, members in PANELS.items():
    for member in members:
        if isinstance(member, tuple):
            app.add_typer(member[1], name=member[0], help=member[2], rich_help_panel=panel)
        else:
            for command in member.registered_commands:
                command.rich_help_panel = panel
            app.add_typer(member)

SERVICES = (["serve"], ["worker"])  # they have processes of their own for searches


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"autodeploy {version('autodeploy')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Options of every command."""


def program(words: Sequence[str]) -> typer.Typer:
    """The app as these words need it: with one module's commands, as to make all of them takes a tenth of a second.

    Whole where no command of that name is there, or none is asked for.
    """
    name = next((word for word in words if not word.startswith("-")), None)
    groups = [group for group in app.registered_groups if name in _names(group)]
    narrow = copy.copy(app)
    narrow.registered_groups = groups or app.registered_groups
    return narrow


def _names(group: TyperInfo) -> set[str]:
    """Of the group, or where it has none of its own, of its commands."""
    if isinstance(group.name, str):
        return {group.name}
    commands = group.typer_instance.registered_commands if group.typer_instance else []
    return {each.name or get_command_name(each.callback.__name__) for each in commands if each.callback}


def run() -> None:
    """Runs a command and leaves with its exit code."""
    from autodeploy.cli.output import quiet_broken_pipe

    use_one_thread()
    collect_seldom()
    begin()
    try:
        with quiet_broken_pipe():
            program(sys.argv[1:])()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        code = report_error(error, asked_language(sys.argv))
        _show_trace_when_asked(code)
        sys.exit(code)


def run_alone() -> NoReturn:
    """The same in a process that does nothing else."""
    if sys.argv[1:2] in SERVICES and "--help" not in sys.argv:
        from autodeploy.service.runner.fork_server import start_early
        from autodeploy.service.runner.planning import PLANNER

        start_early(PLANNER)
    try:
        run()
    except SystemExit as leaving:
        leave(leaving.code)
    leave(0)


def _show_trace_when_asked(code: int) -> None:
    import os

    if verbosity() == "verbose" or (code == SERVICE_ERROR and os.environ.get("AUTODEPLOY_DEBUG")):
        import traceback

        traceback.print_exc()


if __name__ == "__main__":
    run_alone()
