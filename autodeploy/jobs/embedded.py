"""The runner inside the server: each slot is a thread with a process of its own.

The search row is the job, so any number of servers may share one database. A process that dies (a native crash, the
kernel's memory killer) takes down one search, which is tried again, and never the server.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from typing import TYPE_CHECKING

from autodeploy.jobs import pool_process
from autodeploy.jobs.owner import Owner
from autodeploy.jobs.planning import PLANNER
from autodeploy.store.clock import utc_now
from autodeploy.store.database import DATABASE_ERRORS, Database
from autodeploy.store.idempotency import IdempotencyKeys
from autodeploy.store.queue import Claim, Queue

if TYPE_CHECKING:
    from autodeploy.settings import Settings
    from autodeploy.store.database import Session

IDEMPOTENCY_LIFE = timedelta(days=7)
# A process that does not come up so often in a row will not: the server is not ready then.
HOPELESS_STARTS = 3
DIED = "the process that ran this search died"

log = logging.getLogger(__name__)


class EmbeddedRunner:
    """Runs `settings.workers` searches at a time in processes of this machine."""

    def __init__(self, database: Database, settings: Settings, *, planner: str = PLANNER) -> None:
        self._database = database
        self._settings = settings
        self._planner = planner
        self._owner = Owner()
        self._stopping = threading.Event()
        self._work = threading.Condition()
        self._slots = [_Slot(self, number) for number in range(settings.workers)]

    def start(self) -> None:
        for name, value in pool_process.SINGLE_THREADED.items():
            os.environ.setdefault(name, value)
        self.recover()
        for slot in self._slots:
            slot.start()

    def enqueue(self, session: Session, search_id: str) -> None:
        """Nothing to do: the queued row is the job."""

    def wake(self) -> None:
        with self._work:
            self._work.notify()

    def is_alive(self) -> bool:
        return any(slot.works() for slot in self._slots)

    def stop(self) -> None:
        self._stopping.set()
        with self._work:
            self._work.notify_all()
        for slot in self._slots:
            slot.interrupt()
        for slot in self._slots:
            if slot.ident is not None:
                slot.join()

    def recover(self) -> None:
        """Takes back searches of runners that died, and forgets old idempotency keys."""
        now = utc_now()
        with self._database.write() as session:
            lost = Queue(session).recover(
                stalled_before=now - timedelta(seconds=self._settings.stalled_after_s),
                max_attempts=self._settings.max_attempts,
                now=now,
                is_dead=self._owner.is_dead,
            )
            IdempotencyKeys(session).forget_before(now - IDEMPOTENCY_LIFE)
        for search_id in lost:
            log.warning("search %s was left by a runner that died", search_id)

    # -- for the slots -------------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def planner(self) -> str:
        return self._planner

    def next_claim(self) -> Claim | None:
        """The oldest queued search; without one, None after a wake-up or the poll interval."""
        with self._database.read() as session:
            waiting = Queue(session).has_queued()
        if waiting:
            with self._database.write() as session:
                claim = Queue(session).claim_next(str(self._owner), now=utc_now())
            if claim is not None:
                return claim
        self.pause()
        return None

    def pause(self) -> None:
        """Waits for work, a stop or the poll interval."""
        with self._work:
            if not self.stopping:
                self._work.wait(self._settings.poll_s)

    def job(self, claim: Claim) -> pool_process.Job:
        url = self._settings.database_url
        return pool_process.Job(claim, url, self._planner, self._settings.heartbeat_s)

    def give_up(self, claim: Claim) -> None:
        """The process of that search is gone: handed back when we stopped it, else tried again or failed."""
        with self._database.write() as session:
            queue = Queue(session)
            if self.stopping:
                queue.hand_back(claim, now=utc_now())
            else:
                queue.lose(claim, max_attempts=self._settings.max_attempts, error=DIED, now=utc_now())


class _Slot(threading.Thread):
    """One search at a time in one process, which is made again when it dies."""

    def __init__(self, runner: EmbeddedRunner, number: int) -> None:
        super().__init__(name=f"search-slot-{number}", daemon=True)
        self._runner = runner
        self._looks_after_others = number == 0
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._starts_in_vain = 0

    def works(self) -> bool:
        """Whether the thread lives and its process comes up."""
        return self.is_alive() and self._starts_in_vain < HOPELESS_STARTS

    def run(self) -> None:
        while not self._runner.stopping:
            pool = ProcessPoolExecutor(
                max_workers=1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=pool_process.prepare,
                initargs=(self._runner.planner,),
            )
            try:
                self._starts_in_vain += 1
                self._pid_is(pool.submit(pool_process.process_id).result())
                self._starts_in_vain = 0
                self._serve(pool)
            except BrokenProcessPool:
                log.exception("a pool process died")
                self._runner.pause()
            except DATABASE_ERRORS as error:
                log.warning("the database does not answer: %s", error)
                self._runner.pause()
            except Exception:  # a slot that ends would leave the queue without anybody
                log.exception("a slot of the runner failed")
                self._runner.pause()
            finally:
                self._pid_is(None)
                pool.shutdown(wait=True, cancel_futures=True)

    def interrupt(self) -> None:
        """Ends the process, and with it what it runs."""
        with self._lock:
            if self._pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGTERM)

    def _pid_is(self, pid: int | None) -> None:
        with self._lock:
            self._pid = pid
        if self._runner.stopping:
            self.interrupt()

    def _serve(self, pool: ProcessPoolExecutor) -> None:
        recovered_at = utc_now()
        while not self._runner.stopping:
            if self._looks_after_others and utc_now() - recovered_at > timedelta(seconds=10):
                recovered_at = utc_now()
                self._runner.recover()
            claim = self._runner.next_claim()
            if claim is not None:
                self._run(pool, claim)

    def _run(self, pool: ProcessPoolExecutor, claim: Claim) -> None:
        try:
            pool.submit(pool_process.run, self._runner.job(claim)).result()
        except BrokenProcessPool:
            self._runner.give_up(claim)
            raise
