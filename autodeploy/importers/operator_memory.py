"""`ASCEND_PROFILER_OUTPUT/operator_memory.csv`: what a rank's allocator holds whenever an operator asks for memory.

`Allocation Total Allocated(MB)` and `Allocation Total Reserved(MB)`, in KB in msprof's own table, as CANN describes
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from autodeploy.errors import SpecError
from autodeploy.importers.measured_text import bad_line, number
from autodeploy.importers.profiler_table import profiler_rows
from autodeploy.messages import Message

ALLOCATED = "allocation total allocated"
RESERVED = "allocation total reserved"
GIB_OF = {"(mb)": 1.0 / 1024.0, "(kb)": 1.0 / 1024.0**2}
MAX_TENSORS = 10


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """Highest totals of the allocator, and the largest requests: operator and GiB, one entry an operator."""

    allocated_gib: float
    reserved_gib: float
    largest: tuple[tuple[str, float], ...]


def read_operator_memory(text: str) -> MemoryTrace:
    """The peak of a rank's allocator.

    Raises
    ------
    SpecError
        with the line of what can't be read.
    """
    allocated = reserved = 0.0
    largest: dict[str, float] = {}
    for row in profiler_rows(text, ("name", "size(kb)")):
        unit = next((unit for unit in GIB_OF if ALLOCATED + unit in row.cells), None)
        if unit is None or RESERVED + unit not in row.cells:
            raise bad_line(
                1,
                Message("common.missing", word=repr(ALLOCATED + "(mb)")),
                hint=Message("importers.output_of", command="torch_npu.profiler"),
            )
        totals = []
        for column in (ALLOCATED + unit, RESERVED + unit):
            cell = row.cells[column]
            value = number(cell, row.line, column) if cell not in {"", "N/A"} else 0.0
            if value < 0.0:
                raise bad_line(
                    row.line,
                    Message("common.place", place=column, message=Message("field_fault.is_too_small", value=cell[:40])),
                )
            totals.append(value * GIB_OF[unit])
        allocated, reserved = max(allocated, totals[0]), max(reserved, totals[1])
        size = number(row.cells["size(kb)"], row.line, "size(kb)") * GIB_OF["(kb)"]
        name = row.cells["name"][:200]
        largest[name] = max(size, largest.get(name, 0.0))
    if allocated <= 0.0:
        raise SpecError(
            Message("importers.no_measured_row"),
            hint="profile_memory=True",
        )
    ordered = sorted(largest.items(), key=lambda item: (-item[1], item[0]))
    return MemoryTrace(allocated, reserved, tuple(ordered[:MAX_TENSORS]))
