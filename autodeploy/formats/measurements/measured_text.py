"""Reading measurements out of text that may be anything: bounded lines, finite numbers, errors with line numbers."""

from __future__ import annotations

import contextlib
import csv
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.field_errors import field_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_TEXT_BYTES = 8_000_000
MAX_LINES = 200_000
MAX_ROWS = 10_000
MAX_LINE_LENGTH = 20_000
MAX_COLUMNS = 200
WARM_UP_FACTOR = 1.1
MAD_TO_SIGMA = 1.4826  # median absolute deviation of a normal distribution to its standard deviation


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady part of a run: leading iterations left out, median of the rest, robust relative spread."""

    warm_up: int
    iterations: int
    median: float
    spread: float


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table with its line in the file; keys are the titles in lower case."""

    line: int
    cells: Mapping[str, str]

    def number(self, column: str, *, scale: float = 1.0) -> float | None:
        """The positive number in a column; None where the cell is empty or absent."""
        text = self.cells.get(column, "").strip()
        return positive(text, self.line, column) * scale if text else None


@contextlib.contextmanager
def within_documents() -> Iterator[None]:
    """Refuses numbers that a text may state and no document of a measurement takes, by the fields of the document."""
    try:
        yield
    except ValidationError as error:
        raise SpecError(errors=field_errors(error)) from error


def bad_line(line: int, message: str, hint: str = "") -> SpecError:
    """The error of one line."""
    return SpecError(Message("common.line", line=line, message=message), path=f"/{line}", hint=hint)


def bad_value(line: int, what: str, fault: str, value: str) -> SpecError:
    """The error of one value of a line, by its key among faults of fields."""
    return bad_line(line, Message("common.place", place=what, message=Message(f"field_fault.{fault}", value=value)))


def lines_of(text: str) -> list[str]:
    """The lines of a text.

    Raises
    ------
    SpecError
        when there are too many, or one is too long or binary.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise SpecError(Message("field_fault.at_most_characters", bound=f"{MAX_TEXT_BYTES:,}"))
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise SpecError(Message("field_fault.at_most_entries", bound=f"{MAX_LINES:,}"))
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_LENGTH:
            raise bad_line(number, Message("field_fault.at_most_characters", bound=f"{MAX_LINE_LENGTH:,}"))
        if "\0" in line:
            raise bad_line(number, Message("field_fault.is_invalid", value=repr("\0")))
    return lines


def refuse_long_table(lines: Sequence[str], first_line: int = 1) -> None:
    """Refuses a table of more rows than anybody measures."""
    if len(lines) > MAX_ROWS:
        raise bad_line(first_line + MAX_ROWS, Message("field_fault.at_most_entries", bound=f"{MAX_ROWS:,}"))


def positive(text: str, line: int, what: str) -> float:
    """A finite number above zero."""
    value = number(text, line, what)
    if value <= 0.0:
        raise bad_value(line, what, "is_too_small", text[:40])
    return value


def number(text: str, line: int, what: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        raise bad_value(line, what, "is_no_number", repr(text[:40])) from None
    if not math.isfinite(value) or abs(value) > 1e18:
        raise bad_value(line, what, "is_too_big" if math.isfinite(value) else "is_not_finite", text[:40])
    return value


def whole(text: str, line: int, what: str) -> int:
    """A whole number above zero."""
    value = positive(text, line, what)
    if value != int(value):
        raise bad_value(line, what, "is_no_whole_number", text[:40])
    return int(value)


def table_rows(lines: Sequence[str], first_line: int = 1) -> Iterator[TableRow]:
    """Rows of a CSV table under the titles of its first line; blank lines and `#` comments are skipped.

    Parameters
    ----------
    first_line : number of the first of these lines in the file.
    """
    refuse_long_table(lines, first_line)
    titles: list[str] | None = None
    for line, text in enumerate(lines, start=first_line):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        cells = _cells(text, line)
        if titles is None:
            titles = [cell.strip().lower().removeprefix("\ufeff") for cell in cells]
            if repeated := [title for title in titles if titles.count(title) > 1]:
                raise bad_line(line, Message("common.given_twice", name=repr(repeated[0][:40])))
            continue
        if len(cells) != len(titles):
            raise bad_line(line, Message("common.entries_expected", count=len(titles), found=len(cells)))
        yield TableRow(line, dict(zip(titles, cells, strict=True)))


def _cells(text: str, line: int) -> list[str]:
    try:
        cells = next(csv.reader([text], strict=True))
    except (csv.Error, StopIteration) as error:
        raise bad_line(line, Message("common.not_of_format", reason=error, format="CSV")) from None
    if len(cells) > MAX_COLUMNS:
        raise bad_line(line, Message("field_fault.at_most_entries", bound=f"{MAX_COLUMNS:,}"))
    return cells


def steady(times: Sequence[float]) -> Steady:
    """The steady part of iteration times.

    Warm-up is the leading iterations that take more than 1.1 times the median of the second half; where there are at
    least three, the first is always one. What remains is told by its median, which a checkpoint or an evaluation in
    between does not move, and by the median absolute deviation from it.
    """
    settled = statistics.median(times[len(times) // 2 :])
    warm_up = 1 if len(times) >= 3 else 0
    while warm_up < len(times) - 1 and times[warm_up] > WARM_UP_FACTOR * settled:
        warm_up += 1
    rest = times[warm_up:]
    median = statistics.median(rest)
    deviation = statistics.median([abs(value - median) for value in rest])
    return Steady(warm_up, len(rest), median, MAD_TO_SIGMA * deviation / median)
