"""Connections of workers to PostgreSQL, which has a hundred for everybody by default."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from autodeploy.service.session import open_services
from tests.integration.conftest import QUICK, eventually, named, quick_settings
from tests.quick_planner import SLOW
from tests.support.postgresql import libpq_dsn

if TYPE_CHECKING:
    from autodeploy.service.session import Services

pytestmark = pytest.mark.integration

COUNT = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


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


def all_ended(services: Services, ids: list[str]) -> bool:
    return all(services.searches.status(each) not in {"queued", "running"} for each in ids)
