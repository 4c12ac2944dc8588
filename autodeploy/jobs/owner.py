"""Who runs a search: a name for this process that says later whether the process still lives."""

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
        return f"{self.space[-160:]}:{self.pid}:{self.token}"

    def is_dead(self, other: str) -> bool:
        """Whether that owner is a process of this machine that is gone. Of other machines nothing is known."""
        space, _, rest = other.partition(":")
        pid, _, token = rest.partition(":")
        if space != self.space[-160:] or not pid.isdigit():
            return False
        if int(pid) == self.pid:
            return token not in _TOKENS | {self.token}  # the number is ours now: an earlier holder of it is gone
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False
