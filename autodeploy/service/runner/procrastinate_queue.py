"""The only module that knows procrastinate: jobs in the same PostgreSQL database as the searches.

A job says "look at the queue" and nothing more. Whoever takes it claims the row of the search whose turn it is, so a
job that is delivered twice does nothing the second time. A job is inserted in the transaction that makes its search
wait, so none is missing either; `queueing_lock` keeps the waiting jobs of one search to one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from procrastinate import App, PsycopgConnector, RetryStrategy, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, UniqueViolation
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.schema import SchemaManager

from autodeploy.service.store.database import CONNECT_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from concurrent.futures import Executor

    from procrastinate.connector import BaseConnector
    from procrastinate.tasks import Task

    from autodeploy.service.store.database import Session

QUEUE = "searches"
TASK = "run_search"
# The newest of procrastinate's own migrations that `install_schema` brings; a test compares with the installed one.
SCHEMA_VERSION = "03.04.00_50"
RETRY_S = 1
# Connect timeout.
CONNECTION_S = 3.0
# Jobs get this long to end in order when the database is gone; then they wait again, their searches go on.
GRACE_S = 1.0
WATCH_END_S = 1.0

log = logging.getLogger(__name__)


def install_schema(connection: Any) -> None:
    """Creates procrastinate's tables, types and functions in the open transaction of a psycopg connection."""
    connection.execute(SchemaManager.get_schema())


def remove_schema(connection: Any) -> None:
    """Drops everything that `install_schema` creates."""
    tables = ("periodic_defers", "events", "jobs", "workers")
    connection.execute("DROP TABLE IF EXISTS " + ", ".join(f"procrastinate_{name}" for name in tables) + " CASCADE")
    functions = connection.execute(
        "SELECT oid::regprocedure::text FROM pg_proc"
        " WHERE pronamespace = current_schema()::regnamespace AND starts_with(proname, 'procrastinate_')"
    ).fetchall()
    for (signature,) in functions:
        connection.execute(f"DROP FUNCTION {signature} CASCADE")
    for name in ("job_to_defer_v1", "job_status", "job_event_type"):
        connection.execute(f"DROP TYPE IF EXISTS procrastinate_{name} CASCADE")


class JobSender:
    """Inserts jobs on the caller's connection; has none of its own."""

    def __init__(self) -> None:
        self._task = _task(App(connector=SyncPsycopgConnector()), _runs_elsewhere)

    def send(self, session: Session, search_id: str) -> None:
        """Inserts the search's job in the transaction of the session; one that waits already is enough."""
        try:
            with session.begin_nested():
                # Asked for inside: only then does the session make the savepoint.
                connection = session.connection().connection.driver_connection
                self._task.configure(connection=connection, queueing_lock=search_id).defer(search_id=search_id)
        except AlreadyEnqueued:
            log.debug("search %s has a waiting job already", search_id)


