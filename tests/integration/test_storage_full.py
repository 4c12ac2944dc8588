"""A disk that is full: a write is refused with its reason, what is stored is read, and freed space is enough."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event

from autodeploy.kit.errors import StorageFullError
from autodeploy.service.session import open_services
from tests import factories
from tests.integration.conftest import QUICK, named, quick_settings, running_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.service.session import Services
    from autodeploy.service.store.database import Database

pytestmark = pytest.mark.integration


@pytest.fixture
def file_size_limit() -> Iterator[None]:
    """Files of this process cannot grow over 512 KiB: as on a full disk, write() itself fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 * 1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def limit_pages(database: Database, pages: int) -> None:
    """The database file cannot grow over that many pages, on any connection."""

    @event.listens_for(database.engine, "checkout")
    def limit(connection, _record, _proxy):
        connection.execute(f"PRAGMA max_page_count={pages}")


def submit_many(services: Services) -> None:
    for number in range(200):
        services.searches.submit(named(f"refused {number}"))


def test_a_full_file_refuses_writes_and_is_read(sqlite_url):
    with open_services(quick_settings(sqlite_url), planner=QUICK) as services:
        kept = services.searches.plan_and_store(named("kept")).search.id
        limit_pages(services.database, 1)
        with pytest.raises(StorageFullError, match="full") as caught:
            submit_many(services)
        assert "free space" in caught.value.hint
        stored = len(services.searches.list(limit=500).items)
        assert services.searches.get(kept).status == "optimal"
        limit_pages(services.database, 1_000_000)
        services.searches.submit(named("after space was freed"))
        assert len(services.searches.list(limit=500).items) == stored + 1


@pytest.mark.usefixtures("file_size_limit")
def test_a_failing_write_is_a_full_disk(sqlite_url):
    with open_services(quick_settings(sqlite_url), planner=QUICK) as services:
        kept = services.searches.submit(named("kept")).search.id
        with pytest.raises(StorageFullError):
            submit_many(services)
        assert services.searches.get(kept).status == "queued"


@pytest.mark.anyio
async def test_the_problem_says_so(sqlite_url):
    async with running_app(quick_settings(sqlite_url, poll_s=60.0)) as client:
        kept = (await client.post("/v1/searches?wait=60", json=factories.spec_document(model="deepseek-v3"))).json()
        limit_pages(client._transport.app.state.services.database, 1)
        for number in range(200):
            answer = await client.post("/v1/searches", json=factories.spec_document(top_k=1 + number % 100))
            if answer.status_code == 507:
                break
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem["type"] == "urn:autodeploy:problem:storage-full"
        assert "free space" in problem["hint"]
        assert (await client.get(f"/v1/searches/{kept['search']['id']}")).json()["status"] == "optimal"
        assert (await client.get("/v1/searches")).status_code == 200
