"""Processes of planning: pools for calls, and one for searches, one at a time, made again whenever it died.

A native crash or the kernel's memory killer takes down one search and never the program that waits for it. Importing
this module is cheap; the planner is imported by `prepare`.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.kit.deadline import interrupted_here
from autodeploy.kit.errors import MemoryLimitError, SearchCancelled
from autodeploy.kit.process import collect_seldom
from autodeploy.service.runner.execution import execute
from autodeploy.service.runner.fork_server import fork_server
from autodeploy.service.runner.memory_limit import aborted, is_worn, limit_memory
from autodeploy.service.runner.planning import load_planner
from autodeploy.service.runner.runner import SearchTally
from autodeploy.service.store.database import Database

if TYPE_CHECKING:
    from autodeploy.kit.settings import Settings
    from autodeploy.service.store.queue import Claim


log = logging.getLogger(__name__)

# A search takes every core it gets, a queued one as much as one that a request waits for: whoever answers requests on
# this machine comes first, then what they wait for, which gets half as much of a busy core.
NICENESS = 10
CALL_NICENESS = 3


@dataclass(frozen=True, slots=True)
class Job:
    """Everything a pool process needs to run one search."""

    claim: Claim
    database_url: str
    planner: str
    heartbeat_s: float


def new_pool(planner: str, memory_bytes: int, niceness: int = NICENESS) -> ProcessPoolExecutor:
    """A pool of one process, which starts with the first call and which `prepare` readies.

    It is forked from a process that has imported the planner once for all of them and does nothing else: one that
    died, or was worn, is replaced in an instant, and they share what was imported.

    planner : module with the planner's functions.
    memory_bytes : most address space of the process.
    niceness : added to that of the parent.
    """
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=fork_server(planner),
        initializer=prepare,
        initargs=(planner, memory_bytes, niceness),
    )


def prepare(planner: str, memory_bytes: int, niceness: int = NICENESS) -> None:
    """Runs once in each new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then stops this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(niceness)
    limit_memory(memory_bytes)
    threading.Thread(target=_die_with_parent, name="die-with-parent", daemon=True).start()
    load_planner(planner)
    collect_seldom()


def _die_with_parent() -> None:
    """A killed server must not leave processes that compute for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def process_id() -> int:
    """The process; answers when `prepare` is done."""
    return os.getpid()


def run(job: Job) -> tuple[str, bool]:
    """Runs one search; how it ended, and whether the process may run another one.

    Whatever happens is in the database afterwards, so nothing is raised for it.
    """
    fresh, status = True, "failed"
    database = Database(job.database_url, pool_size=1, overflow=0)
    try:
        status = execute(database, job.claim, load_planner(job.planner), heartbeat_s=job.heartbeat_s).status
    except SearchCancelled:
        status = "cancelled"
    except MemoryLimitError as error:
        log.warning("search %s failed: %s", job.claim.search_id, error)
        fresh = False
    except Exception:
        log.exception("search %s failed", job.claim.search_id)
    finally:
        database.close()
    # What was cut off in the middle may have left traces.
    return status, fresh and not is_worn() and not interrupted_here()


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

        Raises BrokenProcessPool when it does not come up, or was interrupted.
        """
        if self._pool is not None:
            try:
                self._pool.submit(process_id).result()
                return
            except BrokenProcessPool:
                self.close()
        if self._interrupted:
            raise BrokenProcessPool("the process was told to end")
        self._starts_in_vain += 1
        self._pool = new_pool(self._planner, self._settings.search_memory_bytes)
        try:
            self._pid_is(self._pool.submit(process_id).result())
        except BrokenProcessPool:
            self.close()
            raise
        self._starts_in_vain = 0

    def run(self, claim: Claim) -> None:
        """Runs the search of that claim; its end is in the database afterwards.

        Raises BrokenProcessPool when the process died, so that the search has no end yet; AbortedProcess when it ended
        itself, as it does where native code gets no memory: another time it would do the same.
        """
        self.start()  # it may have died since the search was claimed for it
        assert self._pool is not None
        process = (getattr(self._pool, "_processes", None) or {}).get(self._pid)
        job = Job(claim, self._settings.database_url, self._planner, self._settings.heartbeat_s)
        try:
            started_s = time.monotonic()
            status, is_fresh = self._pool.submit(run, job).result()
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
