"""POST /v1/why-not, /v1/improve, /v1/recommend and /v1/compare-clusters, and the client's calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autodeploy.search.planner import why_not
from autodeploy.service.runner.planning import PLANNER
from autodeploy.specs.answers import ClusterComparison, ImproveReport, Recommendation, WhyNot
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Strategy
from tests import factories
from tests.integration.conftest import quick_settings, running_app

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SCRIPT = (Path(__file__).parents[1] / "launch_files" / "megatron_dense.sh").read_text()
SPEC: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {
        "effort": "fast",
        "risk": "neutral",
        "top_k": 2,
        "fix": {"micro_batch_size": 1},
        "allow": {"tp": [2, 4], "pp": [1, 2]},
    },
}


async def test_the_api_answers_as_the_library(sqlite_url):
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        planned = (await client.post("/v1/searches", json=SPEC, headers={"Prefer": "wait=60"})).json()
        best = planned["plans"][0]
        illegal = await client.post("/v1/why-not", json={"spec": SPEC, "strategy": {"tp": 3}})
        of_plan = await client.post("/v1/why-not", json={"plan_id": best["plan_id"], "strategy": {"vpp": 3}})
        spec = SPEC | {"strategy": {"tp": 4, "pp": 2, "recompute": {"granularity": "full"}}}
        improved = await client.post("/v1/improve", json={"spec": spec})
        cards = await client.post("/v1/recommend", json={"spec": SPEC, "days": 200, "tokens": 1e12})
    expected = why_not(Spec.model_validate(planned["search"]["spec"]), Strategy(tp=3))
    assert WhyNot.model_validate(illegal.json()) == expected
    assert expected.rule is not None
    assert expected.nearest
    assert WhyNot.model_validate(of_plan.json()).rule is not None
    report = ImproveReport.model_validate(improved.json())
    assert report.improvements
    assert report.improvements[0].gain_pct > 5.0, "full recomputation is too much"
    found = Recommendation.model_validate(cards.json())
    assert found.num_npus is not None
    assert found.plan is not None
    assert found.plan.tokens_per_s * 200 * 86_400 >= 1e12


async def test_clusters_are_compared_by_days_and_cost(sqlite_url):
    clusters = [
        {"profile": "ascend-800t-a2", "price_per_npu_hour": 1.2},
        {"profile": "cloudmatrix-384", "price_per_npu_hour": 2.6},
    ]
    asked = {"spec": SPEC, "days": 200, "tokens": 1e12, "max_npus": 32, "clusters": clusters}
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        answer = await client.post("/v1/compare-clusters", json=asked)
        faults = [
            (await client.post("/v1/compare-clusters", json=asked | {"clusters": changed})).json()
            for changed in (
                [],
                [clusters[0] | {"profile": "/etc/passwd"}],
                [clusters[0], clusters[1] | {"device": "no"}],
            )
        ]
    assert answer.status_code == 200, answer.text
    found = ClusterComparison.model_validate(answer.json())
    assert [each.offer.profile for each in found.clusters] == ["ascend-800t-a2", "cloudmatrix-384"]
    assert found.best is not None
    assert found.best.days <= 200
    assert [fault["errors"][0]["pointer"] for fault in faults] == [
        "/clusters",
        "/clusters/0/profile",
        "/clusters/1/device",
    ]


async def test_the_form_completes_or_changes_the_plan(sqlite_url):
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        planned = (await client.post("/v1/searches", json=SPEC, headers={"Prefer": "wait=60"})).json()
        best = planned["plans"][0]
        axes = {"strategy": "tp=8", "lang": "en"}
        path = f"/plans/{best['plan_id']}/why-not?lang=en"
        anew = (await client.post(path, data=axes | {"others": "best"})).text
        changed = (await client.post(path, data=axes | {"others": "plan"})).text
        search = (await client.get(f"/searches/{planned['search']['id']}?lang=en")).text
    assert '<input type="hidden" name="others" value="best">' in search
    assert "Best strategy with tp=8" in anew
    assert "Completed as TP8 " in anew
    assert '<option value="best" selected>' in anew
    assert "Completed as TP8 " in changed, "what followed from the plan's TP is chosen anew, and told"
    assert '<option value="plan" selected>' in changed


async def test_bad_requests_name_their_fields(sqlite_url):
    spec = factories.spec_document()
    requests: list[tuple[str, dict[str, Any], str]] = [
        ("why-not", {"strategy": {"tp": 2}}, ""),
        ("why-not", {"spec": spec, "strategy": {"tp": 0}}, "/strategy/tp"),
        ("why-not", {"spec": spec, "strategy": {"tq": 2}}, "/strategy/tq"),
        (
            "why-not",
            {"spec": {**spec, "cluster": {"profile": "/etc/passwd"}}, "strategy": {"tp": 2}},
            "/cluster/profile",
        ),
        ("improve", {}, ""),
        ("improve", {"file": SCRIPT, "filename": "a.sh"}, "/cluster/profile"),
        ("recommend", {"spec": spec}, "/days"),
        ("recommend", {"spec": spec, "days": -1}, "/days"),
        ("recommend", {"spec": spec, "days": 1, "max_npus": 0}, "/max_npus"),
    ]
    async with running_app(quick_settings(sqlite_url)) as client:
        for route, document, pointer in requests:
            answer = await client.post(f"/v1/{route}", json=document)
            assert answer.status_code == 422, (route, document, answer.text)
            assert pointer in {error["pointer"] for error in answer.json()["errors"]}, answer.text
        unknown = await client.post("/v1/why-not", json={"plan_id": "p_aaaaaaaa", "strategy": {"tp": 2}})
    assert unknown.status_code == 404


async def test_an_enormous_space_is_refused_before_it_is_looked_at(sqlite_url):
    enormous = {
        "model": "deepseek-v3",
        "cluster": {"profile": "cloudmatrix-384", "num_npus": 55_440},
        "training": {"seq_length": 1_048_576, "global_batch_size": 1_441_440},
    }
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        searched = await client.post("/v1/searches", json=enormous)
        asked = [
            await client.post("/v1/why-not", json={"spec": enormous, "strategy": {"tp": 2}}),
            await client.post("/v1/improve", json={"spec": enormous | {"strategy": {"tp": 2}}}),
            await client.post("/v1/recommend", json={"spec": enormous, "days": 30, "tokens": 1e12}),
        ]
    assert searched.status_code == 422, searched.text
    for answer in asked:
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"] == searched.json()["errors"]


async def test_what_takes_too_long_is_given_up(sqlite_url):
    deep = {**SPEC, "search": {"effort": "deep", "time_limit_s": 3600.0}}
    async with running_app(quick_settings(sqlite_url, call_limit_s=0.2), planner=PLANNER) as client:
        answer = await client.post("/v1/why-not", json={"spec": deep, "strategy": {"tp": 4}})
        alive = await client.get("/livez")
    assert answer.status_code == 503
    assert "longer than" in answer.json()["detail"]
    assert alive.status_code == 200


def test_the_client_asks(sqlite_url) -> None:
    """Paths and documents of the calls; the transport is tested elsewhere."""
    from autodeploy.client import AsyncClient, calls

    for name in ("why_not", "improve", "recommend", "compare_clusters"):
        call = calls.asked(getattr(AsyncClient, name), {"spec": {}})
        assert (call.method, call.path, call.json) == ("POST", f"/v1/{name.replace('_', '-')}", {"spec": {}})
