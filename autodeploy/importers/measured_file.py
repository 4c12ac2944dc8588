"""Any file of measurements: which kind it is, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.importers.benchmark_tables import (
    is_collective_table,
    is_gemm_table,
    read_collective_table,
    read_gemm_table,
)
from autodeploy.importers.documents import in_file, read_text
from autodeploy.importers.measured_text import MAX_TEXT_BYTES, lines_of
from autodeploy.importers.out_of_memory import has_out_of_memory, read_out_of_memory, run_out_of_memory
from autodeploy.importers.step_times import read_step_times
from autodeploy.importers.step_trace import is_step_trace, read_step_trace
from autodeploy.importers.training_log import is_training_log, read_training_log
from autodeploy.messages import Message

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.specs.measured_run import MeasuredRun


def read_measured_file(path: Path, *, op: str | None = None, ranks: int | None = None) -> tuple[MeasuredRun, ...]:
    """The runs in a file; errors as `read_measured_text`, with the file's name."""
    text = read_text(path, max_bytes=MAX_TEXT_BYTES)
    with in_file(path):
        return read_measured_text(text, op=op, ranks=ranks)


def read_measured_text(text: str, *, op: str | None = None, ranks: int | None = None) -> tuple[MeasuredRun, ...]:
    """The runs in a text, of whichever kind it is.

    Parameters
    ----------
    op, ranks : of a collective benchmark that does not say them.

    Raises
    ------
    SpecError
        with the line of what can't be read.
    """
    if not text.strip():
        raise SpecError(Message("field_fault.is_empty"))
    lines_of(text)
    if is_training_log(text):
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
