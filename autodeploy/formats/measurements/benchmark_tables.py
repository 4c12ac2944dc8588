"""Benchmarks of the cluster itself: matrix multiplications by shape, collectives by size.

GEMM: a CSV table with m, n, k and one of us, ms, s, tflops. Collectives: the table that hccl_test prints
(data_size, aveg_time, alg_bandwidth, check_result), that of nccl-tests (size ... time algbw busbw), or a CSV with op,
ranks, bytes and one of time_us, algbw, busbw. Operation and ranks stand in the table, in the command line above it
(`mpirun -n 8 ./bin/all_reduce_test -p 8`) or in a comment (`# op=all_reduce ranks=8`).
"""

from __future__ import annotations

import contextlib
import csv
import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from pydantic import ValidationError

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.measured_run import Collective, CollectivePoint, GemmPoint, MeasuredRun
from autodeploy.specs.text_files import refuse_long

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

    Raises SpecError when there are too many, or one is too long or binary.
    """
    refuse_long(text, MAX_TEXT_BYTES)
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


_OPS: dict[str, Collective] = {
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
}
_OP = re.compile(r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv?)(?:_test|_perf)?", re.IGNORECASE)
# `ranks=8`, `rank_size is 8`, or the processes of mpirun; hccl_test's own -n, which counts iterations, comes later.
_RANKS = re.compile(r"(?:ranks?\s*[=:]\s*|rank_?size\s*(?:is|[=:])\s*|\s-np?\s+)(\d{1,7})", re.IGNORECASE)
_HCCL_TITLE = "data_size"
_HCCL_CELLS = 4
_NCCL_ROW = re.compile(r"^\s*(\d{1,15})\s+\d{1,15}\s+\w{1,12}\s+\w{1,12}\s+-?\d{1,7}\s+([0-9.eE+]{1,24})\s")
_TIMES = {"us": 1e-6, "time_us": 1e-6, "ms": 1e-3, "time_ms": 1e-3, "s": 1.0, "time_s": 1.0, "seconds": 1.0}
_BYTES = ("bytes", "size", "size_bytes", "message_bytes", "data_size")
MAX_POINTS = 10_000
MAX_TEXT = 2_000_000
MAX_COMMAND_LENGTH = 2_000


def is_gemm_table(titles: frozenset[str]) -> bool:
    """Whether these are titles of measured matrix multiplications."""
    return {"m", "n", "k"} <= titles


def is_collective_table(text: str, titles: frozenset[str]) -> bool:
    """Whether this is the output of hccl_test or nccl-tests, or a table of collectives."""
    printed = _HCCL_TITLE in text or ("algbw" in text and "busbw" in text)
    return printed or (bool(titles & {*_BYTES}) and bool(titles & {"algbw", "busbw", *_TIMES}))


def read_gemm_table(text: str) -> MeasuredRun:
    """Measured matrix multiplications.

    Raises SpecError with the line of what can't be read.
    """
    points = []
    for row in table_rows(_bounded(text)):
        shape = {name: whole(row.cells.get(name, ""), row.line, name) for name in ("m", "n", "k")}
        seconds = _seconds(row)
        tflops = row.number("tflops")
        if seconds is None and tflops is not None:
            seconds = 2.0 * shape["m"] * shape["n"] * shape["k"] / (tflops * 1e12)
        if seconds is None:
            raise bad_line(row.line, Message("common.at_least_one_of", names=", ".join((*_TIMES, "tflops"))))
        points.append(GemmPoint(**shape, seconds=seconds))
        _refuse_many(points, row.line)
    if not points:
        raise SpecError(Message("importers.no_measured_row"), hint="m,n,k,us")
    return MeasuredRun(source="gemm_benchmark", gemm=tuple(points), original={"points": len(points)})


def read_collective_table(text: str, *, op: str | None = None, ranks: int | None = None) -> MeasuredRun:
    """Measured collectives; what the text does not say of operation and ranks, the caller does.

    Raises SpecError with the line of what can't be read.
    """
    lines = _bounded(text)
    printed = _HCCL_TITLE in text or any(_NCCL_ROW.match(line) for line in lines)
    points = list(_printed(lines, op, ranks) if printed else _tabulated(lines, op, ranks))
    if not points:
        raise SpecError(Message("importers.no_measured_row"), hint="op,ranks,bytes,time_us")
    return MeasuredRun(source="collective_benchmark", collectives=tuple(points), original={"points": len(points)})


def _bounded(text: str) -> list[str]:
    refuse_long(text, MAX_TEXT)
    return lines_of(text)


def _printed(lines: Sequence[str], op: str | None, ranks: int | None) -> Iterator[CollectivePoint]:
    """Rows of hccl_test or nccl-tests; each table may follow the command that made it."""
    count = 0
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is None:
            if len(line) > MAX_COMMAND_LENGTH:
                continue
            named, sized = _OP.search(line), _RANKS.search(line)
            op, ranks = named[1] if named else op, int(sized[1]) if sized else ranks
            continue
        size, time_us, result = row
        if result.lower() == "failed":
            raise bad_line(
                number,
                Message("importers.result_is_wrong", value=repr(result)),
                hint=Message("common.leave_it_out"),
            )
        seconds = positive(time_us, number, "time") * 1e-6
        yield _point(number, op, ranks, whole(size, number, "size"), seconds)
        count += 1
        if count > MAX_POINTS:
            raise bad_line(number, Message("field_fault.at_most_entries", bound=f"{MAX_POINTS:,}"))


def _row(line: str) -> tuple[str, str, str] | None:
    """Size, time and result of a row that hccl_test or nccl-tests prints; None of any other line and of the titles."""
    cells = [cell.strip() for cell in line.split("|", _HCCL_CELLS)]
    if len(cells) == _HCCL_CELLS and not cells[0].startswith(_HCCL_TITLE):
        return cells[0], cells[1], cells[3]
    match = _NCCL_ROW.match(line)
    return None if match is None else (match[1], match[2], "")


def _tabulated(lines: Sequence[str], op: str | None, ranks: int | None) -> Iterator[CollectivePoint]:
    for comment in (line[:MAX_COMMAND_LENGTH] for line in lines if line.lstrip().startswith("#")):
        named, sized = _OP.search(comment), _RANKS.search(comment)
        op, ranks = named[1] if named else op, int(sized[1]) if sized else ranks
    for count, row in enumerate(table_rows(lines), start=1):
        size_text = next((row.cells[name] for name in _BYTES if row.cells.get(name)), "")
        size = whole(size_text, row.line, "bytes")
        named_op = row.cells.get("op", "").strip() or op
        ranks_text = row.cells.get("ranks", "").strip()
        group = whole(ranks_text, row.line, "ranks") if ranks_text else ranks
        seconds = _seconds(row)
        if seconds is None:
            rate = row.number("algbw") or _algorithm_rate(row, named_op, group)
            if rate is None:
                raise bad_line(
                    row.line,
                    Message("common.at_least_one_of", names=", ".join((*_TIMES, "algbw", "busbw"))),
                )
            seconds = size / (rate * 1e9)
        if count > MAX_POINTS:
            raise bad_line(row.line, Message("field_fault.at_most_entries", bound=f"{MAX_POINTS:,}"))
        yield _point(row.line, named_op, group, size, seconds)


def _algorithm_rate(row: TableRow, op: str | None, ranks: int | None) -> float | None:
    """algbw of busbw: busbw counts what a link carries, (g - 1) / g of the message, twice of it for an all-reduce."""
    bus = row.number("busbw")
    if bus is None or ranks is None or ranks < 2:
        return None
    crossings = 2.0 if _collective(row.line, op) == "all_reduce" else 1.0
    return bus / (crossings * (ranks - 1) / ranks)


def _point(line: int, op: str | None, ranks: int | None, size: int, seconds: float) -> CollectivePoint:
    if ranks is None:
        raise bad_line(
            line,
            Message("common.is_required", name="ranks"),
            hint=Message("common.such_as", example="# op=all_reduce ranks=8"),
        )
    if ranks < 2 or ranks > 200_000:
        raise bad_line(line, Message("common.is_outside", value=f"ranks={ranks}", range="[2, 200000]"))
    return CollectivePoint(op=_collective(line, op), ranks=ranks, message_bytes=size, seconds=seconds)


def _collective(line: int, op: str | None) -> Collective:
    name = _OPS.get((op or "").lower().replace("_", "").replace("-", ""))
    if name is None:
        said = (
            Message("common.is_not_modelled_yet", what=repr(op[:40]))
            if op
            else Message("common.is_required", name="op")
        )
        raise bad_line(line, said, hint=Message("common.one_of", names=", ".join(get_args(Collective))))
    return name


def _seconds(row: TableRow) -> float | None:
    return next((v for name, scale in _TIMES.items() if (v := row.number(name, scale=scale)) is not None), None)


def _refuse_many(points: Sequence[object], line: int) -> None:
    if len(points) > MAX_POINTS:
        raise bad_line(line, Message("field_fault.at_most_entries", bound=f"{MAX_POINTS:,}"))
