"""/v1/searches from end to end: over HTTP, through the database and a pool process, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.messages import Message
from autodeploy.service.session import open_services
from autodeploy.specs.planset import PlanSet
from autodeploy.specs.spec import Spec
from tests import factories
from tests.integration.conftest import QUICK, quick_settings, running_app
from tests.quick_planner import CRASHES, FAILS, INFEASIBLE, SLOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

WAIT = {"Prefer": "wait=60"}
KEY = "Idempotency-Key"


@pytest.fixture
async def client(sqlite_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with running_app(quick_settings(sqlite_url)) as client:
        yield client


def named(behaviour: str, **changes: Any) -> dict[str, Any]:
    """A spec whose model's name tells the quick planner what to do."""
    return factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": behaviour}, **changes)


async def submit(client: httpx.AsyncClient, document: dict[str, Any], **headers: str) -> str:
    response = await client.post("/v1/searches", json=document, headers=headers)
    assert response.status_code == 202, response.text
    return response.json()["search"]["id"]


async def wait_for(client: httpx.AsyncClient, search_id: str) -> dict[str, Any]:
    response = await client.get(f"/v1/searches/{search_id}", headers=WAIT)
    assert response.status_code == 200
    return response.json()


async def test_a_spec_comes_back_as_the_plan_set_of_the_planner(client):
    response = await client.post("/v1/searches", json=factories.spec_document(), headers=WAIT)
    assert response.status_code == 200
    assert response.headers["Preference-Applied"] == "wait"
    found = PlanSet.model_validate(response.json())
    expected = factories.plan_set(5, search_id=found.search.id, created_at=found.search.created_at)
    assert found == factories.cautious(expected)
    again = await client.get(response.headers["Location"])
    assert again.json() == response.json()


async def test_the_command_line_and_the_api_store_the_same(sqlite_url):
    spec = Spec.model_validate(factories.spec_document())
    with open_services(quick_settings(sqlite_url), planner=QUICK) as services:
        planned = services.searches.plan_and_store(spec)
    async with running_app(quick_settings(sqlite_url)) as client:
        stored = await client.get(f"/v1/searches/{planned.search.id}")
        assert stored.json() == planned.model_dump(mode="json")
        posted = await client.post(
            "/v1/searches", json=factories.spec_document(), headers={**WAIT, "Cache-Control": "no-cache"}
        )
    other, search = posted.json(), stored.json()["search"]
    for key in ("id", "created_at"):
        search[key] = other["search"][key]
    assert other == {**stored.json(), "search": search}


async def test_without_waiting_the_answer_is_accepted_with_a_location(client):
    response = await client.post("/v1/searches", json=named(SLOW))
    assert response.status_code == 202
    assert response.json()["status"] in {"queued", "running"}
    search_id = response.json()["search"]["id"]
    assert response.headers["Location"] == f"/v1/searches/{search_id}"
    cancelled = await client.post(f"/v1/searches/{search_id}/cancel")
    assert cancelled.status_code == 202
    assert (await wait_for(client, search_id))["status"] == "cancelled"


async def test_a_running_search_tells_its_progress(client):
    search_id = await submit(client, named(SLOW))
    for _ in range(100):
        body = (await client.get(f"/v1/searches/{search_id}", params={"wait": 0.2})).json()
        if "progress" in body:
            break
    assert body["status"] == "running"
    assert body["progress"]["kind"] in {"enumerated", "incumbent"}
    assert (await client.delete(f"/v1/searches/{search_id}")).status_code == 409
    await client.post(f"/v1/searches/{search_id}/cancel")
    assert "progress" not in await wait_for(client, search_id)


async def test_an_infeasible_spec_is_a_result(client):
    response = await client.post("/v1/searches", json=named(INFEASIBLE), headers=WAIT)
    assert response.status_code == 200
    assert response.json()["status"] == "infeasible"
    assert response.json()["infeasible"]["binding_rules"] == ["memory_fits", "experts_divide_by_ep"]


async def test_a_search_whose_planner_fails_says_so(client):
    body = (await client.post("/v1/searches", json=named(FAILS), headers=WAIT)).json()
    assert body["status"] == "failed"
    assert body["error"] == Message("jobs.bug_ended_this_search", search=body["search"]["id"])
    assert "the planner found a bug" not in body["error"]


async def test_a_crash_of_the_process_is_tried_again_and_then_failed(client):
    body = (await client.post("/v1/searches", json=named(CRASHES), headers=WAIT)).json()
    assert body["status"] == "failed"
    assert body["error"] == "the process that ran this search died (2 attempts)"
    after = await client.post("/v1/searches", json=factories.spec_document(), headers=WAIT)
    assert after.json()["status"] == "optimal"


async def test_an_equal_spec_is_answered_from_the_store(client):
    first = await client.post("/v1/searches", json=factories.spec_document(), headers=WAIT)
    second = await client.post("/v1/searches", json=factories.spec_document())
    assert second.status_code == 200
    body = second.json()
    assert body.pop("cached") is True
    assert body["search"].pop("id") != first.json()["search"]["id"]
    assert body["plans"] == first.json()["plans"]
    assert "cached" not in first.json()


