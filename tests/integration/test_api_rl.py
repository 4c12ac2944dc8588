"""Reinforcement learning behind the API: searched, estimated, shown, exported; what is not modelled is refused."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.service.runner.planning import PLANNER
from autodeploy.specs.planset import PlanSet
from tests.integration.conftest import quick_settings, running_app

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SPEC: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
    "training": {
        "kind": "rl_post_training",
        "rl": {
            "prompts_per_step": 64,
            "responses_per_prompt": 8,
            "prompt_length": {"max": 256},
            "response_length": {"mean": 512, "max": 2048},
        },
    },
    "search": {
        "effort": 0.02,
        "risk": "neutral",
        "top_k": 2,
        "fix": {"tp": 1, "pp": 2, "cp": 1, "vpp": 1, "schedule": "1f1b", "rl.generation.mode": "graph"},
    },
}


async def test_a_search_is_planned_shown_and_exported(sqlite_url):
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        response = await client.post("/v1/searches", json=SPEC, headers={"Prefer": "wait=60"})
        assert response.status_code == 200, response.text
        found = PlanSet.model_validate(response.json())
        assert found.status in {"optimal", "feasible"}, found.error
        first = found.plans[0]
        assert first.rl is not None
        strategy = first.strategy.model_dump(mode="json", exclude_none=True)
        estimate = await client.post("/v1/estimates", json={**SPEC, "strategy": strategy})
        assert estimate.status_code == 200, estimate.text[:600]
        assert estimate.json()["step_time_s"] == pytest.approx(first.step_time_s, rel=1e-9)
        for lang, words in (("en", "Generation and training"), ("zh", "生成与训练")):
            listed = await client.get(f"/searches/{found.search.id}", params={"lang": lang})
            assert (
                f"TP{first.strategy.rl.generation.tp}"
                in listed.text.split('help">' + ("generation: " if lang == "en" else "生成："))[1].split("<")[0]
            )
            for page in (f"/searches/{found.search.id}", f"/plans/{first.plan_id}"):
                shown = await client.get(page, params={"lang": lang})
                assert shown.status_code == 200, shown.text[:500]
                assert words in shown.text
                assert "chart-phases" in shown.text
                assert "chart-batch" in shown.text
        launch = await client.get(f"/v1/plans/{first.plan_id}/export", params={"to": "verl"})
        assert launch.status_code == 200, launch.text[:500]
        asked = {"spec": SPEC, "strategy": strategy}
        taken_apart = await client.post("/v1/ablations", json={**SPEC, "strategy": strategy})
        assert taken_apart.status_code == 200, taken_apart.text[:500]
        assert "graph_mode" in {row["feature"] for row in taken_apart.json()["rows"]}
        shown = await client.post(f"/plans/{first.plan_id}/ablation")
        assert "graph_mode" in shown.text
        answered = await client.post("/v1/why-not", json=asked)
        assert answered.status_code == 200, answered.text[:500]
        assert "the recommended plan" in answered.json()["message"]
        changed = {"plan_id": first.plan_id, "strategy": {"rl.generation.tp": 2 * first.strategy.rl.generation.tp}}
        answered = await client.post("/v1/why-not", json=changed)
        assert answered.status_code == 200, answered.text[:500]
        assert f"with rl.generation.tp={2 * first.strategy.rl.generation.tp}" in answered.json()["message"]
        report = await client.get(f"/v1/plans/{first.plan_id}/operators")
        assert report.status_code == 200, report.text[:500]
        assert report.json()["layers"]
        for path in ("/v1/improve", "/v1/recommend"):
            refused = await client.post(path, json={**SPEC, "strategy": strategy})
            assert refused.status_code in {404, 422}, (path, refused.text[:500])
