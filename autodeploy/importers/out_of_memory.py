"""Out-of-memory lines of torch_npu and PyTorch in a log: what was asked for and what the allocator held.

Sources: torch_npu NPUCachingAllocator.cpp ("NPU out of memory. Tried to allocate 260.00 MiB (NPU 0; 28.50 GiB total
capacity; 10.24 GiB already allocated; 10.24 GiB current active; 149.57 MiB free; 10.28 GiB reserved in total by
PyTorch)"), its `format_size`; PyTorch c10/cuda/CUDACachingAllocator.cpp ("CUDA out of memory. Tried to allocate 20.00
MiB. GPU 0 has a total capacity of 79.15 GiB of which 3.25 MiB is free. ... Of the allocated memory 70.00 GiB is
allocated by PyTorch"); torch.distributed prefixes tracebacks with "[rank3]:".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.importers.measured_text import bad_line, lines_of, number, positive
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.specs.measured_run import MeasuredRun, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "out of memory. Tried to allocate"
_SIZE = r"([0-9][0-9.]{0,20}) (bytes|KiB|MiB|GiB|TiB)\b"
_ASKED = re.compile(re.escape(MARK) + " " + _SIZE)
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
    return MARK in text


def read_out_of_memory(text: str) -> OutOfMemory:
    """The line that says the most was needed; of equal ones the first.

    Raises
    ------
    SpecError
        with the line of what can't be read.
    """
    reports = list(_reports(text))
    if not reports:
        raise SpecError(Message("common.missing", word=repr(MARK)))
    return max(reports, key=lambda each: (each.asked_gib or 0.0) + (each.allocated_gib or 0.0))


def _reports(text: str) -> Iterator[OutOfMemory]:
    for line, content in enumerate(lines_of(text), start=1):
        if MARK not in content:
            continue
        asked = _ASKED.search(content)
        if asked is None:
            raise bad_line(
                line,
                Message("common.missing", word=repr(f"{MARK} 260.00 MiB")),
            )
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
