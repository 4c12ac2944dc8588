"""Waiting: by events where they come through, by asking where they do not; the key goes along everywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest

from autodeploy.client import AsyncClient, Client, WaitTimeout
from autodeploy.client.calls import client_options
from autodeploy.kit.errors import LimitError, UnknownCallerError
from tests import factories

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit

KEY = "adk_" + "k" * 43


def document(status: str) -> str:
    return factories.plan_set(0 if status == "running" else 1, status).model_dump_json()  # type: ignore[arg-type]


class Service:
    """Answers as the service: running at first; finished when its last event was sent, or after some questions."""

    def __init__(self, *, streams: bool, questions: int) -> None:
        self.streams, self.questions = streams, questions
        self.asked: list[str] = []
        self.finished = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        self.asked.append(request.url.path.rpartition("/")[2])
        if request.url.path.endswith("/events"):
            if not self.streams:
                return httpx.Response(502, text="a proxy that knows no streams")
            self.finished = True
            data = json.dumps({"status": "optimal"})
            content = f"id: 1\nevent: status\ndata: {data}\n\n"
            return httpx.Response(200, text=content, headers={"content-type": "text/event-stream"})
        self.questions -= 1
        status = "optimal" if self.finished or self.questions < 0 else "running"
        return httpx.Response(200, text=document(status))


def client_of(service: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://test", KEY, transport=httpx.MockTransport(service))


def test_the_last_event_ends_the_wait():
    service = Service(streams=True, questions=100)
    with client_of(service) as client:
        assert client.wait(client.get(factories.SEARCH_ID), wait_s=30).status == "optimal"
    assert service.asked == [factories.SEARCH_ID, "events", factories.SEARCH_ID]


def test_asking_where_events_do_not_come_through():
    service = Service(streams=False, questions=4)
    with client_of(service) as client:
        assert client.wait(client.get(factories.SEARCH_ID), wait_s=30).status == "optimal"
    assert service.asked.count("events") == 1
    assert service.asked.count(factories.SEARCH_ID) == 5


def test_a_wait_ends():
    service = Service(streams=False, questions=10**9)
    with client_of(service) as client:
        search = client.get(factories.SEARCH_ID)
        with pytest.raises(WaitTimeout):
            client.wait(search, wait_s=0.05)


@pytest.mark.anyio
@pytest.mark.parametrize("streams", [True, False])
async def test_the_asynchronous_client_waits_alike(streams):
    service = Service(streams=streams, questions=3)
    async with AsyncClient("http://test", KEY, transport=httpx.MockTransport(service)) as client:
        search = await client.get(factories.SEARCH_ID)
        assert (await client.wait(search, wait_s=30)).status == "optimal"
    assert service.asked.count("events") == 1


@pytest.mark.parametrize(("status", "kind"), [(401, UnknownCallerError), (429, LimitError)])
def test_refusals_have_their_types(status, kind):
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json={"detail": "no", "hint": "do this"})

    with client_of(refuse) as client, pytest.raises(kind) as caught:
        client.get(factories.SEARCH_ID)
    assert caught.value.hint == "do this"


@pytest.mark.parametrize(("url", "verified"), [("http://here", False), ("https://here", True), ("HTTPS://here", True)])
def test_certificates_are_read_for_https_alone(url: str, verified: bool) -> None:
    assert client_options(url, None, 1.0)["verify"] is verified
