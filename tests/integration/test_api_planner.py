"""The real planner behind the API: what is served and stored is what the library answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.search.planner import estimate as estimate_of
from autodeploy.search.planner import plan
from autodeploy.service.runner.planning import PLANNER
from autodeploy.specs.planset import Plan, PlanSet, Timing
from autodeploy.specs.reading import read_spec_document
from tests.integration.conftest import quick_settings, running_app

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SPEC: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {"effort": 0.05, "top_k": 3, "fix": {"tp": 2, "pp": 2, "vpp": 1, "micro_batch_size": 1}},
}
RL: dict[str, Any] = {
    "prompts_per_step": 16,
    "responses_per_prompt": 4,
    "prompt_length": {"max": 256},
    "response_length": {"mean": 512, "max": 2048},
}


async def test_the_api_answers_as_the_library(sqlite_url):
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        response = await client.post("/v1/searches", json=SPEC, headers={"Prefer": "wait=60"})
        assert response.status_code == 200, response.text
        served = PlanSet.model_validate(response.json())
        plan_id = served.plans[0].plan_id
        exported = await client.get(f"/v1/plans/{plan_id}/export", params={"to": "megatron"})
        script = await client.get(f"/v1/plans/{plan_id}/export", params={"to": "mindspeed-llm"})
        trace = await client.get(f"/v1/plans/{plan_id}/export", params={"to": "chrome-trace"})
        strategy = served.plans[0].strategy.model_dump(mode="json", exclude_defaults=True)
        estimate = await client.post("/v1/estimates", json={**SPEC, "strategy": strategy})
    planned = plan(read_spec_document(SPEC), search_id=served.search.id, created_at=served.search.created_at)
    no_time = {"timing": Timing()}
    assert served.model_copy(update=no_time) == planned.model_copy(update=no_time)
    assert served.status in {"optimal", "feasible"}
    assert plan_id in exported.text
    read_back = estimate_of(import_document(script.text).spec())
    assert read_back.step_time_s == pytest.approx(served.plans[0].step_time_s, rel=1e-12)
    assert read_back.peak_memory_gib == pytest.approx(served.plans[0].peak_memory_gib, rel=1e-12)
    assert_trace_is_of(trace.json(), served.plans[0])
    assert estimate.status_code == 200
    assert estimate.json()["step_time_s"] > 0


async def test_a_plan_is_rehearsed_on_fewer_nodes(sqlite_url):
    spec = {**SPEC, "cluster": {"profile": "ascend-800t-a2", "num_npus": 32}}
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        response = await client.post("/v1/searches", json=spec, headers={"Prefer": "wait=60"})
        plan_id = PlanSet.model_validate(response.json()).plans[0].plan_id
        asked = {"to": "mindspeed-llm", "rehearse": "1node"}
        script = await client.get(f"/v1/plans/{plan_id}/export", params=asked)
        page = await client.get(f"/plans/{plan_id}")
        larger = await client.get(f"/v1/plans/{plan_id}/export", params={**asked, "rehearse": "4nodes"})
        unknown = await client.get(f"/v1/plans/{plan_id}/export", params={**asked, "rehearse": "3racks"})
        commissioning = await client.get(f"/v1/plans/{plan_id}/commissioning")
        shown = await client.get(f"/plans/{plan_id}/commissioning")
    (launch,) = commissioning.json()["launches"]
    assert (launch["name"], launch["num_npus"]) == ("1node", 8)
    assert launch["low_s"] < launch["step_time_s"] < launch["stop_above_s"]
    assert shown.status_code == 200
    assert f'rehearse={launch["name"]}"' in shown.text
    assert f"/plans/{plan_id}/commissioning" in page.text
    assert script.status_code == 200
    assert f"# rehearsal of plan {plan_id} on 8 of its 32 cards" in script.text
    assert "_rehearsal_1node.sh" in script.headers["content-disposition"]
    assert estimate_of(import_document(script.text).spec()).num_npus_used == 8
    assert "rehearse=1node" in page.text
    assert "rehearse=4nodes" not in page.text
    assert larger.status_code == unknown.status_code == 422
    assert larger.json()["errors"][0]["pointer"] == "/rehearse"


async def test_a_rehearsal_that_ran_moves_its_plan(sqlite_url):
    """The rehearsal took a third longer than predicted: so will the plan, by the factors that the fit names."""
    spec = {**SPEC, "cluster": {"profile": "ascend-800t-a2", "num_npus": 32, "name": "hall-2"}}
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        response = await client.post("/v1/searches", json=spec, headers={"Prefer": "wait=60"})
        plan = PlanSet.model_validate(response.json()).plans[0]
        asked = {"to": "json", "rehearse": "1node"}
        exported = await client.get(f"/v1/plans/{plan.plan_id}/export", params=asked)
        rehearsal = PlanSet.model_validate(exported.json()).plans[0]
        body = {"step_time_s": 1.33 * rehearsal.step_time_s}
        address = f"/v1/plans/{plan.plan_id}/runs"
        added = await client.post(address, json=body, params={"rehearse": "1node"})
        again = await client.post(address, json=body, params={"rehearse": "1node"})
        listed = await client.get(address)
    assert added.status_code == 201, added.text
    assert again.status_code == 200
    outcome = added.json()
    run, moved = outcome["run"], outcome["moved"]
    assert run["num_npus"] == 8
    assert run["predicted_step_time_s"] == pytest.approx(rehearsal.step_time_s)
    assert run["error"] == pytest.approx(0.33)
    assert moved["plan_id"] == plan.plan_id
    assert moved["old_step_time_s"] == pytest.approx(plan.step_time_s)
    assert 1.2 < moved["step_time_s"] / plan.step_time_s < 1.35
    assert moved["low_s"] > plan.step_time_s
    assert sum(moved["moved_by"].values()) == pytest.approx(math.log(moved["step_time_s"] / plan.step_time_s), rel=0.25)
    sizes = [abs(change) for change in moved["moved_by"].values()]
    assert "is now predicted at" in outcome["told"]
    assert sizes == sorted(sizes, reverse=True)
    assert [each["num_npus"] for each in listed.json()["items"]] == [8]


async def test_post_training_is_planned_and_pages_are_there(sqlite_url):
    training = {"kind": "rl_post_training", "rl": RL}
    quick = {"effort": 0.02, "risk": "neutral", "top_k": 1, "fix": {"cp": 1, "vpp": 1, "schedule": "1f1b"}}
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        response = await client.post(
            "/v1/searches", json={**SPEC, "training": training, "search": quick}, headers={"Prefer": "wait=60"}
        )
        pages = [await client.get(url) for url in ("/", "/new", "/profiles", "/searches/srch_none")]
    body = response.json()
    assert response.status_code == 200
    assert body["error"] is None
    assert all(plan["rl"]["phases"] for plan in body["plans"])
    assert body["plans"]
    assert [page.status_code for page in pages] == [200, 200, 200, 404]
    assert all(page.headers["content-type"].startswith("text/html") for page in pages)


def assert_trace_is_of(trace: dict[str, Any], plan: Plan) -> None:
    """Every stage computes each micro batch once each way, and the step is as long as the plan says."""
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = [event["name"] for event in spans if event["pid"] == 0 and event["tid"] == 0]
    assert sorted(names) == sorted(f"{way}{n}.0" for way in "FB" for n in range(plan.micro_batches))
    assert {event["pid"] for event in spans} == set(range(plan.strategy.pp))
    end_s = max(event["ts"] + event["dur"] for event in spans) / 1e6
    assert end_s == pytest.approx(plan.step_time_s, rel=1e-9)


async def test_the_strategy_in_a_spec_is_exported_and_an_illegal_one_is_told(sqlite_url):
    given = {**SPEC, "strategy": {"tp": 2, "pp": 2}}
    illegal = {**given, "training": {"seq_length": 4096, "global_batch_size": 63}}
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        written = await client.post("/v1/exports", params={"to": "mindspeed-llm"}, json=given)
        refused = await client.post("/v1/exports", params={"to": "mindspeed-llm"}, json=illegal)
        told = await client.post("/v1/estimates", json=illegal)
        none = await client.post("/v1/exports", params={"to": "mindspeed-llm"}, json=SPEC)
    assert written.status_code == 200, written.text
    assert written.text.startswith("#!/usr/bin/env bash")
    assert "attachment" in written.headers["Content-Disposition"]
    assert refused.status_code == 422
    assert "batch_divides" in refused.text
    assert told.status_code == 200
    assert [rule["rule"] for rule in told.json()["broken_rules"]] == ["batch_divides"]
    assert none.json()["errors"][0]["pointer"] == "/strategy"
