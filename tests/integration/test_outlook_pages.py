"""Losses, Pareto-optimal plans and what plans rest on, on the pages of a search and of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.service.runner.planning import PLANNER
from autodeploy.service.session import open_services
from autodeploy.specs.planset import PlanSet, Rescaled
from tests import factories
from tests.integration.conftest import QUICK, quick_settings, running_app

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SPEC: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {
        "effort": "fast",
        "top_k": 3,
        "distinct": "placements",
        "fix": {"micro_batch_size": 1},
        "allow": {"tp": [1, 2], "pp": [1, 2]},
    },
}
WORDS = {
    "en": ("Where MFU is lost", "Kernels below peak", "Pareto-optimal"),
    "zh": ("损失构成", "算子未达峰值", "帕累托最优"),
}
# What stands on the page of a search and on that of its second plan, by language.
RECOMMENDED = {
    "en": (
        (
            "Recommended plan",
            "1.1 times as fast as the reference (public recipe)",
            "P(fits) 97 %",
            "Not covered by any run: EP 32; nearest record: pangu-ultra-moe-718b-6144, "
            "step time overpredicted by 8.2 %.",
            "All times are scaled by 1.03",
            "Fastest by prediction, and what it depends on",
            "TP4 PP8 EP64 DP24 is 3.1 % faster by prediction (130.2 s, P(fits) 71 %).",
            "+9.8 %",
            "Ranked by regret: time beyond the best of 38 plans",
            "41 layouts within 3 % of the fastest, all with TP2, PP16; #1 needs the fewest unproven features.",
            'title="EP 48, Adaptive Pipe">2 unproven</span>',
        ),
        ("Evidence", "expected 140.7 s", "telechat2-512", "+8.2 %", "Uncertain parameters", "1.45", "2.9 %"),
    ),
    "zh": (
        (
            "推荐方案",
            "速度是对照方案（公开配方）的 1.1 倍",
            "显存充足概率 97 %",
            "没有实测依据：EP 32",
            "所有时间均乘以 1.03",
            "按预测值最快的方案及其前提",
            "快 3.1 %",
            "按遗憾值排序",
            "41 种布局",
            'title="EP 48，Adaptive Pipe">2 项无实测</span>',
        ),
        ("实测依据", "期望 140.7 s", "telechat2-512", "+8.2 %", "不确定参数", "1.45", "2.9 %"),
    ),
}
OLD = ("P(fits)", "Fastest by prediction", "unproven", "Regret", "Uncertain parameters")


async def test_pages_say_what_is_lost_and_what_none_beats(sqlite_url):
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
    assert found.pareto
    for lang, (search, plan) in pages.items():
        title, below_peak, unbeaten = WORDS[lang]
        assert unbeaten in search
        assert title in search
        assert title in plan
        assert below_peak in plan
        assert f"{best.headroom[0].seconds:.3f}" in plan
        assert f"{found.pareto[-1].peak_memory_gib:.1f}" in search


def stored(sqlite_url, **search):
    """A search of the quick planner, in the database."""
    with open_services(quick_settings(sqlite_url), planner=QUICK) as services:
        return services.searches.plan_and_store(factories.spec(**search))


def recommended(monkeypatch):
    """The quick planner's answers with a public recipe for comparison, and times that a measured run rescales."""
    reference = factories.plan(4, label="public recipe")
    rescaled = Rescaled(
        ratio=1.031, measured_step_time_s=138.4, predicted_step_time_s=134.2, run="a script", source="its README"
    )
    usual = factories.cautious
    monkeypatch.setattr(
        factories,
        "cautious",
        lambda found: usual(found).model_copy(update={"reference": reference, "rescaled": rescaled}),
    )


async def test_pages_say_what_plans_rest_on_and_what_is_faster_on_paper(sqlite_url, monkeypatch):
    recommended(monkeypatch)
    found = stored(sqlite_url)
    async with running_app(quick_settings(sqlite_url)) as client:
        for lang, words in RECOMMENDED.items():
            for path, expected in zip(
                (f"/searches/{found.search.id}", f"/plans/{found.plans[1].plan_id}"), words, strict=True
            ):
                page = (await client.get(f"{path}?lang={lang}")).text
                for text in expected:
                    assert text in page, (lang, path, text)


async def test_pages_of_an_earlier_answer_show_without(sqlite_url):
    found = stored(sqlite_url, risk="neutral")
    async with running_app(quick_settings(sqlite_url)) as client:
        for path in (f"/searches/{found.search.id}", f"/plans/{found.plans[0].plan_id}"):
            page = (await client.get(f"{path}?lang=en")).text.replace(">P(fits)</th>", "")
            assert [word for word in OLD if word in page] == []


async def test_the_form_asks_for_the_risk_and_reads_an_old_one_as_averse(sqlite_url):
    fields = {"/model": "deepseek-v3", "/cluster/profile": "cloudmatrix-384", "/cluster/num_npus": "384"}
    fields |= {"/training/seq_length": "4096", "/training/global_batch_size": "15360"}
    async with running_app(quick_settings(sqlite_url)) as client:
        form = (await client.get("/new?lang=en")).text
        assert 'name="/search/risk"' in form
        assert "robust" not in form
        asked = {}
        for given in ({"/search/risk": "neutral"}, {"/search/robust": "regret"}, {}):
            answer = await client.post("/new", data=fields | {"form": "fields"} | given)
            assert answer.status_code == 303
            document = (await client.get("/v1" + answer.headers["location"])).json()
            asked[tuple(given)] = document["search"]["spec"]["search"]["risk"]
    assert asked == {("/search/risk",): "neutral", ("/search/robust",): "averse", (): "averse"}
