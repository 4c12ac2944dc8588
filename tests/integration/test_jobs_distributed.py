"""Jobs and search rows in one transaction; jobs that are lost, stalled or delivered twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from autodeploy.jobs.distributed import JobSendingRunner
from autodeploy.services import open_services
from autodeploy.store.database import Database
from autodeploy.store.searches import Searches
from tests.integration.conftest import QUICK, eventually, named, quick_settings, status_is
from tests.integration.test_store_searches import new_row
from tests.support.postgresql import libpq_dsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.settings import Settings

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
