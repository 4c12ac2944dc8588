"""Output of commands: reports, tables, notes, and the progress of a search."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer
from typer.core import TyperGroup

from autodeploy.cli.options import ListFormat, current_language
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, label, text_of
from autodeploy.messages.field_faults import os_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType, TracebackType
    from typing import Self

    from pydantic import BaseModel
    from rich.console import JustifyMethod
    from rich.status import Status

    from autodeploy.messages import Language
    from autodeploy.search.planner import Progress


# How much a command says beside its report.
Verbosity = Literal["quiet", "normal", "verbose"]

_VERBOSITY: ContextVar[Verbosity] = ContextVar("how much the command that runs says", default="normal")


def verbosity() -> Verbosity:
    """That of the command that runs."""
    return _VERBOSITY.get()


def begin() -> None:
    """A command begins, of which nothing is known yet."""
    _VERBOSITY.set("normal")


def log_changes() -> dict[str, str]:
    """Changes by the options to the settings of a service's log."""
    level = {"quiet": "warning", "verbose": "debug"}.get(verbosity())
    return {} if level is None else {"log_level": level}


def _choose(which: Verbosity, *, wanted: bool) -> None:
    if not wanted:
        return
    if verbosity() not in {"normal", which}:
        from autodeploy.kit.errors import SpecError

        raise SpecError(Message("common.excludes_it", what=f"--{verbosity()}"), path=f"--{which}")
    _VERBOSITY.set(which)


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
    """Options of every command; the callbacks keep them, so that no command has to."""


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


LEAST_COLUMNS, MOST_COLUMNS = 80, 200
MAX_WHOLE_COLUMNS = 34  # columns of a cell that is not folded, at most; an id has as many as it has


def columns(stream: TextIO | None = None) -> int:
    """Columns of the terminal within 80 to 200; 100 where the stream (stdout) goes to a file or a pipe."""
    from shutil import get_terminal_size

    if not (stream or sys.stdout).isatty():
        return 100
    return max(LEAST_COLUMNS, min(MOST_COLUMNS, get_terminal_size((100, 24)).columns))


def write_report(text: str, output: Path | None) -> None:
    """Writes the report, ended by a line break, to stdout or as `replacing` does.

    Raises SpecError when the file can't be written.
    """
    text = text if text.endswith("\n") else text + "\n"
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    with replacing(output) as stream:
        stream.write(text)
    notify("written", file=output)


def write_answer(answer: BaseModel, output_format: ListFormat, output: Path | None, text: Callable[[], str]) -> None:
    """Writes an answer as JSON or, as a table, the text of it."""
    write_report(answer.model_dump_json(indent=2) if output_format is ListFormat.JSON else text(), output)


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[TextIO]:
    """A stream to a file that is replaced whole or not at all, at the end of the block.

    Devices, pipes and links (`/dev/null`, `/dev/stdout`) are written to as they are: a renamed file would take their
    place.

    private : only its owner reads it.

    Raises SpecError when the file can't be written.
    """
    whole = not path.is_symlink() and (path.is_file() or not path.exists())
    part = path.with_name(f".{path.name}.{os.getpid()}.part") if whole else path
    try:
        if private and whole:
            part.unlink(missing_ok=True)
            part.touch(0o600, exist_ok=False)
        with part.open("w", encoding="utf-8") as stream:
            yield stream
        if whole:
            part.replace(path)
    except OSError as error:
        raise SpecError(Message("cli.cannot_be_written", file=path, reason=os_fault(error))) from error
    finally:
        if whole:
            part.unlink(missing_ok=True)


def write_text_report(text: str, output: Path | None) -> None:
    """As `write_report`; on a terminal the line of the best plan is bold, or that there is none."""
    if output is not None or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        write_report(text, output)
        return
    from rich.console import Console
    from rich.text import Text

    from autodeploy.cli.options import current_language
    from autodeploy.reports.wording import report_text

    lang = current_language()
    headlines = (report_text(lang, "best"), report_text(lang, "infeasible"), report_text(lang, "unfinished", status=""))
    console = Console(highlight=False, soft_wrap=True)
    for line in text.splitlines():
        console.print(Text(line, style="bold" if line.startswith(headlines) else ""))


def talk(text: str) -> None:
    """A word to the person, on stderr; with `--quiet` none."""
    if verbosity() == "quiet":
        return
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def notify(key: str, **values: object) -> None:
    """A sentence of section `command` to the person, in the language of the command."""
    from autodeploy.cli.options import current_language
    from autodeploy.reports.wording import command_text, wrap

    text = command_text(current_language(), key, **values)
    talk("\n".join(wrap(text, columns(sys.stderr))) if sys.stderr.isatty() else text)


