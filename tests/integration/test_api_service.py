"""Health, metrics, catalogue, schemas and the OpenAPI document."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from api import server
from api.app import create_app
from autodeploy.service.store.database import Database
from tests import factories
from tests.integration.conftest import QUICK, quick_settings, running_app
from tests.support.postgresql import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    import httpx
    from fastapi.dependencies.models import Dependant

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    path = tmp_path_factory.mktemp("service") / "autodeploy.db"
    async with running_app(quick_settings(f"sqlite:///{path}")) as client:
        yield client


async def test_health(client):
    assert (await client.get("/livez")).json() == {"status": "ok", "checks": {}}
    ready = await client.get("/readyz")
    assert ready.status_code == 200
    checks = {"database": True, "migrations": True, "jobs": True, "workers": True, "writes": True}
    assert ready.json() == {"status": "ok", "checks": checks}
    assert (await client.get("/version")).json()["name"] == "autodeploy"


def test_a_server_opens_its_database_once_and_closes_it(tmp_path, monkeypatch):
    opened: list[Database] = []
    closed: list[Database] = []
    ready: list[int] = []
    make, close = Database.__init__, Database.close

    def made(database: Database, url: str) -> None:
        opened.append(database)
        make(database, url)

    def gone(database: Database) -> None:
        closed.append(database)
        close(database)

    def answer(running: server._Server) -> None:
        with TestClient(running._app) as client:
            ready.append(client.get("/readyz").status_code)

    monkeypatch.setattr(Database, "__init__", made)
    monkeypatch.setattr(Database, "close", gone)
    monkeypatch.setattr(server._Server, "run", answer)
    monkeypatch.setattr(server, "configure_logging", lambda _: None)
    monkeypatch.setattr(server.signal, "signal", lambda *_: None)
    server.serve(quick_settings(f"sqlite:///{tmp_path}/autodeploy.db", port=free_port()), planner=QUICK)
    assert ready == [200]
    assert len(opened) == 1
    assert set(closed) == set(opened)


def test_only_what_asks_the_database_takes_a_thread_before_a_route(tmp_path):
    app = create_app(quick_settings(f"sqlite:///{tmp_path / 'autodeploy.db'}"), planner=QUICK)
    called = {call for dependant in _dependants(app.routes) for call in _called(dependant)}
    assert {call.__name__ for call in called if not inspect.iscoroutinefunction(call)} == {"_plan"}
    assert len(called) > 5


def _dependants(routes: Iterable[object]) -> Iterator[Dependant]:
    for route in routes:
        if (inner := getattr(route, "original_router", None)) is not None:
            yield from _dependants(inner.routes)
        elif (dependant := getattr(route, "dependant", None)) is not None:
            yield dependant


def _called(dependant: Dependant) -> Iterator[Callable[..., object]]:
    for each in dependant.dependencies:
        assert each.call is not None
        yield each.call
        yield from _called(each)


async def test_metrics_count_requests_by_route(client):
    await client.get("/v1/searches/srch_unknown0")
    await client.get("/v1/searches/srch_unknown1")
    await client.get("/no/such/page")
    families = {f.name: f for f in text_string_to_metric_families((await client.get("/metrics")).text)}
    counted = {
        (s.labels["route"], s.labels["status"]): s.value
        for s in families["autodeploy_http_requests"].samples
        if s.name.endswith("_total")
    }
    assert counted["/v1/searches/{search_id}", "404"] == 2
    assert counted["unmatched", "404"] >= 1
    assert {s.labels["status"] for s in families["autodeploy_searches"].samples} >= {"queued", "running", "optimal"}


async def test_models_and_profiles(client):
    models = (await client.get("/v1/models")).json()["items"]
    assert "deepseek-v3" in {item["name"] for item in models}
    assert (await client.get("/v1/models/deepseek-v3")).json()["model"]["hidden_size"] == 7168
    profiles = (await client.get("/v1/hardware-profiles")).json()["items"]
    assert {"cloudmatrix-384", "ascend-800t-a2"} <= {item["name"] for item in profiles}
    for item in profiles:
        document = (await client.get(f"/v1/hardware-profiles/{item['name']}")).json()
        assert document["name"] == item["name"]


async def test_schemas_accept_what_the_service_accepts(client):
    for name in (await client.get("/v1/schemas")).json()["items"]:
        schema = (await client.get(f"/v1/schemas/{name}")).json()
        Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator((await client.get("/v1/schemas/spec")).json())
    for document in (
        factories.spec_document(),
        factories.spec_document(model="deepseek-v3"),
        factories.spec_document(model={"preset": "deepseek-v3", "num_hidden_layers": 30}),
        factories.spec_document(features={"adaptive_pipe": True, "coc": "off"}),
        factories.spec_document(global_batch_size={"value": 15360, "tolerance_pct": 2}),
    ):
        validator.validate(document)
    assert not validator.is_valid(factories.spec_document(model="deepseek-v33"))
    planset = Draft202012Validator((await client.get("/v1/schemas/planset")).json())
    planset.validate(json.loads(factories.plan_set().model_dump_json()))


async def test_openapi_is_complete(client):
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    operations = [
        operation for path in document["paths"].values() for method, operation in path.items() if method != "parameters"
    ]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids)) >= 20
    assert all(operation["summary"] and operation["description"] for operation in operations)
    text = json.dumps(document)
    assert "HTTPValidationError" not in text
    names = set(document["components"]["schemas"])
    assert {part.rpartition("/")[2] for part in _references(document)} <= names
    body = document["paths"]["/v1/searches"]["post"]["requestBody"]["content"]["application/json"]
    example = body["examples"]["deepseek-v3"]["value"]
    schema = {**document["components"]["schemas"]["SpecDocument"], "components": document["components"]}
    Draft202012Validator(schema).validate(example)


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        here = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return here + [ref for child in value.values() for ref in _references(child)]
    return [ref for child in value for ref in _references(child)] if isinstance(value, list) else []


async def test_every_answer_has_safe_headers(client):
    for url in ("/livez", "/v1/nothing", "/"):
        response = await client.get(url)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["x-request-id"]
