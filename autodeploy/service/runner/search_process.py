"""A process of its own for searches, one at a time, made again whenever it died.

A native crash or the kernel's memory killer takes down one search and never the program that waits for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from autodeploy.service.runner import pool_process
from autodeploy.service.runner.memory_limit import aborted
from autodeploy.service.runner.runner import SearchTally

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from autodeploy.kit.settings import Settings
    from autodeploy.service.store.queue import Claim

# A process that does not come up so often in a row will not: the server is not ready then.
HOPELESS_STARTS = 3


class AbortedProcess(BrokenProcessPool):
    """The process of a search ended itself."""


class SearchProcess:
    """Runs claimed searches; one thread uses it, any thread may interrupt it."""

    def __init__(self, settings: Settings, planner: str, tally: SearchTally | None = None) -> None:
        self._tally = tally if tally is not None else SearchTally()
        self._settings = settings
        self._planner = planner
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._pid: int | None = None
        self._interrupted = False
        self._starts_in_vain = 0

    @property
    def comes_up(self) -> bool:
        """Whether the process starts when it is asked to."""
        return self._starts_in_vain < HOPELESS_STARTS

    def start(self) -> None:
        """Returns when the process answers; one that died since is replaced.

        Raises
        ------
        BrokenProcessPool
            when it does not come up, or was interrupted.
        """
        if self._pool is not None:
            try:
                self._pool.submit(pool_process.process_id).result()
                return
            except BrokenProcessPool:
                self.close()
        if self._interrupted:
            raise BrokenProcessPool("the process was told to end")
        self._starts_in_vain += 1
        self._pool = pool_process.new_pool(self._planner, self._settings.search_memory_bytes)
        try:
            self._pid_is(self._pool.submit(pool_process.process_id).result())
        except BrokenProcessPool:
            self.close()
            raise
        self._starts_in_vain = 0

    def run(self, claim: Claim) -> None:
        """Runs the search of that claim; its end is in the database afterwards.

        Raises
        ------
        BrokenProcessPool
            when the process died, so that the search has no end yet.
        AbortedProcess
            when it ended itself, as it does where native code gets no memory: another time it would do the same.
        """
        self.start()  # it may have died since the search was claimed for it
        assert self._pool is not None
        process = (getattr(self._pool, "_processes", None) or {}).get(self._pid)
        job = pool_process.Job(claim, self._settings.database_url, self._planner, self._settings.heartbeat_s)
        try:
            started_s = time.monotonic()
            status, is_fresh = self._pool.submit(pool_process.run, job).result()
        except BrokenProcessPool as error:
            if not self._interrupted:
                self._tally.died()
            self.close()
            if aborted(process):
                raise AbortedProcess(str(error)) from error
            raise
        self._tally.ended(status, time.monotonic() - started_s)
        if not is_fresh:
            self.close()

    def interrupt(self) -> None:
        """Ends the process for good, and with it what it runs."""
        with self._lock:
            self._interrupted = True
            self._end()

    def close(self) -> None:
        """Ends the process once it is idle, or cleans up after one that died."""
        with self._lock:
            self._pid = None
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _pid_is(self, pid: int) -> None:
        with self._lock:
            self._pid = pid
            if self._interrupted:
                self._end()

    def _end(self) -> None:
        # A process that is still starting has told no number yet; its executor knows it.
        pids = {self._pid} if self._pid is not None else set(getattr(self._pool, "_processes", None) or ())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
