"""Any file of measurements: which kind it is, and what it says."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING, Any

from autodeploy.formats.measurements.benchmark_tables import (
    MAX_TEXT_BYTES,
    TableRow,
    bad_line,
    is_collective_table,
    is_gemm_table,
    lines_of,
    number,
    positive,
    read_collective_table,
    read_gemm_table,
    refuse_long_table,
    steady,
    table_rows,
    whole,
    within_documents,
)
from autodeploy.formats.measurements.profiler_tables import is_step_trace, read_step_trace
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.specs.measured_run import MeasuredRun, OutOfMemory, Timer
from autodeploy.specs.text_files import in_file, load_json, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


# Out-of-memory lines of torch_npu and PyTorch in a log.
OUT_OF_MEMORY_MARK = "out of memory. Tried to allocate"
_SIZE = r"([0-9][0-9.]{0,20}) (bytes|KiB|MiB|GiB|TiB)\b"
_ASKED = re.compile(re.escape(OUT_OF_MEMORY_MARK) + " " + _SIZE)
_FIELDS = {
    "capacity_gib": re.compile(rf"{_SIZE} total capacity|total capacity of {_SIZE}"),
    "allocated_gib": re.compile(rf"{_SIZE} already allocated|Of the allocated memory {_SIZE}"),
    "free_gib": re.compile(rf"{_SIZE} free\b|of which {_SIZE} is free"),
    "reserved_gib": re.compile(rf"{_SIZE} reserved in total"),
}
_RANK = re.compile(r"\[rank([0-9]{1,6})\]:")
_GIB = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}


def run_out_of_memory(text: str) -> MeasuredRun:
    """The run of a log that ends without an iteration; errors as `read_out_of_memory`."""
    report = read_out_of_memory(text)
    return MeasuredRun(source="out_of_memory", out_of_memory=report, original=report.model_dump(exclude_none=True))


def has_out_of_memory(text: str) -> bool:
    """Whether a line says that memory ran out."""
    return OUT_OF_MEMORY_MARK in text


def read_out_of_memory(text: str) -> OutOfMemory:
    """The line that says the most was needed; of equal ones the first.

    Raises SpecError with the line of what can't be read.
    """
    reports = list(_reports(text))
    if not reports:
        raise SpecError(Message("common.missing", word=repr(OUT_OF_MEMORY_MARK)))
    return max(reports, key=lambda each: (each.asked_gib or 0.0) + (each.allocated_gib or 0.0))


def _reports(text: str) -> Iterator[OutOfMemory]:
    for line, content in enumerate(lines_of(text), start=1):
        if OUT_OF_MEMORY_MARK not in content:
            continue
        asked = _ASKED.search(content)
        if asked is None:
            raise bad_line(line, Message("common.missing", word=repr(f"{OUT_OF_MEMORY_MARK} 260.00 MiB")))
        values: dict[str, float | int] = {"asked_gib": positive(asked[1], line, "asked") * _GIB[asked[2]]}
        for name, pattern in _FIELDS.items():
            if (match := pattern.search(content)) is not None:
                size, unit = (each for each in match.groups() if each is not None)
                values[name] = number(size, line, name) * _GIB[unit]
        if (rank := _RANK.search(content)) is not None:
            values["rank"] = int(rank[1])
        try:
            yield OutOfMemory.model_validate(values)
        except ValueError:
            raise bad_line(line, Message("field_fault.is_invalid", value=quoted(content.strip()))) from None


# Step times as people note them.
# Titles of the same quantity, and what one of their unit is in ours.
TIME_COLUMNS: dict[str, float] = {
    "step_time_s": 1.0,
    "iteration_time_s": 1.0,
    "elapsed_s": 1.0,
    "time_s": 1.0,
    "step_time_ms": 1e-3,
    "iteration_time_ms": 1e-3,
    "elapsed_ms": 1e-3,
    "time_ms": 1e-3,
}
FIGURES = ("tokens_per_s_per_npu", "tflops_per_npu", "peak_memory_gib")
STRATEGY_COLUMNS = (
    *("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "micro_batch_size"),
    *("num_npus", "seq_length", "global_batch_size"),
)
ORDINALS = ("step", "iteration")


def read_step_times(text: str) -> tuple[MeasuredRun, ...]:
    """One run for each strategy that the rows name; one in all where they name none.

    Raises SpecError with the line of what can't be read.
    """
    lines = lines_of(text)
    first = next((line.lstrip("\ufeff \t") for line in lines if line.strip()), "")
    rows = list(_json_rows(lines) if first.startswith("{") else table_rows(lines))
    if not rows:
        raise SpecError(Message("importers.no_measured_row"), hint=Message("importers.step_times_format"))
    groups: dict[tuple[tuple[str, int], ...], list[TableRow]] = {}
    for row in rows:
        groups.setdefault(_strategy(row), []).append(row)
    return tuple(_run(dict(strategy), members) for strategy, members in groups.items())


def _without_place(message: str) -> str:
    """Fault of a line that is told by its number in the file."""
    return str(message.values["message"]) if isinstance(message, Message) and "message" in message.values else message


def _json_rows(lines: Sequence[str]) -> Iterator[TableRow]:
    refuse_long_table(lines)
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            value = load_json(text)
        except SpecError as error:
            raise bad_line(line, _without_place(str(error))) from None
        if not isinstance(value, dict):
            raise bad_line(line, Message("importers.not_json_object"))
        yield TableRow(line, {str(key).lower(): _cell(item) for key, item in value.items()})


def _cell(value: Any) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)


def _strategy(row: TableRow) -> tuple[tuple[str, int], ...]:
    named = ((name, row.cells.get(name, "").strip()) for name in STRATEGY_COLUMNS)
    return tuple((name, whole(text, row.line, name)) for name, text in named if text)


def _time(row: TableRow) -> float | None:
    for column, scale in TIME_COLUMNS.items():
        seconds = row.number(column, scale=scale)
        if seconds is not None:
            return seconds
    return None


def _run(strategy: dict[str, int], rows: Sequence[TableRow]) -> MeasuredRun:
    times = [(row, seconds) for row in rows if (seconds := _time(row)) is not None]
    figures = {name: [v for row in rows if (v := row.number(name)) is not None] for name in FIGURES}
    if not times and not any(figures.values()):
        columns = ", ".join((*TIME_COLUMNS, *FIGURES))
        raise bad_line(rows[0].line, Message("common.at_least_one_of", names=columns))
    steady_times = steady([seconds for _, seconds in times]) if times else None
    warm_up = steady_times.warm_up if steady_times else 0
    speeds, flops = (figures[name][warm_up:] or figures[name] for name in FIGURES[:2])
    known_columns = {*TIME_COLUMNS, *FIGURES, *STRATEGY_COLUMNS, *ORDINALS}
    return MeasuredRun(
        source="step_times",
        step_time_s=steady_times.median if steady_times else None,
        step_time_spread=steady_times.spread if steady_times and steady_times.iterations > 1 else None,
        iterations=steady_times.iterations if steady_times else None,
        warm_up_iterations=warm_up,
        tokens_per_s_per_npu=statistics.median(speeds) if speeds else None,
        tflops_per_npu=statistics.median(flops) if flops else None,
        peak_memory_gib=max(figures["peak_memory_gib"], default=None),
        strategy=strategy,
        original={
            "rows": len(rows),
            "step_times_s": [seconds for _, seconds in times][:1000],
            "ignored_columns": sorted({name for name in rows[0].cells if name not in known_columns})[:50],
        },
    )


# The training log of Megatron-LM and MindSpeed-LLM: time per iteration, throughput, memory.
ITERATION_MARK = "elapsed time per iteration (ms):"
# megatron/core/timers.py: a name, dots, and (min, max) over the ranks or max alone, in ms of a step.
_TIMER = re.compile(
    r"^\s*(forward-backward|all-grads-sync|optimizer) \.+: \(?([0-9.]{1,20})(?:, ([0-9.]{1,20})\))?\s*$"
)
_MEMORY = re.compile(r"max allocated:\s*([^|\s]{1,40})")
_THROUGHPUT = "throughput per gpu (tflop/s/gpu)"
MIB_PER_GIB = 1024.0


def read_training_log(text: str) -> MeasuredRun:
    """Median of the steady iterations at the last global batch, median throughput, worst rank's memory.

    Raises SpecError with the line of what can't be read.
    """
    rows: list[tuple[int, dict[str, str]]] = []
    peaks: list[float] = []
    timers: dict[Timer, list[tuple[float, float]]] = {}
    skipped = 0
    for line, content in enumerate(lines_of(text), start=1):
        if ITERATION_MARK in content:
            fields = _fields(content)
            if fields.get("number of skipped iterations", "0") not in {"0", ""}:
                skipped += 1
            rows.append((line, fields))
        elif (match := _TIMER.search(content)) is not None:
            name: Timer = match[1]  # type: ignore[assignment]
            span = (number(match[2], line, name) * 1e-3, number(match[3] or match[2], line, name) * 1e-3)
            timers.setdefault(name, []).append(span)
        elif "max allocated:" in content and (match := _MEMORY.search(content)):
            peaks.append(positive(match[1], line, "max allocated"))
    if not rows:
        raise SpecError(Message("common.missing", word=repr(ITERATION_MARK)), hint=Message("importers.give_rank_log"))
    batch = _batch(*rows[-1])  # after any ramp
    used = [(line, fields) for line, fields in rows if _batch(line, fields) == batch]
    times = [
        positive(fields.get(ITERATION_MARK[:-1], ""), line, "elapsed time per iteration") * 1e-3
        for line, fields in used
    ]
    steady_times = steady(times)
    speeds = [
        positive(f[_THROUGHPUT], line, "throughput") for line, f in used[steady_times.warm_up :] if f.get(_THROUGHPUT)
    ]
    return MeasuredRun(
        source="training_log",
        step_time_s=steady_times.median,
        step_time_spread=steady_times.spread if steady_times.iterations > 1 else None,
        iterations=steady_times.iterations,
        warm_up_iterations=steady_times.warm_up,
        tflops_per_npu=statistics.median(speeds) if speeds else None,
        peak_memory_gib=max(peaks) / MIB_PER_GIB if peaks else None,
        strategy={} if batch is None else {"global_batch_size": batch},
        timers={name: _steady_span(spans) for name, spans in timers.items()},
        original={
            "iterations": len(rows),
            "iterations_at_other_batches": len(rows) - len(used),
            "skipped_iterations": skipped,
            "elapsed_time_per_iteration_ms": [1e3 * t for t in times][:1000],
            "max_allocated_mib": max(peaks) if peaks else None,
        },
    )


def _steady_span(spans: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Medians of least and most over the later half of the intervals that were logged."""
    later = spans[len(spans) // 2 :]
    return statistics.median(span[0] for span in later), statistics.median(span[1] for span in later)


def _fields(content: str) -> dict[str, str]:
    """`name: value` between bars, names in lower case."""
    parts = (part.partition(":") for part in content.split("|"))
    return {name.strip().lower(): value.strip() for name, colon, value in parts if colon}


def _batch(line: int, fields: dict[str, str]) -> int | None:
    text = fields.get("global batch size")
    return None if text is None else whole(text, line, "global batch size")


def read_measured_file(path: Path, *, op: str | None = None, ranks: int | None = None) -> tuple[MeasuredRun, ...]:
    """The runs in a file; errors as `read_measured_text`, with the file's name."""
    text = read_text(path, max_bytes=MAX_TEXT_BYTES)
    with in_file(path):
        return read_measured_text(text, op=op, ranks=ranks)


@within_documents()
def read_measured_text(text: str, *, op: str | None = None, ranks: int | None = None) -> tuple[MeasuredRun, ...]:
    """The runs in a text, of whichever kind it is.

    op, ranks : of a collective benchmark that does not say them.

    Raises SpecError with the line of what can't be read.
    """
    if not text.strip():
        raise SpecError(Message("field_fault.is_empty"))
    lines_of(text)
    if ITERATION_MARK in text:
        run = read_training_log(text)
        if has_out_of_memory(text):
            run = run.model_copy(update={"out_of_memory": read_out_of_memory(text)})
        return (run,)
    if has_out_of_memory(text):
        return (run_out_of_memory(text),)
    if is_step_trace(text):
        return (read_step_trace(text),)
    titles = _titles(text)
    if is_gemm_table(titles):
        return (read_gemm_table(text),)
    if is_collective_table(text, titles):
        return (read_collective_table(text, op=op, ranks=ranks),)
    return read_step_times(text)


def _titles(text: str) -> frozenset[str]:
    """Cells of the first line that is neither blank nor a comment."""
    for line in text.split("\n"):
        stripped = line.strip().lstrip("\ufeff")
        if stripped and not stripped.startswith("#"):
            return frozenset(cell.strip().lower() for cell in stripped.split(","))
    return frozenset()
