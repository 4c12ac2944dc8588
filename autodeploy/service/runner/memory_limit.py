"""Memory that a process of a search may take, and the end of a search that needs more.

The limit is of address space: the system refuses what goes beyond it, so that Python raises MemoryError long before the
machine has nothing left and its kernel picks somebody to kill. A native library that can't go on ends its process by
SIGABRT instead.
"""

from __future__ import annotations

import os
import resource
import signal
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autodeploy.kit.errors import MemoryLimitError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


# The memory of a process and of everything that it started.
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


REPLACE_ABOVE_SHARE: Final = 0.5
"""Of the limit, what a process may still hold after a search and take another one."""
HINT: Final = Message("jobs.shrink_search")
NO_THREAD: Final = "can't start new thread"


def limit_memory(most_bytes: int) -> None:
    """Hold this process, and what it forks, to so many bytes of address space each; never above its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that no memory was left; a thread without room for its stack says it in other words."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_THREAD in str(error))


def out_of_memory(error: BaseException) -> MemoryLimitError:
    """The error of a search that needed more than it may take; what it held is free again."""
    traceback.clear_frames(error.__traceback__)
    return MemoryLimitError(Message("jobs.search_memory_limit", limit=_limit_in_words()), hint=HINT)


def aborted(process: BaseProcess | None) -> bool:
    """Whether a process ended itself, as native code does that gets no memory."""
    return process is not None and process.exitcode == -signal.SIGABRT


def is_worn() -> bool:
    """Whether this process holds so much that another search should have a new one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return False
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return False
    return pages * resource.getpagesize() > REPLACE_ABOVE_SHARE * soft


def _limit_in_words() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return "there is" if soft == resource.RLIM_INFINITY else f"{soft / (1 << 30):.1f} GiB"
