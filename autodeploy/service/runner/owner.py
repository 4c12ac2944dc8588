"""Owner of a search: a name for its process that says later whether the process still lives."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path


def _process_space() -> str:
    """Host and process-number space: numbers mean the same process only where both are equal."""
    try:
        space = Path("/proc/self/ns/pid").readlink().name.removeprefix("pid:").strip("[]")
    except OSError:
        space = "0"
    return f"{socket.gethostname()}/{space}"


def _started(pid: int) -> str | None:
    """Beginning of a process, in the kernel's ticks since boot, which no clock moves; None for one that is gone.

    Empty where the system does not tell. A process that ended and was not yet asked how is gone.
    """
    try:
        os.kill(pid, 0)
        state, *rest = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except ProcessLookupError:
        return None
    except (OSError, ValueError):
        return ""
    return None if state in "ZX" else rest[18]


_TOKENS: set[str] = set()
"""Of the owners that this process made, and of those of the process it was forked from, whose number is another."""


def _token() -> str:
    token = secrets.token_hex(4)
    _TOKENS.add(token)
    return token


@dataclass(frozen=True, slots=True)
class Owner:
    """This process as the owner of searches; it may have several, one for each runner and each search of its own."""

    space: str = field(default_factory=_process_space)
    pid: int = field(default_factory=os.getpid)
    token: str = field(default_factory=_token)

    def __str__(self) -> str:
        return f"{self.space[-160:]}:{self.pid}:{self.token}@{_started(self.pid) or ''}"

    def knows_alive(self, other: str) -> bool | None:
        """Whether that owner lives, if it is a process of this machine; of other machines nothing is known: None."""
        space, _, rest = other.partition(":")
        pid, _, rest = rest.partition(":")
        token, _, said = rest.partition("@")
        if space != self.space[-160:] or not pid.isdigit():
            return None
        if int(pid) == self.pid:
            return token in _TOKENS | {self.token}  # the number is ours now: an earlier holder of it is gone
        started = _started(int(pid))
        if started is None:
            return False
        return None if not started or not said else said == started

    def is_dead(self, other: str) -> bool:
        """Whether that owner is a process of this machine that is gone."""
        return self.knows_alive(other) is False