def table_text(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: frozenset[int] = frozenset(),
    whole: frozenset[int] = frozenset(),
    spare: Sequence[int] = (),
) -> str:
    """Rows under their titles in the columns of the terminal; long cells are folded, those of `whole` columns never.

    spare : columns of a table that is too wide for the terminal that are left out sooner than any cell is folded:
        those without a value, then one after the other.
    """
    import io

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    left = _left(titles, rows, spare)
    titles, rows = [titles[i] for i in left], [[row[i] for i in left] for row in rows]
    right, whole = (frozenset(left.index(i) for i in some if i in left) for some in (right, whole))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    least, most = _widths(titles, rows, whole)
    for index, title in enumerate(titles):
        side: JustifyMethod = "right" if index in right else "left"
        table.add_column(title, justify=side, overflow="fold", min_width=least.get(index), max_width=most.get(index))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    stream = io.StringIO()
    Console(file=stream, width=max(columns(), _needed(titles, rows)), color_system=None).print(table)
    return "".join(line.rstrip() + "\n" for line in stream.getvalue().splitlines())


def _left(titles: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[int]) -> list[int]:
    """Places of the columns that are shown."""
    from autodeploy.reports.wording import width

    wide = [max(width(cell) for cell in (title, *(row[i] for row in rows))) for i, title in enumerate(titles)]
    left = list(range(len(titles)))
    for index in sorted(spare, key=lambda index: any(row[index] != "-" for row in rows)):
        if sum(wide[i] for i in left) + 3 * (len(left) - 1) > columns():
            left.remove(index)
    return left


_ID = re.compile(r"(?:key|srch|p|run|job|bat|evt|wh)_[0-9a-z]{8,}")


def _ids(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> set[int]:
    """Places of the columns that hold ids, which are never folded."""
    return {index for index in range(len(titles)) if any(_ID.fullmatch(row[index]) for row in rows)}


def _needed(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns of the terminal without which ids would be folded; 0 where there are none."""
    ids = _ids(titles, rows)
    return sum(len(max((row[i] for row in rows), key=len)) for i in ids) + 7 * len(titles) if ids else 0


def _widths(
    titles: Sequence[str], rows: Sequence[Sequence[str]], whole: frozenset[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Least widths of `whole` columns and those of ids, and greatest widths of others: narrow ones leave room."""
    if not rows:
        return {}, {}
    from autodeploy.reports.wording import width

    ids = _ids(titles, rows)
    if not (ids | whole):
        return {}, {}
    needed = {index: max(width(title), *(width(row[index]) for row in rows)) for index, title in enumerate(titles)}
    least = {i: needed[i] if i in ids else min(MAX_WHOLE_COLUMNS, needed[i]) for i in ids | whole}
    room, most = columns() - sum(least.values()) - 3 * len(titles), {}
    others = sorted(needed.keys() - least.keys(), key=lambda index: needed[index])
    for place, index in enumerate(others):
        most[index] = min(needed[index], max(room // (len(others) - place), width(titles[index])))
        room -= most[index]
    return least, most


def json_text(document: Any) -> str:
    """A document as indented JSON without NaN."""
    import json

    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


@contextmanager
def quiet_broken_pipe() -> Iterator[None]:
    """`autodeploy ... | head` ends without a traceback."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


QUIET_S = 5.0  # so long without a line, and the next report is shown whatever it says


def progress_text(progress: Progress, lang: Language = "en") -> str:
    """Counts by fate, the best so far and the proven gap, in one line."""
    from autodeploy.reports.wording import command_text, report_text

    parts = [command_text(lang, "strategies", count=f"{progress.enumerated:,}")]
    fates = ("rejected", "too_big", "pruned", "solved")
    parts += [f"{label(lang, name)} {count:,}" for name in fates if (count := getattr(progress, name))]
    if progress.incumbent_s is not None:
        parts.append(text_of(lang, "progress.best_so_far", step=progress.incumbent_s))
    if progress.gap is not None:
        parts.append(f"{label(lang, 'gap')} {100 * progress.gap:.1f} %")
    return f"{progress.elapsed_s:5.1f} s  " + report_text(lang, "comma").join(parts)


class SearchTalk:
    """Shows progress, and turns the first Ctrl-C into a wish to stop (the best plan so far is kept)."""

    def __init__(self) -> None:
        self._lang = current_language()
        self._status: Status | None = None
        self._before: Any = None
        self._stop = False
        self._said_s = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and verbosity() == "normal":
            from rich.console import Console

            self._status = Console(stderr=True).status(label(self._lang, "search"))
            self._status.start()
        self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._status is not None:
            self._status.stop()

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        notify("stopping")

    def should_cancel(self) -> bool:
        """Whether the person asked to stop."""
        return self._stop

    def __call__(self, progress: Progress) -> None:
        text = progress_text(progress, self._lang)
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(text))
        elif (
            verbosity() == "verbose"
            or progress.kind in {"enumerated", "incumbent", "finished"}
            or progress.elapsed_s - self._said_s >= QUIET_S
        ):
            self._said_s = progress.elapsed_s
            talk(text)
