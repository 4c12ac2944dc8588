"""Losses, plans that none beats and robustness on the pages of a search and of a plan, and in the API."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.jobs.planning import PLANNER
from autodeploy.specs.planset import PlanSet
from tests.integration.conftest import quick_settings, running_app

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SPEC: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {
        "effort": "fast",
        "top_k": 3,
        "robust": True,
        "distinct": "placements",
        "fix": {"micro_batch_size": 1},
        "allow": {"tp": [1, 2], "pp": [1, 2]},
    },
}
WORDS = {
    "en": (
        "What is lost",
        "operators below peak",
        "Ranked by the worst regret of",
        "that none beats",
        "If calibration",
    ),
    "zh": ("损失构成", "算子未达峰值", "的最大遗憾排序", "互不支配", "若校准有误差"),
}


async def test_pages_and_api_say_what_is_lost_and_what_stands(sqlite_url):
    async with running_app(quick_settings(sqlite_url), planner=PLANNER) as client:
        answer = await client.post("/v1/searches", json=SPEC, headers={"Prefer": "wait=60"})
        found = PlanSet.model_validate(answer.json())
        best = found.plans[0]
        pages = {}
        for lang in WORDS:
            pages[lang] = [
                (await client.get(f"{path}?lang={lang}")).text
                for path in (f"/searches/{found.search.id}", f"/plans/{best.plan_id}")
            ]
        refused = await client.post(
            "/v1/searches", json=SPEC | {"search": {"robust": True, "objective": "peak_memory"}}
        )
    assert found.robust is not None
    assert found.pareto
    assert best.robustness is not None
    for lang, (search, plan) in pages.items():
        title, below_peak, ranked, unbeaten, robust = WORDS[lang]
        assert ranked in search
        assert unbeaten in search
        assert robust in search
        assert title in search
        assert title in plan
        assert below_peak in plan
        assert f"{best.headroom[0].seconds:.3f}" in plan
        assert f"{found.pareto[-1].peak_memory_gib:.1f}" in search
    problem = refused.json()
    assert refused.status_code == 422
    assert problem["errors"][0]["pointer"].endswith("/search/robust")
