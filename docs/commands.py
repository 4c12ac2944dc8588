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


def command_line_pages() -> dict[str, str]:
    """Pages of the reference by name: all commands with a line each, and those of each panel of the help in full."""
    from typer.main import get_command

    from autodeploy.cli.main import app

    known, panels = dict(commands()), dict[str, list[str]]()
    for name, top in get_command(app).commands.items():  # type: ignore[attr-defined]
        panels.setdefault(top.rich_help_panel, []).extend(dict(_walk((name,), top)))
    text = "# The command line\n\nReports go to stdout, progress and messages to stderr. Output is coloured on "
    text += "terminals only.\n\n"
    text += "## Exit codes\n\n" + table(("code", "meaning"), EXIT_CODES)
    for panel, of_panel in panels.items():
        page = f"command_line/{panel.lower()}.md"
        rows = [
            (f"[{words}]({page}#autodeploy-{words.replace(' ', '-')})", _first_sentence(known[words].help))
            for words in of_panel
        ]
        text += f"\n## {panel}\n\n" + table(("command", "what it does"), rows)
    return {"command_line": text} | {
        f"command_line/{panel.lower()}": f"# Commands: {panel.lower()}\n\nBack to [all commands](../command_line.md).\n"
        + "".join(_command(words, known[words]) for words in of_panel)
        for panel, of_panel in panels.items()
    }


def _command(words: str, command: Any) -> str:
    """Section of a command with its arguments and options."""
    text = f"\n## autodeploy {words}\n\n{_sentence(command.help)}\n\n"
    rows = [_row(each) for each in command.params if each.name != "help"]
    if rows:
        text += table(("argument or option", "default", "meaning"), rows)
    return text + (f"\n{_examples(command.epilog)}\n" if command.epilog else "")


def _first_sentence(text: str | None) -> str:
    return _sentence(text).partition(". ")[0].rstrip(".")


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
