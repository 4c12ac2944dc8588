"""The runner over many machines: servers send jobs, workers take them, PostgreSQL stands between.

The search row stays the truth, with the same claims, heartbeats and attempts as in the embedded runner.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from autodeploy.service.runner.orphan_recovery import hand_back, recover, recovery_pause_s, retry_or_fail
from autodeploy.service.runner.owner import Owner
from autodeploy.service.runner.planning import PLANNER
from autodeploy.service.runner.processes import SearchProcess
from autodeploy.service.runner.procrastinate_queue import JobReceiver, JobSender
from autodeploy.service.runner.runner import SearchTally, slot_rules
from autodeploy.service.runner.workers import WorkerHeartbeat
from autodeploy.service.store.base import now_in
from autodeploy.service.store.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from autodeploy.kit.settings import Settings
    from autodeploy.service.store.database import Database, Session
    from autodeploy.service.store.queue import Claim


# Runs asynchronous work that always ends.
LOOK_S = 0.2
# What does not end in order is told again and again for so long.
REST_S = 1.0

log = logging.getLogger(__name__)


def run_bounded(work: Callable[[], Coroutine[Any, Any, None]], ending_s: Callable[[], float | None]) -> None:
    """Runs the coroutine on an event loop of its own until it returns, raises or has to end.

    ending_s : asked all the time; None while the work may go on, else how many seconds it has to end in order.

    Raises Exception: whatever the work raised before it had to end.
    """
    loop = asyncio.new_event_loop()
    # What was cut short has nothing to say that the reason for it did not.
    loop.set_exception_handler(lambda _, context: log.info("%s", context.get("message")))
    try:
        loop.run_until_complete(_run(work, ending_s))
    finally:
        # Does not wait for threads: what they do ends by its own time limits.
        loop.close()


async def _run(work: Callable[[], Coroutine[Any, Any, None]], ending_s: Callable[[], float | None]) -> None:
    main = asyncio.create_task(work(), name="work")
    limit_s = None
    while not main.done() and (limit_s := ending_s()) is None:
        await asyncio.wait({main}, timeout=LOOK_S)
    in_order = main.done()
    if not in_order:
        main.cancel()  # once: what it does to end in order is not cut short
        await asyncio.wait({main}, timeout=limit_s)
    left = await _cancel(asyncio.all_tasks() - {asyncio.current_task()})
    if left:
        log.error("left behind, for they ignored their cancellation: %s", "; ".join(sorted(map(_place, left))))
    if in_order and not main.cancelled() and (error := main.exception()) is not None:
        raise error


async def _cancel(tasks: Iterable[asyncio.Task[Any] | None]) -> set[asyncio.Task[Any]]:
    """Cancels the tasks, again and again; those that still run after `REST_S`."""
    end_s = time.monotonic() + REST_S
    pending = {task for task in tasks if task is not None and not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=LOOK_S)
        if time.monotonic() >= end_s:
            break
    return pending


def _place(task: asyncio.Task[Any]) -> str:
    """The task's name and the line it waits at."""
    frames = task.get_stack(limit=1)
    where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "nowhere"
    return f"{task.get_name()} at {where}"


RESTART_PAUSE_S = 0.5
# A free slot that does not look into the queue for so long is stuck, whatever holds it up.
PATIENCE_S = 4.0
LONGEST_PATIENCE_S = 60.0
# What is under way gets so long to end in order.
STOP_S = 10.0
STUCK_S = 1.0


class JobSendingRunner:
    """The runner of a server whose searches run in workers."""

    presence: WorkerHeartbeat | None = None

    def __init__(self, presence: WorkerHeartbeat | None = None) -> None:
        self._sender = JobSender()
        self.presence = presence
        self.tally = SearchTally()

    def start(self) -> None:
        """Workers take back what dead workers left."""
        if self.presence is not None:
            self.presence.start()

    def enqueue(self, session: Session, search_id: str) -> None:
        self._sender.send(session, search_id)

    def wake(self) -> None:
        """Nothing to do: PostgreSQL notifies workers at the commit."""

    def is_alive(self) -> bool:
        """Always: a job waits until a worker is there."""
        return True

    def stop(self) -> None:
        """Nothing: what is sent stays sent."""
        if self.presence is not None:
            self.presence.stop()


