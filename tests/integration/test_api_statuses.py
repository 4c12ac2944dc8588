"""The OpenAPI document says every status that a route answers, also where the database is away or its disk is full."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sqlalchemy.exc import OperationalError

from autodeploy.kit.errors import StorageFullError
from autodeploy.service.store.database import Database
from tests import factories
from tests.integration.conftest import quick_settings, running_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

WRITES = {
    *("create_search", "annotate_search", "cancel_search", "delete_search"),
    *("create_batch", "cancel_batch", "create_run", "delete_run"),
}


# An ablation is computed by the planner itself, whichever one searches.
SMALL = {
    "model": "qwen3-0.6b",
    "cluster": {"profile": "cloudmatrix-384", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 16},
    "strategy": {"tp": 1},
}


class Operation(NamedTuple):
    """One operation with an address and a body that fit what is stored."""

    name: str
    method: str
    path: str
    body: Any
    documented: set[str]


class Opened(NamedTuple):
    client: httpx.AsyncClient
    operations: list[Operation]


@pytest.fixture
async def opened(sqlite_url: str) -> AsyncIterator[Opened]:
    """An app with a finished search, one that waits, a plan and a run."""
    async with running_app(quick_settings(sqlite_url)) as client:
        done = (await client.post("/v1/searches?wait=60", json=factories.spec_document())).json()
        plan_id = done["plans"][0]["plan_id"]
        run = await client.post(f"/v1/plans/{plan_id}/runs", json={"step_time_s": done["plans"][0]["step_time_s"]})
        swept = {"spec": factories.spec_document(), "sweep": {"seq_length": [4096]}}
        known = {
            "search_id": done["search"]["id"],
            "plan_id": plan_id,
            "run_id": run.json()["run"]["id"],
            "name": "planset",
            "key_id": "key_0nobodys",
            "batch_id": (await client.post("/v1/batches", json=swept)).json()["id"],
        }
        strategy = factories.spec_document() | {"strategy": {"tp": 8}}
        bodies = {
            "create_search": factories.spec_document(top_k=3),
            "annotate_search": {"note": "looked at"},
            "create_batch": swept,
            "create_run": {"step_time_s": 1.1 * done["plans"][0]["step_time_s"]},
            "compare_plans": {"plans": [plan_id, plan_id]},
            "create_check": strategy,
            "create_estimate": strategy,
            "create_ablation": SMALL,
            "expire_key": {"expires_in_days": 1},
        }
        yield Opened(client, list(operations((await client.get("/openapi.json")).json(), known, bodies)))


def operations(document: dict[str, Any], known: dict[str, str], bodies: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        filled = re.sub(r"\{([^}]*)\}", lambda found: known[found[1]], path)
        for method, operation in methods.items():
            name = operation["operationId"]
            query = "?to=json" if name == "export_plan" else ""
            yield Operation(name, method.upper(), filled + query, bodies.get(name), set(operation["responses"]))


async def answers(opened: Opened) -> dict[str, int]:
    """The status that each operation answers; every one of them is documented, and a problem where it is an error."""
    found = {}
    for operation in opened.operations:
        answer = await opened.client.request(operation.method, operation.path, json=operation.body)
        assert str(answer.status_code) in operation.documented, (operation.name, answer.status_code, answer.text[:300])
        if answer.status_code >= 400 and operation.name != "readyz":
            assert answer.headers["content-type"] == "application/problem+json", operation.name
        found[operation.name] = answer.status_code
    return found


@contextmanager
def nothing(*_arguments: object) -> Iterator[None]:
    raise OperationalError("SELECT 1", {}, Exception("the connection is lost"))
    yield


@contextmanager
def no_room(*_arguments: object) -> Iterator[None]:
    raise StorageFullError(hint="free space")
    yield


async def test_everything_may_fail_and_says_so(opened: Opened) -> None:
    for operation in opened.operations:
        assert {"413", "500"} <= operation.documented
        if operation.name in WRITES:
            assert {"503", "507"} <= operation.documented


async def test_a_database_that_is_away(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Database, "read", nothing)
        patch.setattr(Database, "write", nothing)
        found = await answers(opened)
    assert {found[name] for name in WRITES} == {503}
    assert found["livez"] == 200
    assert found["get_search"] == found["list_searches"] == found["get_plan"] == 503


async def test_a_disk_that_is_full(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", no_room)
        found = await answers(opened)
    assert {found[name] for name in WRITES} == {507}
    assert found["create_ablation"] == 200
    assert {found[name] for name in ("get_search", "list_searches", "get_plan", "list_runs", "livez")} == {200}
