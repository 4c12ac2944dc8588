"""Connections of workers to PostgreSQL, which has a hundred for everybody by default, and what a search sends along."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from autodeploy.service.runner.execution import execute
from autodeploy.service.runner.planning import load_planner
from autodeploy.service.session import open_services
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.queue import Queue
from tests import factories
from tests.benchmarks.scale_out import counted
from tests.integration.conftest import QUICK, eventually, named, quick_settings
from tests.quick_planner import SLOW
from tests.support.postgresql import libpq_dsn

if TYPE_CHECKING:
    from autodeploy.service.session import Services
    from tests.benchmarks.scale_out import Asked

pytestmark = pytest.mark.integration

COUNT = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"  # autovacuum has its own
)


@pytest.mark.parametrize(("slots", "listens", "most"), [(1, False, 3), (2, False, 4), (1, True, 4)])
def test_a_worker_has_two_connections_and_one_for_each_search(migrated_postgres_dsn, slots, listens, most):
    changes = {"jobs": "procrastinate", "workers": slots, "jobs_listen": listens, "worker_alive_s": 1.0}
    settings = quick_settings(migrated_postgres_dsn, **changes)
    with open_services(settings, planner=QUICK) as asking:
        ids = [asking.searches.submit(named(SLOW), reuse=False).search.id]
        ids += [asking.searches.submit(named(f"quick-{number}")).search.id for number in range(4)]
    seen = [0]
    stopping = threading.Event()

    def watch() -> None:
        with psycopg.connect(libpq_dsn(migrated_postgres_dsn), autocommit=True) as connection:
            while not stopping.is_set():
                row = connection.execute(COUNT).fetchone()
                seen.append(0 if row is None else row[0])
                time.sleep(0.02)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with open_services(settings, as_worker=True, planner=QUICK) as worker:
            eventually(lambda: worker.searches.status(ids[0]) == "running")
            worker.searches.cancel(ids[0])
            eventually(lambda: all_ended(worker, ids))
    finally:
        stopping.set()
        watching.join()
    # A connection that was just closed is counted for a moment beside the one of the next search.
    lasting = [min(of_three) for of_three in zip(seen, seen[1:], seen[2:], strict=False)]
    assert 0 < max(lasting) <= most


@pytest.mark.parametrize(("kind", "most"), [("sqlite_url", 28), ("migrated_postgres_dsn", 23)])
def test_a_search_asks_the_database_few_times(request, kind, most):
    """Each time is a message there and back, which a distant database makes long."""
    with open_services(quick_settings(request.getfixturevalue(kind)), planner=QUICK) as services:
        asked = [of_one(services) for _ in range(5)]  # the first reads what the others know, one that is late beats
    statements, transactions = (min(getattr(each, name) for each in asked) for name in ("statements", "transactions"))
    assert 15 < statements <= most
    assert transactions <= 6


def of_one(services: Services) -> Asked:
    with counted(services.database) as asked:
        services.searches.submit(factories.spec(), reuse=False)
        with services.database.write() as session:
            claim = Queue(session).claim_next("me", now=utc_now())
        assert claim is not None
        execute(services.database, claim, load_planner(QUICK), heartbeat_s=1.0)
    return asked


def all_ended(services: Services, ids: list[str]) -> bool:
    return all(services.searches.status(each) not in {"queued", "running"} for each in ids)