class WorkerRunner(JobSendingRunner):
    """The runner of a worker: `settings.workers` searches at a time, each in a process."""

    def __init__(self, database: Database, settings: Settings, *, planner: str = PLANNER) -> None:
        super().__init__()
        self._database = database
        self._settings = settings
        self._owner = Owner()
        self._rules = slot_rules(settings)
        self._processes = [SearchProcess(settings, planner, self.tally) for _ in range(settings.workers)]
        self._held: set[Claim] = set()
        self._idle: queue.SimpleQueue[SearchProcess] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self._searches = ThreadPoolExecutor(settings.workers, thread_name_prefix="search-slot")
        self._receiver = JobReceiver(
            database.conninfo,
            self.run,
            has_room=lambda: not self._idle.empty(),
            threads=self._searches,
            concurrency=settings.workers,
            poll_s=settings.poll_s,
            stalled_after_s=settings.stalled_after_s,
            listens=settings.jobs_listen,
        )
        self._stuck = 0  # spells in a row that ended before anybody looked into the queue
        self._begun_s = self._busy_s = 0.0
        self.presence = WorkerHeartbeat(
            database,
            settings,
            self._owner,
            slots=settings.workers,
            busy=lambda: settings.workers - self._idle.qsize(),
            looked_s=lambda: self._receiver.looked_s,
        )

    def start(self) -> None:
        recover(self._database, self._settings, self._owner, self.enqueue)
        for process in self._processes:
            self._idle.put(process)
        super().start()
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive() and any(process.comes_up for process in self._processes)

    def stop(self) -> None:
        self._stopping.set()
        super().stop()
        for process in self._processes:
            process.interrupt()
        if self._thread.ident is not None:
            self._thread.join()
        self._searches.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.close()

    def run(self, search_id: str) -> None:
        """Runs the searches whose turn it is until none may run here: the one that sent the job is seldom the first.

        An error means that the job must wait.
        """
        process = self._idle.get()
        try:
            while not self._stopping.is_set():
                process.start()
                with self._database.write() as session:
                    claim = Queue(session).claim_next(str(self._owner), now=now_in(session), rules=self._rules)
                if claim is None:
                    return
                self._run_claimed(process, claim)
        finally:
            self._idle.put(process)
        raise RuntimeError("this worker stops")

    def _run_claimed(self, process: SearchProcess, claim: Claim) -> None:
        self._held.add(claim)
        try:
            process.run(claim)
        except BrokenProcessPool as how:
            if self._stopping.is_set():
                hand_back(self._database, claim, self.enqueue)
            else:
                log.warning("search %s: its process died", claim.search_id)
                most = self._settings.max_attempts
                retry_or_fail(self._database, claim, self.enqueue, max_attempts=most, how=how)
        finally:
            self._held.discard(claim)

    def _work(self) -> None:
        """Begins anew when the database was lost, and when nobody looked into the queue for too long."""
        while not self._stopping.is_set():
            try:
                if self._database.ping():
                    self._begun_s = time.monotonic()
                    run_bounded(self._receive, self._ending_s)
                else:
                    self._stuck = 0
            except Exception as error:
                log.warning("the worker begins anew: %s", error)
            self._stopping.wait(RESTART_PAUSE_S)

    async def _receive(self) -> None:
        await self._receiver.work(self._look_after, pause_s=recovery_pause_s(self._settings))

    def _ending_s(self) -> float | None:
        """Seconds for the work under way to end: a while when this worker stops, hardly any when it is stuck."""
        if self._stopping.is_set():
            return STOP_S
        looked_s = self._receiver.looked_s or 0.0
        if looked_s > self._begun_s:
            self._stuck = 0
        # A database that is that slow is not asked more often for it.
        patience_s = min(PATIENCE_S * 2.0 ** max(0, self._stuck - 2), LONGEST_PATIENCE_S)
        if self._idle.empty():
            self._busy_s = time.monotonic()  # nobody is free to look
        silent_s = time.monotonic() - max(looked_s, self._begun_s, self._busy_s)
        if silent_s < patience_s + self._settings.poll_s:
            return None
        log.warning("nobody looked into the queue for %.1f s; the worker begins anew", silent_s)
        self._stuck += 1
        return STUCK_S

    def _look_after(self, with_job: set[str]) -> None:
        """Takes back searches of dead workers; gives a job to those that wait without one (queued while embedded)."""
        # While the database was away nobody could say that a search is alive: that is waited for first.
        if time.monotonic() - self._begun_s >= self._settings.stalled_after_s:
            recover(self._database, self._settings, self._owner, self.enqueue, tuple(self._held))
        with self._database.read() as session:
            waiting = Queue(session).queued_ids()
        # A job runs whatever is next until nothing is: more of them than there are slots would find nothing.
        without_job = [search_id for search_id in waiting if search_id not in with_job][: self._settings.workers]
        if without_job:
            with self._database.write() as session:
                for search_id in without_job:
                    self.enqueue(session, search_id)