async def test_one_idempotency_key_makes_one_search(client):
    first = await client.post("/v1/searches", json=named(SLOW), headers={KEY: "a"})
    second = await client.post("/v1/searches", json=named(SLOW), headers={KEY: "a"})
    assert first.json()["search"]["id"] == second.json()["search"]["id"]
    other = await client.post("/v1/searches", json=factories.spec_document(), headers={KEY: "a"})
    assert other.status_code == 422
    assert other.json()["errors"][0]["pointer"] == "Idempotency-Key"
    assert len((await client.get("/v1/searches")).json()["items"]) == 1


async def test_the_list_is_paged_and_filtered(client):
    for number in range(5):
        await client.post("/v1/searches", json=named(f"model {number % 2}", top_k=number + 1), headers=WAIT)
    seen: list[str] = []
    url = "/v1/searches?limit=2"
    while url:
        page = (await client.get(url)).json()
        assert page["has_more"] == (page["next"] is not None)
        seen += [item["id"] for item in page["items"]]
        url = page["next"]
    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen, reverse=True)
    odd = (await client.get("/v1/searches", params={"model": "model 1", "status": "optimal"})).json()["items"]
    assert [item["num_plans"] for item in odd] == [4, 2]
    assert odd[0]["best_step_time_s"] == factories.plan(1).step_time_s
    none = await client.get("/v1/searches", params={"created_before": "2020-01-01T00:00:00Z"})
    assert none.json() == {"items": [], "has_more": False, "next": None}


async def test_tags_and_notes(client):
    body = (await client.post("/v1/searches", json=factories.spec_document(), headers=WAIT)).json()
    search_id = body["search"]["id"]
    changed = await client.patch(f"/v1/searches/{search_id}", json={"tags": ["v3", "base"], "note": "first"})
    assert changed.json() == body | {"tags": ["base", "v3"], "note": "first"}
    assert len((await client.get("/v1/searches", params={"tag": "v3"})).json()["items"]) == 1
    assert (await client.get("/v1/searches", params={"tag": "v4"})).json()["items"] == []
    bad = await client.patch(f"/v1/searches/{search_id}", json={"tags": ["", "x" * 65], "colour": 1})
    assert bad.status_code == 422


async def test_a_deleted_search_is_gone_with_its_plans(client):
    body = (await client.post("/v1/searches", json=factories.spec_document(), headers=WAIT)).json()
    search_id, plan_id = body["search"]["id"], body["plans"][0]["plan_id"]
    assert (await client.get(f"/v1/plans/{plan_id}")).status_code == 200
    assert (await client.delete(f"/v1/searches/{search_id}")).status_code == 204
    for url in (f"/v1/searches/{search_id}", f"/v1/plans/{plan_id}", f"/v1/searches/{search_id}/plans"):
        assert (await client.get(url)).status_code == 404


async def test_a_finished_search_has_an_etag(client):
    created = await client.post("/v1/searches", json=factories.spec_document(), headers=WAIT)
    url = created.headers["Location"]
    etag = (await client.get(url)).headers["ETag"]
    same = await client.get(url, headers={"If-None-Match": etag})
    assert (same.status_code, same.content) == (304, b"")
    await client.patch(url, json={"note": "changed"})
    assert (await client.get(url, headers={"If-None-Match": etag})).status_code == 200


async def test_plans_of_a_search(client):
    body = (await client.post("/v1/searches", json=factories.spec_document(), headers=WAIT)).json()
    search_id = body["search"]["id"]
    plans = (await client.get(f"/v1/searches/{search_id}/plans")).json()["items"]
    assert plans == body["plans"]
    one = (await client.get(f"/v1/plans/{plans[1]['plan_id']}")).json()
    assert one == plans[1] | {"search_id": search_id}
    exported = await client.get(f"/v1/plans/{plans[0]['plan_id']}/export", params={"to": "json"})
    assert exported.status_code == 200
    assert exported.headers["content-disposition"].startswith("attachment; filename=")
    assert (await client.get(f"/v1/plans/{plans[0]['plan_id']}/export", params={"to": "word"})).status_code == 422


async def test_an_estimate_predicts_the_given_strategy(client):
    document = factories.spec_document() | {"strategy": {"tp": 4, "pp": 8, "ep": 32}}
    response = await client.post("/v1/estimates", json=document)
    assert response.status_code == 200
    assert response.json()["strategy"]["tp"] == 4
    missing = await client.post("/v1/estimates", json=factories.spec_document())
    assert missing.status_code == 422
    assert missing.json()["errors"][0]["pointer"] == "/strategy"


async def test_a_spec_may_be_yaml(client):
    text = """
    model: deepseek-v3
    cluster: {profile: cloudmatrix-384, num_npus: 384}
    training: {seq_length: 4096, global_batch_size: 15360}
    """
    response = await client.post("/v1/searches", content=text, headers={**WAIT, "Content-Type": "application/yaml"})
    assert response.status_code == 200
