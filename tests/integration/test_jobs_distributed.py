"""Jobs and search rows in one transaction; jobs that are lost, stalled or delivered twice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from autodeploy.service.runner import distributed, procrastinate_queue
from autodeploy.service.runner.distributed import JobSendingRunner
from autodeploy.service.session import open_services
from autodeploy.service.store.database import Database
from autodeploy.service.store.searches import Searches
from tests.integration.conftest import QUICK, eventually, named, quick_settings, status_is
from tests.integration.test_store_searches import new_row
from tests.quick_planner import SLOW
from tests.support.postgresql import libpq_dsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.kit.settings import Settings

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(migrated_postgres_dsn: str) -> Settings:
    """Settings of servers and workers on a migrated database."""
    return quick_settings(migrated_postgres_dsn, jobs="procrastinate", stalled_after_s=2.0)


@pytest.fixture
def sql(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """A connection beside the service."""
    with psycopg.connect(libpq_dsn(settings.database_url), autocommit=True) as connection:
        yield connection


def jobs(sql: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    rows = sql.execute("SELECT args ->> 'search_id', status::text FROM procrastinate_jobs ORDER BY id").fetchall()
    return [(search_id, status) for search_id, status in rows]


def test_search_and_job_are_both_there_or_neither(settings, sql):
    database = Database(settings.database_url, pool_size=2)
    runner = JobSendingRunner()
    with database.write() as session:
        Searches(session).add(new_row("srch_1"))
        runner.enqueue(session, "srch_1")
        session.rollback()
    assert jobs(sql) == []
    with database.write() as session:
        Searches(session).add(new_row("srch_1"))
        runner.enqueue(session, "srch_1")
        assert jobs(sql) == []
    assert jobs(sql) == [("srch_1", "todo")]
    with database.write() as session:
        Searches(session).add(new_row("srch_2"))
        runner.enqueue(session, "srch_1")  # waits already: one job is enough, and the transaction goes on
    assert jobs(sql) == [("srch_1", "todo")]
    with database.read() as session:
        assert Searches(session).exists("srch_2")
    database.close()


def test_a_job_of_a_worker_that_died_before_it_claimed_is_retried(settings, sql):
    with open_services(settings, planner=QUICK) as server:
        search_id = server.searches.submit(named("stalled")).search.id
        worker = "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 hour') RETURNING id"
        (worker_id,) = sql.execute(worker).fetchone() or ()
        sql.execute("SELECT procrastinate_fetch_job_v2(NULL, %s)", (worker_id,))
        assert jobs(sql) == [(search_id, "doing")]
        with open_services(settings, as_worker=True, planner=QUICK):
            eventually(status_is(server, search_id, "optimal"))
            eventually(lambda: jobs(sql) == [])


def test_a_stalled_job_beside_a_waiting_one_goes(settings, sql):
    with open_services(settings, planner=QUICK) as server:
        search_id = server.searches.submit(named("stalled")).search.id
        sql.execute("UPDATE procrastinate_jobs SET status = 'doing'")  # of a worker that is gone
        with server.database.write() as session:
            JobSendingRunner().enqueue(session, search_id)
        assert jobs(sql) == [(search_id, "doing"), (search_id, "todo")]
        with open_services(settings, as_worker=True, planner=QUICK):
            eventually(status_is(server, search_id, "optimal"))
            eventually(lambda: jobs(sql) == [])
        attempts = [event.data.get("attempt") for event in server.searches.events(search_id)]
        assert [attempt for attempt in attempts if attempt] == [1]


def test_a_job_that_is_delivered_twice_does_nothing_the_second_time(settings, sql):
    with open_services(settings, as_worker=True, planner=QUICK) as services:
        search_id = services.searches.submit(named("once")).search.id
        eventually(status_is(services, search_id, "optimal"))
        events = services.searches.events(search_id)
        with services.database.write() as session:
            JobSendingRunner().enqueue(session, search_id)
        eventually(lambda: jobs(sql) == [])
        assert services.searches.events(search_id) == events


def test_a_search_without_a_job_is_found(settings, sql):
    """Submitted while servers ran searches themselves, or imported."""
    embedded = settings.model_copy(update={"jobs": "embedded"})
    with open_services(embedded, planner=QUICK) as server:
        search_id = server.searches.submit(named("without a job")).search.id
        assert jobs(sql) == []
        with open_services(settings, as_worker=True, planner=QUICK):
            eventually(status_is(server, search_id, "optimal"))


async def deaf(*_: Any) -> None:
    """Goes on whatever is raised in it, as a loop does whose cancellation was lost."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


async def gone(*_: Any) -> None:
    raise OSError("the database is gone")


@pytest.mark.parametrize(("watch", "fetch"), [(deaf, gone), (None, deaf)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_goes_on_without_what_ignores_its_cancellation(settings, monkeypatch, watch, fetch):
    """The watch beside the worker, or the worker itself: it is left behind, and the worker begins anew."""
    monkeypatch.setattr(distributed, "PATIENCE_S", 0.3)
    looks = []
    look = procrastinate_queue._NotedLooks.fetch_job

    async def fetch_job(self: Any, queues: Any, worker_id: int) -> Any:
        looks.append(worker_id)
        return await (fetch() if len(looks) == 3 else look(self, queues, worker_id))

    monkeypatch.setattr(procrastinate_queue._NotedLooks, "fetch_job", fetch_job)
    if watch is not None:
        monkeypatch.setattr(procrastinate_queue.JobReceiver, "_watch", watch)
    patient = settings.model_copy(update={"stalled_after_s": 30.0})
    with open_services(patient, as_worker=True, planner=QUICK) as services:
        eventually(lambda: len(looks) >= 3, within_s=15)
        eventually(lambda: len(set(looks)) == 2, within_s=30)  # another spell, another number
        search_id = services.searches.submit(named("after that")).search.id
        eventually(status_is(services, search_id, "optimal"))
        asked_s = time.monotonic()
    assert time.monotonic() - asked_s < 20
    gc.collect()  # what was left behind complains here and in no later test


def test_free_slots_do_not_wait_for_a_search_when_the_database_was_lost(settings, monkeypatch):
    looks = []
    look = procrastinate_queue._NotedLooks.fetch_job
    lost = threading.Event()

    async def fetch_job(self: Any, queues: Any, worker_id: int) -> Any:
        looks.append(worker_id)
        if lost.is_set():
            lost.clear()
            await gone()
        return await look(self, queues, worker_id)

    monkeypatch.setattr(procrastinate_queue._NotedLooks, "fetch_job", fetch_job)
    two = settings.model_copy(update={"workers": 2, "stalled_after_s": 30.0})
    with open_services(two, as_worker=True, planner=QUICK) as services:
        slow = services.searches.submit(named(SLOW)).search.id
        eventually(status_is(services, slow, "running"))
        lost.set()
        eventually(lambda: len(set(looks)) == 2, within_s=30)
        quick = services.searches.submit(named("beside it")).search.id
        eventually(status_is(services, quick, "optimal"), within_s=30)
        assert services.searches.status(slow) == "running"
        services.searches.cancel(slow)
        eventually(status_is(services, slow, "cancelled"))
        started = [event.data for event in services.searches.events(slow) if event.data.get("attempt")]
        assert len(started) == 1
