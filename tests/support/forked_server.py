"""The process from which tests fork others, itself a fork of the tests' process, which has imported everything.

It is forked before the first test, whose patches it would keep, and waits: most runs of a few tests never ask for it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import socket
import sys
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_BYTES = 1 << 20
ABOVE_ALL = 900  # numbers of files that no other has


class _Waiting:
    """The process that waits, and how it is asked."""

    asked: socket.socket | None = None
    pid: int


_waiting = _Waiting()


def fork_and_wait() -> None:
    """Called once, outside any test."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        _wait(its)
    its.close()
    _waiting.asked, _waiting.pid = ours, pid


def let_go() -> None:
    """Ends the process that waits, if nobody asked for it."""
    if _waiting.asked is not None:
        _waiting.asked.close()
        _waiting.asked = None


@contextlib.contextmanager
def in_place_of_an_interpreter() -> Iterator[None]:
    """Inside, `multiprocessing` gets the waiting process for its fork server, if there is one."""
    start = util.spawnv_passfds

    def spawnv_passfds(path: bytes, arguments: Sequence[str], kept: Sequence[int]) -> int:
        if _waiting.asked is None or "forkserver" not in arguments[-1]:
            return start(path, arguments, kept)
        with _waiting.asked as asked:
            _waiting.asked = None
            passed = [*kept, 1, 2]  # what it says is the running test's
            socket.send_fds(asked, [json.dumps([arguments[-1], passed]).encode()], passed)
        return _waiting.pid

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(util, "spawnv_passfds", spawnv_passfds)
        yield


def close_all_but(kept: Sequence[int]) -> None:
    """Closes what this process has open besides its streams."""
    for name in os.listdir("/proc/self/fd"):
        if (number := int(name)) > 2 and number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)


def _wait(asked: socket.socket) -> NoReturn:
    """As a new interpreter would be, but for its imports: nothing of pytest listens, and no file of it is open."""
    try:
        faulthandler.disable()
        logging.getLogger().handlers.clear()
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
        close_all_but([asked.fileno()])
        Path("/proc/self/comm").write_text("forkserver")  # as the command of an interpreter would say
        words, passed, *_ = socket.recv_fds(asked, MOST_BYTES, 8)
        if words:  # else the tests have ended
            code, numbers = json.loads(words)
            asked.detach()
            high = [os.dup2(number, ABOVE_ALL + n) for n, number in enumerate(passed)]
            close_all_but(high)
            for number, wanted in zip(high, numbers, strict=True):
                os.dup2(number, wanted)
                os.close(number)
            exec(code)
    finally:
        os._exit(0)
