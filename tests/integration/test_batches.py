"""Batches: all searches of a sweep or none, one table of best plans, seen by its team only."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from autodeploy.service.batches import Batches
from autodeploy.service.requests.callers import AccessService
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.retention import prune
from tests import factories
from tests.integration.conftest import quick_settings, running_app
from tests.quick_planner import SLOW

if TYPE_CHECKING:
    import httpx

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


def body(**sweep: Any) -> dict[str, Any]:
    return {"spec": factories.spec_document(), "sweep": sweep}


async def finished(client: httpx.AsyncClient, batch: dict[str, Any], **options: Any) -> dict[str, Any]:
    while batch["status"] != "finished":
        await anyio.sleep(0.05)
        batch = (await client.get(f"/v1/batches/{batch['id']}", **options)).json()
    return batch


async def test_a_sweep_is_a_table_of_best_plans(database_url):
    async with running_app(quick_settings(database_url)) as client:
        asked = body(num_npus=[384, 128, 384], seq_length=[8192, 4096])
        answer = await client.post("/v1/batches", json=asked, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 202
        batch = answer.json()
        assert answer.headers["location"] == f"/v1/batches/{batch['id']}"
        found = await finished(client, batch)
        points = [(item["num_npus"], item["seq_length"]) for item in found["items"]]
        assert points == [(128, 4096), (128, 8192), (384, 4096), (384, 8192)]
        for item in found["items"]:
            plan = (await client.get(f"/v1/plans/{item['best_plan_id']}")).json()
            search = (await client.get(f"/v1/searches/{item['search_id']}")).json()
            assert item["best_plan_id"] == search["plans"][0]["plan_id"]
            assert search["search"]["spec"]["cluster"]["num_npus"] == item["num_npus"]
            assert item["best_step_time_s"] == plan["step_time_s"]
            assert (item["tp"], item["pp"]) == (plan["strategy"]["tp"], plan["strategy"]["pp"])
        assert found["sweep"] == {"num_npus": [384, 128, 384], "seq_length": [8192, 4096]}

        again = await client.post("/v1/batches", json=asked, headers={"Idempotency-Key": "k"})
        assert again.json()["id"] == batch["id"]
        other = await client.post("/v1/batches", json=body(num_npus=[128]), headers={"Idempotency-Key": "k"})
        assert other.status_code == 422
        assert (await client.get("/v1/searches")).json()["items"][0]["id"] in {i["search_id"] for i in found["items"]}
        assert len((await client.get("/v1/searches")).json()["items"]) == 4


@pytest.mark.parametrize(
    ("asked", "pointers"),
    [
        (body(), {"/sweep"}),
        (body(num_npus=[]), {"/sweep/num_npus"}),
        (body(num_npus=list(range(1, 18)), seq_length=[1024, 2048, 4096]), {"/sweep"}),
        (body(num_npus=[128, 0]), {"/sweep/num_npus/1"}),
        (body(cards=[128]), {"/sweep/cards"}),
        ({"sweep": {"num_npus": [128]}}, {"/spec"}),
        (
            {"spec": {"model": "nothing"}, "sweep": {"num_npus": [128]}},
            {"/spec/model", "/spec/training", "/spec/cluster"},
        ),
        (
            {
                "spec": factories.spec_document() | {"cluster": {"profile": "cloudmatrix-384", "spare_npus": 200}},
                "sweep": {"num_npus": [384, 128]},
            },
            {"/spec/cluster"},
        ),
    ],
)
async def test_a_mistake_anywhere_queues_nothing_and_names_its_place(sqlite_url, asked, pointers):
    async with running_app(quick_settings(sqlite_url)) as client:
        answer = await client.post("/v1/batches", json=asked)
        assert answer.status_code == 422, answer.text
        assert {error["pointer"] for error in answer.json()["errors"]} == pointers
        assert (await client.get("/v1/searches")).json()["items"] == []


async def test_all_or_none_within_the_keys_limit_and_one_cancel_for_all(database, database_url):
    access = AccessService(database)
    keys = {team: access.create(team, "write", team=team, max_searches=3)[0] for team in ("red", "blue")}
    headers = {team: {"Authorization": f"Bearer {key}"} for team, key in keys.items()}
    slow = {"spec": factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": SLOW})}
    async with running_app(quick_settings(database_url, auth="keys")) as client:
        four = slow | {"sweep": {"num_npus": [64, 128, 256, 384]}}
        refused = await client.post("/v1/batches", json=four, headers=headers["red"])
        assert refused.status_code == 429
        assert (await client.get("/v1/searches", headers=headers["red"])).json()["items"] == []

        three = slow | {"sweep": {"num_npus": [64, 128, 256]}}
        batch = (await client.post("/v1/batches", json=three, headers=headers["red"])).json()
        assert (batch["author"], batch["status"], len(batch["items"])) == ("red", "running", 3)
        address = f"/v1/batches/{batch['id']}"
        assert (await client.get(address, headers=headers["blue"])).status_code == 404
        assert (await client.post(f"{address}/cancel", headers=headers["blue"])).status_code == 404
        assert (await client.post(f"{address}/cancel", headers=headers["red"])).status_code == 202
        found = await finished(client, batch, headers=headers["red"])
        assert {item["status"] for item in found["items"]} == {"cancelled"}
        assert all(item["best_plan_id"] is None for item in found["items"])
        assert (await client.post(f"{address}/cancel", headers=headers["red"])).status_code == 202
        assert (await client.get("/v1/batches/bat_0", headers=headers["red"])).status_code == 404


async def test_a_batch_goes_when_its_searches_are_gone(database, database_url):
    async with running_app(quick_settings(database_url)) as client:
        batches = [
            await finished(client, (await client.post("/v1/batches", json=body(num_npus=npus))).json())
            for npus in ([64, 128], [256])
        ]
        await client.patch(f"/v1/searches/{batches[1]['items'][0]['search_id']}", json={"tags": ["kept"]})
        assert prune(database, before=utc_now() + timedelta(seconds=1), keep_tagged=True) == 2
    with database.read() as session:
        assert [Batches(session).get(batch["id"]) is not None for batch in batches] == [False, True]
