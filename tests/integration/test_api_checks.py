"""POST /v1/checks and POST /v1/compare, and the client's calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.service.runner.planning import PLANNER
from autodeploy.specs.answers import CheckReport
from autodeploy.specs.plan_details import Comparison
from tests import factories
from tests.integration.conftest import quick_settings, running_app

if TYPE_CHECKING:
    import httpx

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SCRIPT = (Path(__file__).parents[1] / "launch_files" / "megatron_dense.sh").read_text()


async def _planned(client: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    document = factories.spec_document(**changes)
    answer = await client.post("/v1/searches", json=document, headers={"Prefer": "wait=60"})
    return dict(answer.json())


async def test_a_script_is_checked_by_the_real_planner(sqlite_url):
    request = {"file": SCRIPT, "filename": "pretrain.sh", "cluster": "nvidia-h100"}
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        answer = await client.post("/v1/checks", json=request)
        tight = await client.post("/v1/checks", json=request | {"limits": {"max_memory": 0.2}})
    assert answer.status_code == 200, answer.text
    report = CheckReport.model_validate(answer.json())
    assert report.passed
    assert report.source == "launch-script"
    failed = CheckReport.model_validate(tight.json())
    assert not failed.passed
    assert failed.shortage is not None
    assert failed.remedies


async def test_bad_requests_name_their_fields(sqlite_url):
    script = {"file": SCRIPT, "filename": "pretrain.sh"}
    async with running_app(quick_settings(sqlite_url)) as client:
        neither = await client.post("/v1/checks", json={})
        both = await client.post("/v1/checks", json={"spec": {}, "file": "x"})
        no_chip = await client.post("/v1/checks", json=script)
        limit = await client.post("/v1/checks", json=script | {"limits": {"max_memory": 300}})
        broken = await client.post("/v1/checks", json={"file": 'torchrun "', "filename": "a.sh"})
        no_plan = await client.post(
            "/v1/checks",
            json={"spec": factories.spec_document() | {"strategy": {"tp": 2, "pp": 16}}, "baseline": "p_aaaaaaaa"},
        )
        a_file = await client.post("/v1/checks", json=script | {"cluster": "/etc/passwd"})
    assert [r.status_code for r in (neither, both, no_chip, limit, broken, a_file)] == [422] * 6
    assert no_chip.json()["errors"][0]["pointer"] == "/cluster/profile"
    assert limit.json()["errors"][0]["pointer"] == "/limits/max_memory"
    assert "line 1, column" in broken.json()["detail"]
    assert no_plan.status_code == 404


async def test_what_is_no_spec_is_refused_in_one_sentence(sqlite_url):
    zoo = {"MODEL_ARGS": {"--num-layers": 4}}
    async with running_app(quick_settings(sqlite_url)) as client:
        answers = [
            await client.post("/v1/checks", json={"file": "hello: world\n", "filename": "a.yaml"}),
            await client.post("/v1/checks", json={"spec": {"hello": "world"}}),
            await client.post("/v1/checks", json={"spec": zoo, "cluster": "nvidia-h100"}),
            await client.post("/v1/searches", json=zoo),
        ]
    assert [answer.status_code for answer in answers] == [422] * 4
    assert [len(answer.json()["errors"]) for answer in answers] == [1] * 4
    assert [answer.json()["errors"][0]["pointer"] for answer in answers[2:]] == ["/MODEL_ARGS"] * 2


async def test_plans_are_compared(sqlite_url):
    async with running_app(quick_settings(sqlite_url)) as client:
        found = await _planned(client)
        other = await _planned(client, num_npus=96)
        ids = [plan["plan_id"] for plan in found["plans"][:3]]
        answer = await client.post("/v1/compare", json={"plans": ids})
        mixed = await client.post("/v1/compare", json={"plans": [ids[0], other]})
        one = await client.post("/v1/compare", json={"plans": ids[:1]})
        unknown = await client.post("/v1/compare", json={"plans": [ids[0], "p_aaaaaaaa"]})
        check = await client.post(
            "/v1/checks",
            json={"spec": factories.spec_document() | {"strategy": found["plans"][0]["strategy"]}, "baseline": ids[0]},
        )
    comparison = Comparison.model_validate(answer.json())
    assert [plan.plan_id for plan in comparison.plans] == ids
    assert all(len({*row.values}) > 1 for row in comparison.differences)
    assert "cluster.num_npus" in {row["field"] for row in mixed.json()["differences"]}
    assert (one.status_code, unknown.status_code) == (422, 404)
    assert check.json()["baseline"]["plan"]["plan_id"] == ids[0]


async def test_a_launch_that_cannot_start_has_a_report_with_its_rule(sqlite_url):
    script = (Path(__file__).parents[1] / "launch_files" / "mindspeed_sound.sh").read_text()
    broken = script.replace("--expert-model-parallel-size 8", "--expert-model-parallel-size 7")
    chunked = script.replace("--mock-data", "--num-layers-per-virtual-pipeline-stage 3")
    request = {"filename": "pretrain.sh", "cluster": "ascend-800t-a2"}
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        answer = await client.post(
            "/v1/checks", json=request | {"file": broken, "baseline": {"file": script, "filename": "before.sh"}}
        )
        unread = await client.post(
            "/v1/checks", json=request | {"file": chunked, "baseline": {"file": chunked, "filename": "before.sh"}}
        )
        allowed = await client.post(
            "/v1/checks", json=request | {"file": broken, "limits": {"allow_rules": ["experts_divide_by_ep"]}}
        )
        unknown = await client.post(
            "/v1/checks", json=request | {"file": script, "limits": {"allow_rules": ["experts_divide"]}}
        )
        a_file = await client.post(
            "/v1/checks", json={"file": "# autodeploy: cluster=/etc/passwd\n" + chunked, "filename": "a.sh"}
        )
    report = CheckReport.model_validate(answer.json())
    assert {"experts": 96, "ep": 7} in [rule.values for rule in report.broken_rules]
    assert report.changes is not None
    assert report.changes.name == "before.sh"
    assert {each.name for each in report.changes.fields} == {"--expert-model-parallel-size"}
    found = CheckReport.model_validate(unread.json())
    assert found.plan is None
    assert {rule.rule for rule in found.broken_rules} == {"layers_divide_by_chunks"}
    assert "experts_divide_by_ep" in {r["rule"] for r in allowed.json()["broken_rules"] if r["allowed"]}
    assert (unknown.status_code, a_file.status_code) == (422, 422)
    assert "experts_divide_by_ep" in unknown.json()["errors"][0]["hint"]
