"""What callers see of the order of the queue, and how often a key may ask."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autodeploy.client.calls import Search
from autodeploy.service.requests.callers import AccessService
from autodeploy.service.session import open_services
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.searches import Searches
from autodeploy.service.store.tables import WorkerRow
from tests import factories
from tests.integration.conftest import QUICK, named, quick_settings, running_app
from tests.quick_planner import SLOW

pytestmark = pytest.mark.integration


def worker(services, slots: int) -> None:
    now = utc_now()
    with services.database.write() as session:
        row = WorkerRow(id="w", started_at=now, seen_at=now, slots=slots, busy=0, rss_bytes=1, engine_version="1")
        session.add(row)


def submit(services, name: str, expected_s: float) -> str:
    search_id = services.searches.submit(named(name)).search.id
    with services.database.write() as session:
        Searches(session).change(search_id, {"expected_s": expected_s})
    return search_id


def test_a_submitted_search_has_its_expected_time_and_origin(services):
    ids = [services.searches.submit(named(name)).search.id for name in ("quick", SLOW)]
    with services.database.read() as session:
        quick, slow = (Searches(session).get(search_id) for search_id in ids)
        assert (quick.origin, slow.origin) == ("server", "server")
        assert quick.expected_s < 1.0 < 30.0 < slow.expected_s <= 121.0


def test_the_command_lines_own_search_is_no_ones_turn(services):
    plan_set = services.searches.plan_and_store(named("here"))
    with services.database.read() as session:
        row = Searches(session).get(plan_set.search.id)
        assert (row.origin, row.status) == ("cli", "optimal")
        assert row.expected_s is not None


def test_place_and_wait_of_searches_that_wait(services):
    worker(services, slots=1)
    ids = [submit(services, f"model {number}", 10.0) for number in range(3)]
    places = [services.searches.get(search_id).queue for search_id in ids]
    assert [place.position for place in places] == [1, 2, 3]
    assert [place.expected_wait_s for place in places] == [0.0, 10.0, 20.0]
    assert {(place.waiting, place.slots, place.expected_s) for place in places} == {(3, 1, 10.0)}
    with services.database.write() as session:
        claim = Queue(session).claim(ids[0], "me", now=utc_now() - timedelta(seconds=4))
    assert claim is not None
    later = submit(services, "later", 10.0)
    assert services.searches.get(ids[0]).queue is None
    place = services.searches.get(later).queue
    assert (place.position, place.waiting) == (3, 3)
    assert place.expected_wait_s == pytest.approx(6.0 + 20.0, abs=5.0)


def test_the_wait_is_told_in_the_time_of_this_machine(services):
    worker(services, slots=1)
    now = utc_now()
    for number in range(4):
        search_id = submit(services, f"done {number}", 10.0)
        with services.database.write() as session:
            claim = Queue(session).claim(search_id, "me", now=now - timedelta(seconds=30))
            assert claim is not None
            Queue(session).finish(claim, factories.plan_set(search_id=search_id), now=now)
    ids = [submit(services, f"model {number}", 10.0) for number in range(2)]
    place = services.searches.get(ids[1]).queue
    assert (place.expected_s, place.expected_wait_s) == (30.0, 30.0)


def test_without_a_worker_there_is_a_place_and_no_promise(services):
    search_id = submit(services, "alone", 10.0)
    place = services.searches.get(search_id).queue
    assert (place.position, place.slots, place.expected_wait_s) == (1, 0, None)


@pytest.mark.anyio
async def test_the_place_is_in_the_document(database_url):
    settings = quick_settings(database_url, workers=1)
    async with running_app(settings) as client:
        for number in range(3):
            body = factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": SLOW})
            body["training"]["global_batch_size"] = 3840 * (number + 1)
            answer = await client.post("/v1/searches", json=body)
            assert answer.status_code == 202
        address = answer.headers["Location"]
        document = (await client.get(address)).json()
        place = document["queue"]
        assert (place["waiting"], place["slots"]) == (2, 1) or place["waiting"] == 3
        assert place["position"] == place["waiting"]
        assert place["expected_wait_s"] > 0.0
        read = Search.read(document).queue
        assert read is not None
        assert read.model_dump() == place
        cancelled = (await client.post(f"{address}/cancel")).json()
        assert "queue" not in cancelled


@pytest.mark.anyio
async def test_a_key_that_asks_too_often_is_told_when_to_come_back(sqlite_url):
    settings = quick_settings(sqlite_url, auth="keys", key_requests_per_s=0.5)
    with open_services(settings, planner=QUICK) as services:
        keys = [AccessService(services.database).create(name, "read")[0] for name in ("often", "seldom")]
    often, seldom = ({"Authorization": f"Bearer {key}"} for key in keys)
    async with running_app(settings) as client:
        statuses = [(await client.get("/v1/searches", headers=often)).status_code for _ in range(5)]
        assert statuses == [200] * 5
        refused = await client.get("/v1/searches", headers=often)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["Retry-After"]) <= 2
        assert refused.json()["type"].endswith("limit-reached")
        assert (await client.get("/v1/searches", headers=seldom)).status_code == 200
        assert (await client.get("/livez", headers=often)).status_code == 200
