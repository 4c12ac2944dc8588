"""Who takes searches: told by every runner, asked by /readyz, a queued search, its page and the command line."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from autodeploy.cli import remote
from autodeploy.client import Search
from autodeploy.kit.errors import StorageFullError
from autodeploy.service.runner.memory_limit import resident_bytes
from autodeploy.service.runner.owner import Owner
from autodeploy.service.runner.workers import WorkerHeartbeat, Workers, WorkerView
from autodeploy.service.session import open_services
from autodeploy.service.store.base import utc_now
from tests import factories
from tests.integration.conftest import QUICK, eventually, named, quick_settings, running_app, status_is
from tests.integration.test_storage_full import limit_pages
from tests.quick_planner import SLOW

if TYPE_CHECKING:
    from autodeploy.service.store.database import Database

pytestmark = pytest.mark.integration


def worker(name: str, seconds_ago: float, *, slots: int = 1) -> WorkerView:
    now = utc_now()
    return WorkerView(name, now, now - timedelta(seconds=seconds_ago), slots, 0, 1000, "1.0")


def tell_of_many(database: Database) -> None:
    with database.write() as session:
        for number in range(500):
            Workers(session).beat(worker(f"{number:0190d}", 100))


def test_live_are_those_that_looked_lately_and_have_slots(database: Database):
    now = utc_now()
    with database.write() as session:
        for each in (worker("here", 1), worker("silent", 100), worker("server", 0, slots=0), worker("old", 90_000)):
            Workers(session).beat(each)
        Workers(session).beat(worker("here", 0, slots=4))  # tells again
    with database.read() as session:
        assert [(each.id, each.slots) for each in Workers(session).live(now, 30)] == [("here", 4)]
        assert [each.id for each in Workers(session).live(now, 200)] == ["here", "silent"]
    with database.write() as session:
        Workers(session).prune(now - timedelta(days=1), lambda name: name == "silent")
        Workers(session).remove("here")
        assert not Workers(session).has_live(now, 1e6)


def test_a_process_says_when_it_last_looked(database: Database):
    """Also after it looked no longer, unless all its slots are busy: then it has no reason to look."""
    settings = quick_settings(str(database.url), worker_alive_s=1.0)
    busy = 0
    owner = Owner()
    presence = WorkerHeartbeat(database, settings, owner, slots=1, busy=lambda: busy, looked_s=lambda: None)
    presence.start()

    def seen() -> bool:
        with database.read() as session:
            return Workers(session).has_live(utc_now(), settings.worker_alive_s)

    assert seen()
    assert presence.is_live
    eventually(lambda: not seen() and not presence.is_live, within_s=5)
    busy = 1
    eventually(lambda: seen() and presence.is_live, within_s=5)
    presence.stop()
    assert not seen()


def test_memory_counts_processes_that_were_started():
    assert resident_bytes() > 10_000_000
    assert resident_bytes(2**22 + 1) == 0


def test_a_search_that_nobody_would_take_says_so(migrated_postgres_dsn):
    settings = quick_settings(migrated_postgres_dsn, jobs="procrastinate", worker_alive_s=3.0)
    with open_services(settings, with_runner=True, planner=QUICK) as server:
        assert server.is_ready()["workers"] is False
        submitted = server.searches.submit(named(SLOW)).search
        assert submitted.no_live_worker
        assert server.searches.get(submitted.id).no_live_worker
        with open_services(settings, as_worker=True, planner=QUICK) as at_work:
            eventually(status_is(server, submitted.id, "running"))
            assert server.is_ready()["workers"] is True
            assert [each.slots for each in server.live_workers()] == [1]
            waiting = server.searches.submit(named("waits")).search
            assert not waiting.no_live_worker
            assert at_work.runner is not None
            assert at_work.runner.presence is not None
            eventually(lambda: [each.busy for each in server.live_workers()] == [1], within_s=10)
        assert server.searches.get(waiting.id).no_live_worker  # the worker has signed off


@pytest.mark.anyio
async def test_ready_says_it_and_so_do_document_and_page(migrated_postgres_dsn):
    async with running_app(quick_settings(migrated_postgres_dsn, jobs="procrastinate")) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert ready.json()["checks"]["workers"] is False
        created = (await client.post("/v1/searches", json=factories.spec_document(model="deepseek-v3"))).json()
        assert created["no_live_worker"] is True
        path = f"/searches/{created['search']['id']}"
        assert (await client.get(f"/v1{path}")).json()["no_live_worker"] is True
        assert 'id="progress-no-worker" class="card warn">' in (await client.get(path)).text
        page = (await client.get(path, headers={"Accept-Language": "zh"})).text
        assert "没有运行中的工作进程" in page
        cancelled = (await client.post(f"/v1{path}/cancel")).json()
        assert "no_live_worker" not in cancelled


@pytest.mark.anyio
async def test_a_search_with_a_worker_does_not_say_it(sqlite_url):
    async with running_app(quick_settings(sqlite_url)) as client:
        slow = factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": SLOW})
        first = (await client.post("/v1/searches", json=slow)).json()
        second = (await client.post("/v1/searches", json=slow, headers={"Cache-Control": "no-cache"})).json()
        assert "no_live_worker" not in second
        page = (await client.get(f"/searches/{second['search']['id']}")).text
        assert 'id="progress-no-worker" class="card warn" hidden>' in page
        assert 'id="progress-queue">' in page
        assert re.search('data-count="position">[12]</span>', page)  # the first may still be waiting, too
        for each in (second, first):
            await client.post(f"/v1/searches/{each['search']['id']}/cancel")


def test_the_command_line_says_it_once(capsys, monkeypatch):
    monkeypatch.setattr(remote, "LOOK_S", 0.01)
    plan_set = factories.plan_set(0, status="queued").model_dump(mode="json")
    asked = []

    class Service:
        def get(self, search_id: str) -> Search:
            asked.append(search_id)
            return Search.read(plan_set | {"no_live_worker": len(asked) > 2, "said_by_a_newer_service": 1})

    with remote._told_of_workers(Service(), Search.read(plan_set)):  # type: ignore[arg-type]
        eventually(lambda: "no live worker" in capsys.readouterr().err, within_s=10)
    assert len(asked) == 3


@pytest.mark.anyio
async def test_ready_says_that_writes_are_refused(sqlite_url, caplog, monkeypatch):
    """And the log does, at error."""
    async with running_app(quick_settings(sqlite_url)) as client:
        database = client._transport.app.state.services.database  # type: ignore[attr-defined]
        limit_pages(database, 1)
        with caplog.at_level(logging.WARNING), pytest.raises(StorageFullError):
            tell_of_many(database)
        assert [record.levelname for record in caplog.records if "refuses writes" in record.message] == ["ERROR"]
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["status"], ready.json()["checks"]["writes"]) == (200, "degraded", False)
        monkeypatch.setattr("autodeploy.service.store.database.REFUSED_LATELY_S", 0.0)
        assert (await client.get("/readyz")).json()["checks"]["writes"] is True
        monkeypatch.setattr("autodeploy.service.store.database.LEAST_FREE_BYTES", 1 << 62)
        assert (await client.get("/readyz")).json()["checks"]["writes"] is False


def test_a_database_for_reading_only_refuses_writes(database: Database, monkeypatch):
    monkeypatch.setattr("autodeploy.service.store.database.LEAST_FREE_BYTES", 0)
    read_only = "PRAGMA query_only=1" if database.is_sqlite else "SET default_transaction_read_only = on"

    @event.listens_for(database.engine, "checkout")
    def forbid(connection, _record, _proxy):
        connection.cursor().execute(read_only)
        if not database.is_sqlite:
            connection.commit()

    assert not database.refuses_writes
    for write in (database.require_writes, lambda: tell_of_many(database)):
        with pytest.raises(DBAPIError):
            write()
    assert database.refuses_writes
