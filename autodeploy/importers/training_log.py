"""The training log of Megatron-LM and MindSpeed-LLM: time per iteration, throughput, memory.

Source: Megatron-LM megatron/training/training.py (training_log) and utils.py (report_memory, MiB).
"""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.importers.measured_text import lines_of, positive, steady, whole
from autodeploy.messages import Message
from autodeploy.specs.measured_run import MeasuredRun

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "elapsed time per iteration (ms):"
_MEMORY = re.compile(r"max allocated:\s*([^|\s]{1,40})")
_THROUGHPUT = "throughput per gpu (tflop/s/gpu)"
MIB_PER_GIB = 1024.0


def is_training_log(text: str) -> bool:
    """Whether it has a line of an iteration."""
    return MARK in text


def read_training_log(text: str) -> MeasuredRun:
    """Median of the steady iterations at the last global batch, median throughput, worst rank's memory.

    Raises
    ------
    SpecError
        with the line of what can't be read.
    """
    rows: list[tuple[int, dict[str, str]]] = []
    peaks: list[float] = []
    skipped = 0
    for line, content in enumerate(lines_of(text), start=1):
        if MARK in content:
            fields = _fields(content)
            if fields.get("number of skipped iterations", "0") not in {"0", ""}:
                skipped += 1
            rows.append((line, fields))
        elif "max allocated:" in content and (match := _MEMORY.search(content)):
            peaks.append(positive(match[1], line, "max allocated"))
    if not rows:
        raise SpecError(
            Message("common.missing", word=repr(MARK)), hint=Message("importers.log_of_rank_0_or_of_last_rank")
        )
    batch = _last_batch(rows)
    used = [(line, fields) for line, fields in rows if _batch(line, fields) == batch]
    times = [positive(fields.get(MARK[:-1], ""), line, "elapsed time per iteration") * 1e-3 for line, fields in used]
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
        original={
            "iterations": len(rows),
            "iterations_at_other_batches": len(rows) - len(used),
            "skipped_iterations": skipped,
            "elapsed_time_per_iteration_ms": [1e3 * t for t in times][:1000],
            "max_allocated_mib": max(peaks) if peaks else None,
        },
    )


def _fields(content: str) -> dict[str, str]:
    """`name: value` between bars, names in lower case."""
    parts = (part.partition(":") for part in content.split("|"))
    return {name.strip().lower(): value.strip() for name, colon, value in parts if colon}


def _batch(line: int, fields: dict[str, str]) -> int | None:
    text = fields.get("global batch size")
    return None if text is None else whole(text, line, "global batch size")


def _last_batch(rows: Sequence[tuple[int, dict[str, str]]]) -> int | None:
    """The global batch after any ramp."""
    return _batch(*rows[-1])
