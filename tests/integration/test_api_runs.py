"""The ledger over HTTP on both databases: a run gives its cluster an overlay, and later searches follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.kit.errors import OverloadError
from autodeploy.service import session
from autodeploy.service.runner.call_pool import CallPool
from autodeploy.service.session import open_services
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.spec import Spec
from tests import factories
from tests.integration.conftest import QUICK, quick_settings, running_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx

    from autodeploy.service.session import Services

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

WAIT = {"Prefer": "wait=60"}
TEXT = {"Content-Type": "text/plain"}


class KeptCalls(CallPool):
    """Its processes outlive the app."""

    def close(self) -> None:
        """Not yet."""


@pytest.fixture(scope="module", autouse=True)
def kept_calls() -> Iterator[None]:
    """Every app of this module asks the same processes: they know no database."""
    calls = KeptCalls(quick_settings("sqlite:///unused.db"), QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "CallPool", lambda *_: calls)
        yield
    CallPool.close(calls)


@pytest.fixture
async def client(database_url: str, database: object) -> AsyncIterator[httpx.AsyncClient]:
    async with running_app(quick_settings(database_url)) as client:
        yield client


@pytest.fixture
def here(database_url: str, database: object) -> Iterator[Services]:
    """Services on the same database that plan in this process."""
    with open_services(quick_settings(database_url), planner=QUICK) as services:
        yield services


def document(**cluster: Any) -> dict[str, Any]:
    found = factories.spec_document()
    found["cluster"] |= cluster
    return found


def planned(here: Services, **cluster: Any) -> dict[str, Any]:
    """A finished search as JSON."""
    return here.searches.plan_and_store(Spec.model_validate(document(**cluster))).model_dump(mode="json")


def steps_csv(step_s: float) -> str:
    return "step,step_time_s\n" + "".join(f"{n},{step_s * (2 if n == 1 else 1)}\n" for n in range(1, 6))


async def test_one_run_calibrates_its_cluster_and_reranks_its_plans(client: httpx.AsyncClient, here: Services) -> None:
    search = planned(here)
    best = search["plans"][0]
    measured_s = 1.3 * best["step_time_s"]
    response = await client.post(f"/v1/plans/{best['plan_id']}/runs", content=steps_csv(measured_s), headers=TEXT)
    assert response.status_code == 201, response.text
    found = response.json()
    run = found["run"]
    assert response.headers["Location"] == f"/v1/runs/{run['id']}"
    assert (run["cluster"], run["measured"]["source"]) == ("cloudmatrix-384", "step_times")
    assert run["measured_step_time_s"] == pytest.approx(measured_s)
    assert run["error"] == pytest.approx(0.3)
    assert run["inside"] is False
    report = found["cluster"]["report"]
    assert report["bias_before"] == pytest.approx(0.3, rel=1e-4)
    assert abs(report["bias_after"]) < 0.15
    # The quick planner slows the best plan more than the others, so the order turns.
    order = [(p["old_rank"], p["new_rank"]) for p in found["reranked"]]
    assert sorted(new for _, new in order) == [1, 2, 3, 4, 5]
    assert dict(order)[1] > 1
    assert all(p["new_step_time_s"] > p["old_step_time_s"] for p in found["reranked"])

    stale = (await client.get(f"/v1/searches/{search['search']['id']}")).json()
    assert stale["stale"] is True
    assert (await client.get(f"/v1/plans/{best['plan_id']}")).json()["stale"] is True
    assert [item["stale"] for item in (await client.get("/v1/searches")).json()["items"]] == [True]


async def test_later_searches_start_from_the_overlay_unless_told_otherwise(
    client: httpx.AsyncClient, here: Services
) -> None:
    before = planned(here)
    plan = before["plans"][0]
    body = {"step_time_s": 1.2 * plan["step_time_s"], "peak_memory_gib": 50.0}
    assert (await client.post(f"/v1/plans/{plan['plan_id']}/runs", json=body)).status_code == 201
    after = planned(here)
    cluster = (await client.get("/v1/clusters")).json()["items"][0]
    assert after["search"]["spec"]["cluster"]["overlay"] == cluster["overlay"]
    assert after["search"]["spec_hash"] != before["search"]["spec_hash"]
    assert after["search"]["profile_hash"] != before["search"]["profile_hash"]
    assert "stale" not in (await client.get(f"/v1/searches/{after['search']['id']}")).json()
    again = await client.post("/v1/searches", json=document(), headers=WAIT)
    assert again.json()["cached"] is True
    plain = planned(here, overlay="none")
    assert plain["search"]["profile_hash"] == before["search"]["profile_hash"]
    kept = (await client.get(f"/v1/searches/{plain['search']['id']}")).json()
    assert "stale" not in kept, "it never followed the ledger"
    other = planned(here, name="hall-2")
    assert other["search"]["spec"]["cluster"]["overlay"] == "auto"


async def test_the_same_measurement_is_one_run(client: httpx.AsyncClient, here: Services) -> None:
    plan = planned(here, name="hall-1")["plans"][0]
    address = f"/v1/plans/{plan['plan_id']}/runs"
    first = await client.post(address, content=steps_csv(140.0), headers=TEXT)
    second = await client.post(address, json={"file": steps_csv(140.0)})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["run"]["id"] == second.json()["run"]["id"]
    other = await client.post(address, content=steps_csv(141.0), headers=TEXT)
    assert other.json()["cluster"]["num_runs"] == 2
    listed = (await client.get(address)).json()["items"]
    assert [item["id"] for item in listed] == [other.json()["run"]["id"], first.json()["run"]["id"]]
    page = (await client.get("/v1/runs", params={"cluster": "hall-1", "limit": 1})).json()
    assert page["has_more"]
    rest = (await client.get(page["next"])).json()
    assert [page["items"][0]["id"], rest["items"][0]["id"]] == [item["id"] for item in listed]
    assert (await client.get("/v1/runs", params={"cluster": "nowhere"})).json()["items"] == []


async def test_the_last_run_takes_the_overlay_with_it(client: httpx.AsyncClient, here: Services) -> None:
    search = planned(here)
    plan = search["plans"][0]
    made = await client.post(f"/v1/plans/{plan['plan_id']}/runs", json={"step_time_s": 150.0})
    run_id = made.json()["run"]["id"]
    assert (await client.get(f"/v1/runs/{run_id}")).json()["measured"]["original"] == {"step_time_s": 150.0}
    assert (await client.delete(f"/v1/runs/{run_id}")).status_code == 204
    assert (await client.get("/v1/clusters")).json() == {"items": []}
    assert "stale" not in (await client.get(f"/v1/searches/{search['search']['id']}")).json()
    assert (await client.delete(f"/v1/runs/{run_id}")).status_code == 404
    assert (await client.get(f"/v1/runs/{run_id}")).status_code == 404


async def test_a_run_outlives_the_search_of_its_plan(client: httpx.AsyncClient, here: Services) -> None:
    search = planned(here)
    plan = search["plans"][0]
    await client.post(f"/v1/plans/{plan['plan_id']}/runs", json={"step_time_s": 150.0})
    assert (await client.delete(f"/v1/searches/{search['search']['id']}")).status_code == 204
    (kept,) = (await client.get("/v1/runs")).json()["items"]
    assert kept["plan_id"] == plan["plan_id"]
    assert (await client.get("/v1/clusters")).json()["items"][0]["num_runs"] == 1


async def test_the_profiler_stands_beside_our_parts(client: httpx.AsyncClient, here: Services) -> None:
    plan = planned(here)["plans"][0]
    trace = "Device_id,Step,Computing,Communication(Not Overlapped),Free,Bubble\n0,1,90e6,40e6,5e6,12e6\n"
    made = await client.post(f"/v1/plans/{plan['plan_id']}/runs", content=trace, headers=TEXT)
    parts = {part["name"]: part for part in made.json()["run"]["profiler_parts"]}
    assert list(parts) == ["computing", "communication", "bubble", "free"]
    assert [parts[name]["measured_s"] for name in parts] == pytest.approx([90.0, 28.0, 12.0, 5.0])
    assert sum(part["predicted_s"] for part in parts.values()) == pytest.approx(plan["step_time_s"])


async def test_benchmarks_become_measured_numbers_of_the_cluster(client: httpx.AsyncClient, here: Services) -> None:
    plan = planned(here)["plans"][0]
    address = f"/v1/plans/{plan['plan_id']}/runs"
    table = "bytes,algbw\n67108864,80\n536870912,90\n"
    assert (await client.post(address, content=table, headers=TEXT)).status_code == 422
    made = await client.post(f"{address}?op=all_reduce&ranks=16", content=table, headers=TEXT)
    overlay = made.json()["cluster"]["overlay"]
    assert made.json()["run"]["measured_step_time_s"] is None
    assert overlay["ub"]["efficiency"]["kind"] == "measured"
    assert overlay["ub"]["efficiency"]["measured_over"]["bytes"] == [67108864.0, 536870912.0]
    timed = (await client.post(address, json={"step_time_s": 150.0})).json()["cluster"]["overlay"]
    assert timed["ub"] == overlay["ub"], "a run does not move what a benchmark measured"
    assert timed["efficiency"]["gemm_peak_fraction"]["kind"] == "fitted"


REFUSED: list[tuple[Any, str]] = [
    ({}, ""),
    ({"step_time_s": -1}, "/step_time_s"),
    ({"step_time": 3}, "/step_time"),
    ({"step_time_s": 150_000}, "/step_time_s"),
    ({"step_time_s": 150, "strategy": {"tp": 4, "pp": 16}}, "/strategy/tp"),
    ({"step_time_s": 150, "strategy": {"colour": 4}}, "/strategy/colour"),
    ({"file": "step_time_s\n1\nx\n"}, "/3"),
    ({"file": "step_time_s,tp\n150,2\n151,4\n"}, ""),
    ({"file": 3}, "/file"),
    ({"file": "step_time_s\n150\n", "colour": 1}, "/colour"),
    ([], ""),
]


async def test_what_contradicts_the_plan_is_refused(client: httpx.AsyncClient, here: Services) -> None:
    plan = planned(here)["plans"][0]
    for body, pointer in REFUSED:
        response = await client.post(f"/v1/plans/{plan['plan_id']}/runs", json=body)
        assert response.status_code == 422, response.text
        problem = response.json()
        assert pointer in {error["pointer"] for error in problem["errors"]}, problem
    assert (await client.get("/v1/runs")).json()["items"] == []


async def test_bodies_that_are_no_measurement(client: httpx.AsyncClient, here: Services) -> None:
    plan = planned(here)["plans"][0]
    address = f"/v1/plans/{plan['plan_id']}/runs"
    assert (await client.post(address, content=b"\xff", headers=TEXT)).status_code == 400
    assert (await client.post(address, content=b"x", headers={"Content-Type": "image/png"})).status_code == 415
    assert (await client.post(f"{address}?ranks=-1", content=steps_csv(1.0), headers=TEXT)).status_code == 422
    assert (await client.post("/v1/plans/p_nothere/runs", json={"step_time_s": 1.0})).status_code == 404


def test_the_services_refit_when_runs_come_from_two_processes(database_url: str, database: object) -> None:
    settings = quick_settings(database_url)
    with (
        open_services(settings, planner=QUICK) as one,
        open_services(settings, planner=QUICK) as other,
    ):
        plan = one.searches.plan_and_store(factories.spec()).plans[0]
        one.runs.add(plan.plan_id, MeasuredRun(step_time_s=1.10 * plan.step_time_s))
        outcome = other.runs.add(plan.plan_id, MeasuredRun(step_time_s=1.12 * plan.step_time_s))
        assert outcome.cluster is not None
        assert outcome.cluster.num_runs == 2
        assert one.runs.clusters() == other.runs.clusters()
        assert outcome.cluster.report["mape_left_out"] is None, "one configuration can't be left out of itself"


async def test_a_fit_that_was_not_done_is_done_when_the_measurement_is_sent_again(
    database_url: str, here: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fit runs in another process, which may die or take too long; the measurement is stored by then."""
    plan = planned(here)["plans"][0]
    address, body = f"/v1/plans/{plan['plan_id']}/runs", {"step_time_s": 1.2 * plan["step_time_s"]}

    def die(*_arguments: object) -> None:
        raise OverloadError("the process of this prediction died")

    async with running_app(quick_settings(database_url)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(CallPool, "call", die)
            refused = await client.post(address, json=body)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
        (stored,) = (await client.get(address)).json()["items"]
        assert (await client.get("/v1/clusters")).json()["items"] == []
        again = await client.post(address, json=body)
        assert (again.status_code, again.json()["run"]["id"]) == (200, stored["id"])
        assert again.json()["cluster"]["num_runs"] == 1
        assert len(again.json()["reranked"]) == 5
        with monkeypatch.context() as patch:
            patch.setattr(CallPool, "call", die)
            assert (await client.delete(f"/v1/runs/{stored['id']}")).status_code == 503
        assert (await client.get(f"/v1/runs/{stored['id']}")).status_code == 200, "all of it or nothing"
        assert (await client.delete(f"/v1/runs/{stored['id']}")).status_code == 204
        assert (await client.get("/v1/clusters")).json()["items"] == []
