"""How much a command says beside its report: `--quiet` nothing but errors, `--verbose` everything. Of every command."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from autodeploy.messages import Message

Loudness = Literal["quiet", "normal", "verbose"]

_LOUDNESS: ContextVar[Loudness] = ContextVar("how much the command that runs says", default="normal")


def loudness() -> Loudness:
    """That of the command that runs."""
    return _LOUDNESS.get()


def begin() -> None:
    """A command begins, of which nothing is known yet."""
    _LOUDNESS.set("normal")


def log_changes() -> dict[str, str]:
    """What the options change of the settings of a service's log."""
    level = {"quiet": "warning", "verbose": "debug"}.get(loudness())
    return {} if level is None else {"log_level": level}


def _choose(which: Loudness, *, wanted: bool) -> None:
    if not wanted:
        return
    if loudness() not in {"normal", which}:
        from autodeploy.errors import SpecError

        raise SpecError(Message("common.excludes_it", what=f"--{loudness()}"), path=f"--{which}")
    _LOUDNESS.set(which)


def _be_quiet(wanted: bool) -> None:
    _choose("quiet", wanted=wanted)


def _be_verbose(wanted: bool) -> None:
    _choose("verbose", wanted=wanted)


def _options(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", callback=_be_quiet, help="print only the report and errors")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", callback=_be_verbose, help="print every search step, and tracebacks of errors"),
    ] = False,
) -> None:
    """What every command takes; the callbacks keep it, so that no command has to."""


class EveryCommand(TyperGroup):
    """A group whose commands, those of its groups too, have `--quiet` and `--verbose`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        app = typer.Typer(add_completion=False)
        app.command()(_options)
        options = [each for each in typer.main.get_command(app).params if each.name in {"quiet", "verbose"}]
        for option in options:
            option.expose_value = False
        _add(options, self)


def _add(options: list[Any], group: Any) -> None:
    for command in group.commands.values():
        if hasattr(command, "commands"):
            _add(options, command)
        else:
            command.params.extend(options)