class JobReceiver:
    """Takes jobs and gives them to `run(search_id)`, each in a thread.

    conninfo : address of the database, as libpq reads it.
    has_room : whether somebody is free to run a search; no job is taken before.
    threads : where `run` runs; what it runs there goes on when `work` ends.
    stalled_after_s : jobs of a worker that is silent for longer are taken back.
    listens : whether PostgreSQL tells of new jobs; else they are looked for every `poll_s` seconds.
    """

    def __init__(
        self,
        conninfo: str,
        run: Callable[[str], None],
        *,
        has_room: Callable[[], bool],
        threads: Executor,
        concurrency: int,
        poll_s: float,
        stalled_after_s: float,
        listens: bool = False,
    ) -> None:
        self._conninfo = conninfo
        self._run = run
        self._has_room = has_room
        self._threads = threads
        self._concurrency = concurrency
        self._poll_s = poll_s
        self._stalled_after_s = stalled_after_s
        self._listens = listens
        self.looked_s: float | None = None  # time.monotonic() of the last look into the queue that was answered

    async def work(self, look_after: Callable[[set[str]], None], *, pause_s: float) -> None:
        """Works until it is cancelled or the database is gone. Searches that run then go on; their jobs wait again.

        look_after : called every `pause_s` seconds with the ids of searches that have a job.

        Raises Exception when the database is gone; call it again.
        """
        app = App(
            connector=PsycopgConnector(
                conninfo=self._conninfo,
                min_size=1,
                max_size=1,  # listening takes one of its own, for good
                timeout=CONNECTION_S,
                kwargs=dict(CONNECT_ARGUMENTS),
            )
        )
        app.job_manager = _NotedLooks(app.connector, self)
        _task(app, self._run_in_thread)
        async with app.open_async():
            stopped = asyncio.Event()
            watch = asyncio.create_task(self._watch(app, look_after, pause_s, stopped), name="watch")
            try:
                await app.run_worker_async(
                    queues=[QUEUE],
                    concurrency=self._concurrency,
                    fetch_job_polling_interval=self._poll_s,
                    update_heartbeat_interval=self._stalled_after_s / 4,
                    stalled_worker_timeout=self._stalled_after_s,
                    shutdown_graceful_timeout=GRACE_S,
                    delete_jobs="always",
                    listen_notify=self._listens,
                    install_signal_handlers=False,
                )
            finally:
                stopped.set()
                watch.cancel()
                await asyncio.wait({watch}, timeout=WATCH_END_S)

    def is_free(self) -> bool:
        """Whether a job may be taken."""
        return self._has_room()

    async def _run_in_thread(self, search_id: str) -> None:
        await asyncio.wrap_future(self._threads.submit(self._run, search_id))

    async def _watch(
        self, app: App, look_after: Callable[[set[str]], None], pause_s: float, stopped: asyncio.Event
    ) -> None:
        """Ends when it is cancelled, and also where that got lost: `stopped` says it again."""
        while not stopped.is_set() and not _is_cancelled():
            try:
                await self._retry_stalled(app)
                jobs = await app.job_manager.list_jobs_async(queue=QUEUE, task=TASK)
                live = {Status.TODO.value, Status.DOING.value}
                await asyncio.to_thread(
                    look_after, {job.queueing_lock for job in jobs if job.queueing_lock and job.status in live}
                )
            except Exception as error:  # whatever it is, the next look may go better
                log.warning("stalled jobs were not looked for: %s", error)
            # Not `wait_for`, which may lose a cancellation.
            waiting = asyncio.ensure_future(stopped.wait())
            try:
                await asyncio.wait({waiting}, timeout=pause_s)
            finally:
                waiting.cancel()

    async def _retry_stalled(self, app: App) -> None:
        await app.job_manager.prune_stalled_workers(self._stalled_after_s)
        for job in await app.job_manager.get_stalled_jobs(queue=QUEUE, seconds_since_heartbeat=self._stalled_after_s):
            log.warning("search %s: its job was left by a worker that died", job.queueing_lock)
            await _retry(app, job)


class _NotedLooks(JobManager):
    """Takes no job while nobody is free to run it, and notes every look into the queue that was answered."""

    def __init__(self, connector: BaseConnector, receiver: JobReceiver) -> None:
        super().__init__(connector)
        self._receiver = receiver

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        if not self._receiver.is_free():  # searches that began before an outage run still
            return None
        job = await super().fetch_job(queues, worker_id)
        self._receiver.looked_s = time.monotonic()
        return job


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _retry(app: App, job: Job) -> None:
    """Waiting again, or gone where another job of that search waits."""
    try:
        await app.job_manager.retry_job(job)
    except UniqueViolation:
        await app.job_manager.finish_job(job, Status.FAILED, delete_job=True)


def _task(app: App, run: Callable[[str], Awaitable[None] | None]) -> Task[Any, Any, Any]:
    async def run_search(search_id: str) -> None:
        answer = run(search_id)
        if answer is not None:
            await answer

    # Only a database that is away, or a process that does not come up, ends a job with an error: it waits and is tried
    # again, by whichever worker is free then. How often a search itself is tried is counted in its row.
    return app.task(name=TASK, queue=QUEUE, retry=RetryStrategy(wait=RETRY_S))(run_search)


def _runs_elsewhere(search_id: str) -> None:
    raise AssertionError(f"search {search_id} is for a worker")
