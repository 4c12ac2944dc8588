"""What servers and workers tell Prometheus, and that the examples name nothing else."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.http.metrics import serving_health
from autodeploy.service.session import open_services
from autodeploy.service.store.database import Database
from tests import factories
from tests.integration.conftest import QUICK, eventually, named, quick_settings, running_app, status_is
from tests.quick_planner import CRASHES, FAILS

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.integration

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"
# Prometheus itself makes this one.
OF_PROMETHEUS = {"up"}
NAME = re.compile(r"\b(?:autodeploy|process)_[a-z0-9_]+\b|\bup\b")


def values(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def asked(client: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    return values((await client.get("/metrics")).text)


@pytest.mark.anyio
async def test_a_server_tells_of_searches_workers_calls_and_memory(sqlite_url):
    async with running_app(quick_settings(sqlite_url)) as client:
        for name in ("quick", FAILS, CRASHES):
            document = factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": name})
            assert (await client.post("/v1/searches?wait=60", json=document)).status_code == 200
        estimate = factories.spec_document(model="deepseek-v3", strategy={"tp": 8, "pp": 4})
        await client.post("/v1/estimates", json=estimate)
        found = await asked(client)
    assert found["autodeploy_search_duration_seconds_count", "optimal"] == 1
    assert found["autodeploy_search_duration_seconds_count", "failed"] == 1  # the one that died never came back
    assert found["autodeploy_search_process_deaths_total",] == 2  # it was tried twice
    assert found["autodeploy_workers_live",] == 1
    assert found["autodeploy_workers_slots", "free"] + found["autodeploy_workers_slots", "busy"] == 1
    assert found["autodeploy_queue_age_seconds",] == 0
    assert found["autodeploy_database_up",] == 1
    assert found["autodeploy_writes_refused",] == 0
    assert found["autodeploy_call_processes",] == 1
    assert found["autodeploy_calls", "running"] == found["autodeploy_calls", "waiting"] == 0
    assert found["process_open_fds",] > 3
    assert found["autodeploy_tree_resident_memory_bytes",] >= found["process_resident_memory_bytes",] > 10_000_000


@pytest.mark.anyio
async def test_the_oldest_that_waits_has_an_age(sqlite_url):
    Database(sqlite_url).close()
    async with running_app(quick_settings(sqlite_url, jobs="embedded")) as client:
        services = client._transport.app.state.services  # type: ignore[attr-defined]
        services.runner.stop()
        await client.post("/v1/searches", json=factories.spec_document(model="deepseek-v3"))
        first = (await asked(client))["autodeploy_queue_age_seconds",]
        second = (await asked(client))["autodeploy_queue_age_seconds",]
        assert 0 < first < second < 60
        assert (await asked(client))["autodeploy_workers_live",] == 0


@pytest.mark.anyio
async def test_a_database_that_is_away_is_told(sqlite_url, monkeypatch):
    async with running_app(quick_settings(sqlite_url)) as client:
        services = client._transport.app.state.services  # type: ignore[attr-defined]

        def away() -> dict[str, int]:
            raise TimeoutError("no connection")

        monkeypatch.setattr("api.http.metrics.DATABASE_ERRORS", (TimeoutError,))
        monkeypatch.setattr(type(services.searches), "count_by_status", lambda _: away())
        found = await asked(client)
    assert found["autodeploy_database_up",] == 0
    assert ("autodeploy_workers_live",) not in found
    assert found["process_open_fds",] > 3


@pytest.mark.anyio
async def test_refused_requests_count_under_their_route(sqlite_url):
    async with running_app(quick_settings(sqlite_url, auth="keys")) as client:
        services = client._transport.app.state.services  # type: ignore[attr-defined]
        await client.get("/v1/searches/srch_unknown0")
        await client.post("/v1/searches", json={})
        await client.get("/no/such/page", headers={"Accept": "application/json"})
        key, _ = services.access.create("reads", "read")
        headers = {"Authorization": f"Bearer {key}"}
        await client.post("/v1/searches", json={}, headers=headers)
        found = values((await client.get("/metrics", headers=headers)).text)
    counted = {key[1:]: value for key, value in found.items() if key[0] == "autodeploy_http_requests_total"}
    assert counted["GET", "/v1/searches/{search_id}", "401"] == 1
    assert counted["POST", "/v1/searches", "401"] == 1
    assert counted["POST", "/v1/searches", "403"] == 1
    assert counted["GET", "unmatched", "401"] == 1


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_worker_tells_at_its_own_port(migrated_postgres_dsn, monkeypatch):
    settings = quick_settings(migrated_postgres_dsn, jobs="procrastinate", worker_port=0)
    with (
        open_services(settings, as_worker=True, planner=QUICK) as services,
        serving_health(services) as port,
    ):
        assert port is not None
        search_id = services.searches.submit(named("counted")).search.id
        eventually(status_is(services, search_id, "optimal"))
        eventually(lambda: ("autodeploy_search_duration_seconds_count", "optimal") in values(get(port, "/metrics")[1]))
        found = values(get(port, "/metrics")[1])
        assert found["autodeploy_slots",] == 1
        assert found["autodeploy_poll_age_seconds",] < 30
        assert get(port, "/livez")[0] == 200
        assert get(port, "/elsewhere")[0] == 404
        assert services.runner is not None
        monkeypatch.setattr(services.runner.presence, "_alive_s", -1.0)
        assert get(port, "/livez")[0] == 503


@pytest.fixture
def known_names(sqlite_url) -> set[str]:
    """Names of every sample that a server or a worker has."""
    from starlette.testclient import TestClient

    from api.app import create_app

    with TestClient(create_app(quick_settings(sqlite_url), planner=QUICK)) as client:
        spec = factories.spec_document(model="deepseek-v3")
        assert client.post("/v1/searches?wait=60", json=spec).status_code == 200

        def names() -> set[str]:
            return {name for name, *_ in values(client.get("/metrics").text)}

        # A search is counted after the moment at which its end is seen.
        eventually(lambda: "autodeploy_search_duration_seconds_count" in names())
        return names() | OF_PROMETHEUS


def test_alert_rules_name_metrics_that_exist(known_names):
    document = yaml.safe_load((DEPLOY / "prometheus_alerts.yml").read_text(encoding="utf-8"))
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description"} <= set(rule["annotations"])
        named_here = set(NAME.findall(rule["expr"]))
        assert named_here, rule["alert"]
        assert named_here <= known_names, rule["alert"]


def test_the_dashboard_names_metrics_that_exist(known_names):
    dashboard = json.loads((DEPLOY / "grafana_dashboard.json").read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            named_here = set(NAME.findall(target["expr"]))
            assert named_here, panel["title"]
            assert named_here <= known_names, panel["title"]
