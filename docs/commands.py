"""The command line as a page, and as a tree that tests look commands up in."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from docs.schema_tables import code, table

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_CODES = (
    ("0", "success, or all gates passed"),
    ("1", "a limit of check, validate or replay is exceeded"),
    ("2", "invalid input: a file, a field, an option"),
    ("3", "infeasible: the spec is valid, but nothing fits"),
    ("4", "service or database error, search cancelled, or time limit reached"),
)


@cache
def commands() -> tuple[tuple[str, Any], ...]:
    """Every command with its words after `autodeploy`, in the order of the help."""
    from typer.main import get_command

    from autodeploy.cli.main import app

    return tuple(_walk((), get_command(app)))


def _walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(words), command
        return
    for name, child in children.items():
        yield from _walk((*words, name), child)


def options_of(command: Any) -> set[str]:
    """Every spelling of every option of a command."""
    return {text for each in command.params for text in (*each.opts, *each.secondary_opts)}


def command_line_page() -> str:
    """Every command with its arguments and options."""
    text = "# The command line\n\nReports go to stdout, progress and messages to stderr. Output is coloured on "
    text += "terminals only.\n\n"
    text += "## Exit codes\n\n" + table(("code", "meaning"), EXIT_CODES)
    for words, command in commands():
        text += f"\n## autodeploy {words}\n\n{_sentence(command.help)}\n\n"
        rows = [_row(each) for each in command.params if each.name != "help"]
        if rows:
            text += table(("argument or option", "default", "meaning"), rows)
        if command.epilog:
            text += f"\n{_examples(command.epilog)}\n"
    return text


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def _row(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name
        return code(name), "", _sentence(getattr(parameter, "help", None))
    name = ", ".join(code(text) for text in (*parameter.opts, *parameter.secondary_opts))
    kind = parameter.type_descriptor.annotation
    values = [str(choice.value) for choice in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    meaning = _sentence(parameter.help) + (f"; one of {', '.join(map(code, values))}" if values else "")
    if parameter.envvar:
        meaning += f"; from {code(parameter.envvar)}"
    return name, _default(parameter), meaning


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or callable(value):
        return ""
    return code(getattr(value, "value", value))


def _examples(epilog: str) -> str:
    title, _, rest = _sentence(epilog).partition(": ")
    lines = "\n".join(part.strip() for part in rest.split("; "))
    return f"{title}:\n\n```sh\n{lines}\n```"
