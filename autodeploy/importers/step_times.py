"""Step times as people note them: a CSV table or JSON lines, one row an iteration or one row a run."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from autodeploy.errors import SpecError
from autodeploy.importers.documents import load_json
from autodeploy.importers.measured_text import (
    TableRow,
    bad_line,
    lines_of,
    refuse_long_table,
    steady,
    table_rows,
    whole,
)
from autodeploy.messages import Message
from autodeploy.specs.measured_run import MeasuredRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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

    Raises
    ------
    SpecError
        with the line of what can't be read.
    """
    lines = lines_of(text)
    first = next((line.lstrip("\ufeff \t") for line in lines if line.strip()), "")
    rows = list(_json_rows(lines) if first.startswith("{") else table_rows(lines))
    if not rows:
        raise SpecError(
            Message("importers.no_measured_row"), hint=Message("importers.title_line_such_as_step_time_s_then")
        )
    groups: dict[tuple[tuple[str, int], ...], list[TableRow]] = {}
    for row in rows:
        groups.setdefault(_strategy(row), []).append(row)
    return tuple(_run(dict(strategy), members) for strategy, members in groups.items())


def _without_place(message: str) -> str:
    """What was wrong, where the line is told by its number in the file."""
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
