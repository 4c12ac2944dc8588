"""The client against a real server process: plans, events, restart, shutdown, an event loop that never blocks."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.client import AsyncClient, Client, ServiceError, WaitTimeout
from autodeploy.kit.errors import ConflictError, NotFoundError, SpecError
from autodeploy.specs.spec import Spec
from tests import factories
from tests.quick_planner import SLOW
from tests.support import plain_http
from tests.support.postgresql import free_port
from tests.support.programs import Program, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration


class Place:
    """Where the module's server runs."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {
            "AUTODEPLOY_DATABASE_URL": f"sqlite:///{directory / 'autodeploy.db'}",
            "AUTODEPLOY_PORT": str(self.port),
            "AUTODEPLOY_HEARTBEAT_S": "0.2",
            "AUTODEPLOY_STALLED_AFTER_S": "20",
            "AUTODEPLOY_POLL_S": "0.2",
        }
        self._program = Program(
            [], environment, directory / "server.log", module="tests.support.quick_server", forked=True
        )

    @contextmanager
    def server(self) -> Iterator[Program]:
        """A server process that answers."""
        self._program.start()
        try:
            wait_until_ready(self.url, self._program)
            yield self._program
        finally:
            self._program.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def client(place: Place) -> Iterator[Client]:
    with place.server(), Client(place.url) as client:
        yield client


def slow(**changes: Any) -> dict[str, Any]:
    return factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": SLOW}, **changes)


def test_plan(client):
    found = client.plan(factories.spec_document())
    expected = factories.plan_set(5, search_id=found.search.id, created_at=found.search.created_at)
    assert found == factories.cautious(expected)
    assert client.get(found.search.id).plan_set == found
    assert client.plan(Spec.model_validate(factories.spec_document())).plans == found.plans
    assert client.get_plan(found.plans[0].plan_id) == found.plans[0]
    assert client.list(status="optimal").items[0].best_step_time_s == found.plans[0].step_time_s
    assert client.annotate(found.search.id, tags=("a",)).tags == ("a",)
    assert client.list(tag="a").items[0].id == found.search.id
    assert found.plans[0].plan_id in client.export(found.plans[0].plan_id, "json")
    client.delete(found.search.id)
    with pytest.raises(NotFoundError, match=found.search.id):
        client.get(found.search.id)


def test_errors_have_their_types(client):
    with pytest.raises(SpecError) as caught:
        client.plan({"model": "deepseek-v3", "cluster": {"profile": "cloudmatrix-385"}})
    assert {error.path for error in caught.value.errors} >= {"/cluster/profile", "/training"}
    assert "cloudmatrix-384" in next(e.hint for e in caught.value.errors if e.path == "/cluster/profile")
    with pytest.raises(SpecError, match="strategy"):
        client.estimate(factories.spec_document())
    with pytest.raises(NotFoundError):
        client.get_plan("p_none")
    done = client.plan(factories.spec_document(top_k=2))
    with pytest.raises(ConflictError):
        client.cancel(done.search.id)


def test_a_server_that_is_not_there():
    with Client(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(ServiceError, match="does not answer"):
        client.get("srch_1")


def test_events_until_the_end_and_from_the_middle(client):
    search = client.submit(slow())
    seen = []
    for event in client.events(search.id):
        seen.append(event)
        if len(seen) == 6:
            client.cancel(search.id)
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert [e.data["status"] for e in seen if e.kind == "status"] == ["queued", "running", "running", "cancelled"]
    assert {e.data["kind"] for e in seen if e.kind == "progress"} == {"enumerated", "incumbent"}
    assert list(client.events(search.id, after=len(seen) - 1)) == seen[-1:]
    assert list(client.events(search.id, after=len(seen))) == []


def test_waiting_has_an_end(client):
    search = client.submit(slow())
    with pytest.raises(WaitTimeout) as caught:
        client.wait(search, wait_s=0.3)
    assert caught.value.search_id == search.id
    client.cancel(search.id)
    assert client.wait(search, wait_s=10).status == "cancelled"


@pytest.mark.anyio
async def test_the_asynchronous_client(client, place):
    async with AsyncClient(place.url) as asynchronous:
        found = await asynchronous.plan(factories.spec_document(top_k=3))
        assert (await asynchronous.get(found.search.id)).plan_set == found
        events = [event async for event in asynchronous.events(found.search.id)]
        assert events[-1].data["status"] == "optimal"
        assert (await asynchronous.list()).items[0].id == found.search.id
        with pytest.raises(NotFoundError):
            await asynchronous.get("srch_none")


def test_waiting_clients_do_not_block_the_server(client, place):
    """More clients wait than the server has threads, while health answers quickly."""
    search = client.submit(slow(top_k=7))
    waiting = [
        threading.Thread(
            target=plain_http.get, args=(f"{place.url}/v1/searches/{search.id}?wait=3",), kwargs={"timeout": 20}
        )
        for _ in range(60)
    ]
    for thread in waiting:
        thread.start()
    slowest_s = 0.0
    with plain_http.Client(base_url=place.url) as http:
        for _ in range(20):
            started_s = time.perf_counter()
            assert http.get("/livez").status_code == 200
            slowest_s = max(slowest_s, time.perf_counter() - started_s)
            time.sleep(0.02)
    client.cancel(search.id)
    for thread in waiting:
        thread.join()
    assert slowest_s < 1.0


def test_a_restarted_server_still_has_everything_and_goes_on(tmp_path):
    place = Place(tmp_path)
    with Client(place.url) as client:
        with place.server() as process:
            before = client.plan(factories.spec_document())
            running = client.submit(slow())
            events = client.events(running.id)
            next(event for event in events if event.kind == "progress")
            started_s = time.monotonic()
            assert process.stop() == 0
            assert time.monotonic() - started_s < 8
        with place.server():
            assert client.get(before.search.id).plan_set == before
            for event in events:  # the same stream, taken up after the restart
                if event.data.get("attempt") == 1:
                    client.cancel(running.id)
            assert client.get(running.id).status == "cancelled"
