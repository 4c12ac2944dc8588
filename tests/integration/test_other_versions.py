"""Rows and tables of another version beside this one: told as such, and nobody else is kept from what is theirs."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from autodeploy.kit.version import can_run
from autodeploy.service.session import open_services
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.searches import Searches
from tests import factories
from tests.integration.conftest import QUICK, eventually, quick_settings, running_app
from tests.integration.test_store_queue import claim, enqueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.service.session import Services
    from autodeploy.service.store.database import Database

pytestmark = pytest.mark.integration


def unknown_key(spec: dict[str, Any]) -> None:
    spec["cluster"]["cooling"] = "liquid"


def unknown_kind(spec: dict[str, Any]) -> None:
    spec["cluster"]["num_npus"] = {"cards": 16}


def nothing_known(spec: dict[str, Any]) -> None:
    spec["cluster"] = {"machine": "of 2030"}


def no_cluster(spec: dict[str, Any]) -> None:
    spec["cluster"] = None


def a_list(spec: dict[str, Any]) -> None:
    spec["cluster"] = [spec["cluster"], spec["cluster"]]


def in_another_part(spec: dict[str, Any]) -> None:
    spec["training"]["seq_length"] = "auto"


OF_CLUSTERS = (unknown_key, unknown_kind, nothing_known, no_cluster, a_list)


def rewrite(database: Database, search_id: str, change: Callable[[dict[str, Any]], None], **columns: object) -> None:
    """As another version would have stored it."""
    with database.write() as session:
        row = Searches(session).get(search_id)
        assert row is not None
        spec = copy.deepcopy(row.spec)
        change(spec)
        row.spec, row.spec_hash = spec, f"of {change.__name__}"
        for name, value in columns.items():
            setattr(row, name, value)


@pytest.mark.anyio
async def test_a_spec_that_cannot_be_read_takes_no_list_away(database_url):
    async with running_app(quick_settings(database_url)) as client:
        services: Services = client._transport.app.state.services  # type: ignore[attr-defined]
        ids = [services.searches.plan_and_store(factories.spec()).search.id for _ in OF_CLUSTERS]
        whole = services.searches.plan_and_store(factories.spec()).search.id
        for search_id, change in zip(ids, OF_CLUSTERS, strict=True):
            rewrite(services.database, search_id, change)
        found = (await client.get("/v1/searches")).json()["items"]
        assert {item["id"]: item["stale"] for item in found} == dict.fromkeys(ids) | {whole: False}
        page = await client.get("/")
        assert (page.status_code, page.text.count('class="chip"') >= len(ids)) == (200, True)
        for search_id in ids:
            one = await client.get(f"/v1/searches/{search_id}")
            assert (one.status_code, one.json()["stale"]) == (200, None)
            plan = await client.get(f"/v1/plans/{one.json()['plans'][0]['plan_id']}")
            assert plan.status_code == 200
            assert (await client.get(f"/searches/{search_id}")).status_code == 409
        assert "stale" not in (await client.get(f"/v1/searches/{whole}")).json()


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/plans/{plan}/export?to=megatron", "/plans/{plan}", "/v1/searches/{search}"])
async def test_what_needs_the_spec_says_that_it_cannot_be_read(sqlite_url, path):
    async with running_app(quick_settings(sqlite_url)) as client:
        services: Services = client._transport.app.state.services  # type: ignore[attr-defined]
        done = services.searches.plan_and_store(factories.spec())
        version = {"engine_version": "99.1"} if "searches" in path else {}
        rewrite(services.database, done.search.id, in_another_part, **version)
        if version:
            with services.database.write() as session:
                row = Searches(session).get(done.search.id)
                assert row is not None
                row.result = {**(row.result or {}), "status": "glorious"}
        answer = await client.get(path.format(plan=done.plans[0].plan_id, search=done.search.id))
        assert answer.status_code == 409
        if path.startswith("/v1"):
            assert answer.json()["key"] == "jobs.unreadable_stored_search"


@pytest.mark.parametrize("change", [*OF_CLUSTERS, in_another_part])
def test_a_queued_spec_that_cannot_be_read_fails_at_once(database, database_url, change):
    with open_services(quick_settings(database_url), planner=QUICK) as waiting:
        search_id = waiting.searches.submit(factories.spec()).search.id
        rewrite(database, search_id, change)
    with open_services(quick_settings(database_url), with_runner=True, planner=QUICK) as services:
        eventually(lambda: services.searches.status(search_id) == "failed", within_s=15)
        with database.read() as session:
            row = Searches(session).get(search_id)
        assert row is not None
        assert (row.attempts, row.crashes, row.losses) == (1, 0, 0)
        place = "/training/seq_length" if change is in_another_part else "/cluster"
        assert place in (row.error or "")


@pytest.mark.parametrize(
    ("asked", "own", "runs"),
    [
        ("1.0", "1.0.0", True),
        ("1.0.0", "1.0", True),
        ("1.0.0", "1.0.1", True),
        ("1.0.1", "1.0.0", False),
        ("1.10.0", "1.9.0", False),
        ("1.9.0", "1.10.0", True),
        ("2.0.0rc1", "1.9.9", False),
        ("7.0", "0.0.0", True),
    ],
)
def test_a_version_runs_what_it_and_those_before_it_stored(asked, own, runs):
    assert can_run(asked, own) is runs


def test_a_worker_leaves_searches_of_newer_versions_to_their_own(database, monkeypatch):
    enqueue(database, "srch_1", "srch_2", "srch_3")
    with database.write() as session:
        for search_id, version in (("srch_1", "99.0"), ("srch_2", "0.1"), ("srch_3", "99.0")):
            row = Searches(session).get(search_id)
            assert row is not None
            row.engine_version = version
    monkeypatch.setattr("autodeploy.service.store.queue_state.can_run", lambda asked: can_run(asked, "1.0"))
    mine = claim(database)
    assert mine is not None
    assert mine.search_id == "srch_2"
    assert claim(database) is None
    monkeypatch.setattr("autodeploy.service.store.queue_state.can_run", lambda asked: can_run(asked, "99.0"))
    assert claim(database).search_id == "srch_1"


def move_to(database: Database, revision: str) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :new"), {"new": revision})


@pytest.mark.anyio
@pytest.mark.parametrize("revision", ["0001", "0007", "0099"])
async def test_at_another_revision_nothing_is_claimed_and_it_is_said(database, database_url, caplog, revision):
    from autodeploy.service.store.migration import HEAD_REVISION

    settings = quick_settings(database_url, worker_alive_s=1.0)
    with caplog.at_level(logging.WARNING):
        async with running_app(settings) as client:
            services: Services = client._transport.app.state.services  # type: ignore[attr-defined]
            move_to(database, revision)
            search_id = services.searches.submit(factories.spec()).search.id
            with database.write() as session:
                assert Queue(session).claim_next("me", now=database.now()) is None
            assert (await client.get("/readyz")).status_code == 503
            assert services.runner is not None
            presence = services.runner.presence
            assert presence is not None
            eventually(lambda: not presence.knows_tables, within_s=10)
            assert services.searches.status(search_id) == "queued"
            assert any(HEAD_REVISION in record.getMessage() for record in caplog.records if record.levelname == "ERROR")
            move_to(database, HEAD_REVISION)
            eventually(lambda: services.searches.status(search_id) not in {"queued", "running"}, within_s=20)
            eventually(lambda: presence.knows_tables, within_s=10)
            assert (await client.get("/readyz")).status_code == 200
