"""The memory of a process and of everything that it started."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of the process (by default this one) and its descendants; pages that they share count for each.

    0 where the system has no /proc.
    """
    total, waiting, seen = 0, [os.getpid() if pid is None else pid], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        folder = Path(f"/proc/{one}")
        try:
            total += int((folder / "statm").read_text().split()[1]) * _PAGE_BYTES
            for thread in (folder / "task").iterdir():
                waiting += [int(child) for child in (thread / "children").read_text().split()]
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile
    return total
