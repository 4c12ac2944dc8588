"""The runner over many machines: servers send jobs, workers take them, PostgreSQL stands between.

The search row stays the truth, with the same claims, heartbeats and attempts as in the embedded runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from autodeploy.jobs.owner import Owner
from autodeploy.jobs.planning import PLANNER
from autodeploy.jobs.procrastinate_queue import JobReceiver, JobSender
from autodeploy.jobs.search_process import SearchProcess
from autodeploy.jobs.takeover import hand_back, recover, recovery_pause_s, retry_or_fail
from autodeploy.store.clock import utc_now
from autodeploy.store.queue import Queue

if TYPE_CHECKING:
    from autodeploy.settings import Settings
    from autodeploy.store.database import Database, Session
    from autodeploy.store.queue import Claim

RESTART_PAUSE_S = 0.5

log = logging.getLogger(__name__)


class JobSendingRunner:
    """The runner of a server whose searches run in workers."""

    def __init__(self) -> None:
        self._sender = JobSender()

    def start(self) -> None:
        """Nothing to do: workers take back what dead workers left."""

    def enqueue(self, session: Session, search_id: str) -> None:
        self._sender.send(session, search_id)

    def wake(self) -> None:
        """Nothing to do: PostgreSQL notifies workers at the commit."""

    def is_alive(self) -> bool:
        """Always: a job waits until a worker is there."""
        return True

    def stop(self) -> None:
        """Nothing to do: what is sent stays sent."""


class WorkerRunner(JobSendingRunner):
    """The runner of a worker: `settings.workers` searches at a time, each in a process."""

    def __init__(self, database: Database, settings: Settings, *, planner: str = PLANNER) -> None:
        super().__init__()
        self._database = database
        self._settings = settings
        self._owner = Owner()
        self._processes = [SearchProcess(settings, planner) for _ in range(settings.workers)]
        self._idle: queue.SimpleQueue[SearchProcess] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._receiver = JobReceiver(
            database.conninfo,
            self.run,
            concurrency=settings.workers,
            poll_s=settings.poll_s,
            stalled_after_s=settings.stalled_after_s,
        )

    def start(self) -> None:
        recover(self._database, self._settings, self._owner, self.enqueue)
        for process in self._processes:
            self._idle.put(process)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive() and any(process.comes_up for process in self._processes)

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(RuntimeError):  # the loop is closed when the thread has ended
            self._loop.call_soon_threadsafe(self._cancel)
        for process in self._processes:
            process.interrupt()
        if self._thread.ident is not None:
            self._thread.join()
        for process in self._processes:
            process.close()

    def run(self, search_id: str) -> None:
        """Runs a search if it still waits. An error means that its job must wait."""
        if self._stopping.is_set():
            raise RuntimeError("this worker stops")
        process = self._idle.get()
        try:
            process.start()
            with self._database.write() as session:
                claim = Queue(session).claim(search_id, str(self._owner), now=utc_now())
            if claim is not None:
                self._run_claimed(process, claim)
        finally:
            self._idle.put(process)

    def _run_claimed(self, process: SearchProcess, claim: Claim) -> None:
        try:
            process.run(claim)
        except BrokenProcessPool:
            if self._stopping.is_set():
                hand_back(self._database, claim, self.enqueue)
            else:
                log.warning("search %s: its process died", claim.search_id)
                retry_or_fail(self._database, claim, self.enqueue, max_attempts=self._settings.max_attempts)

    def _work(self) -> None:
        with contextlib.closing(self._loop):
            asyncio.set_event_loop(self._loop)
            self._task = self._loop.create_task(self._work_until_stopped())
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._task)
            self._loop.run_until_complete(self._loop.shutdown_default_executor())

    async def _work_until_stopped(self) -> None:
        """A worker that lost its database begins anew when it is back."""
        while not self._stopping.is_set():
            try:
                await self._receiver.work(self._look_after, pause_s=recovery_pause_s(self._settings))
            except Exception as error:
                log.warning("the worker begins anew: %s", error)
            if not self._stopping.is_set():
                await asyncio.sleep(RESTART_PAUSE_S)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _look_after(self, with_job: set[str]) -> None:
        """Takes back searches of dead workers; gives a job to those that wait without one (queued while embedded)."""
        recover(self._database, self._settings, self._owner, self.enqueue)
        with self._database.read() as session:
            waiting = Queue(session).queued_ids()
        without_job = [search_id for search_id in waiting if search_id not in with_job]
        if without_job:
            with self._database.write() as session:
                for search_id in without_job:
                    self.enqueue(session, search_id)
