"""`ASCEND_PROFILER_OUTPUT/step_trace_time.csv` of the Ascend profiler: where each step of each device went, in us."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.importers.measured_text import TableRow, bad_line, lines_of, number, table_rows
from autodeploy.messages import Message
from autodeploy.specs.measured_run import MeasuredRun, ProfilerTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPUTING = "computing"
EXPOSED = "communication(not overlapped)"
FREE = "free"
BUBBLE = "bubble"
REQUIRED = (COMPUTING, EXPOSED, FREE)
SHOWN = (*REQUIRED, "overlapped", "communication", "stage", BUBBLE, "preparing")
S_PER_US = 1e-6


def is_step_trace(text: str) -> bool:
    """Whether the first line has the profiler's titles."""
    first = text.lstrip("\ufeff \r\n\t").partition("\n")[0].lower()
    return COMPUTING in first and EXPOSED in first


def read_step_trace(text: str) -> MeasuredRun:
    """Medians over the steps of the device that computes longest; several files may follow each other.

    A step takes computing + communication not overlapped + free. The pipeline's receives are inside the
    communication and are told apart as the bubble. A profiled step is slower than one that nobody watches.

    Raises
    ------
    SpecError
        with the line of what can't be read.
    """
    lines = [line if index == 0 or not is_step_trace(line) else "" for index, line in enumerate(lines_of(text))]
    rows = [row for row in table_rows(lines) if row.cells.get("type", "rank").strip() in {"rank", ""}]
    if not rows:
        raise SpecError(
            Message("importers.no_measured_row"), hint=Message("importers.output_of", command="torch_npu.profiler")
        )
    missing = [name for name in REQUIRED if name not in rows[0].cells]
    if missing:
        raise bad_line(
            1,
            Message("common.missing", word=repr(missing[0])),
            hint=Message("importers.output_of", command="torch_npu.profiler"),
        )
    devices: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        name = (row.cells.get("device_id") or row.cells.get("index") or "0").strip()
        devices.setdefault(name[:64], []).append(_step(row))
    busiest = max(devices, key=lambda name: (_median(devices[name], COMPUTING), name))
    steps = devices[busiest]
    bubble = _median(steps, BUBBLE)
    times = ProfilerTimes(
        computing_s=_median(steps, COMPUTING) * S_PER_US,
        communication_s=max(0.0, _median(steps, EXPOSED) - bubble) * S_PER_US,
        bubble_s=min(bubble, _median(steps, EXPOSED)) * S_PER_US,
        free_s=_median(steps, FREE) * S_PER_US,
        overlapped_s=_median(steps, "overlapped") * S_PER_US,
        steps=len(steps),
        devices=len(devices),
    )
    if times.step_time_s <= 0.0:
        raise bad_line(rows[0].line, Message("field_fault.is_too_small", value=f"{times.step_time_s:g} s"))
    original = {name: _median(steps, name) for name in SHOWN if name in rows[0].cells}
    return MeasuredRun(
        source="profiler",
        step_time_s=times.step_time_s,
        iterations=len(steps),
        profiler=times,
        original={"device": busiest, "median_us": original},
    )


def _step(row: TableRow) -> dict[str, float]:
    times = {}
    for name in SHOWN:
        text = row.cells.get(name, "").strip()
        value = number(text, row.line, name) if text else 0.0
        if value < 0.0:
            raise bad_line(
                row.line,
                Message("common.place", place=name, message=Message("field_fault.is_too_small", value=text[:40])),
            )
        times[name] = value
    return times


def _median(steps: Sequence[dict[str, float]], name: str) -> float:
    return statistics.median([step[name] for step in steps])
