"""Losses and Pareto-optimal plans, in the text and Markdown reports of both languages."""

from __future__ import annotations

from typing import Any

import pytest

from api.ui.report_page import search_report as render_html
from autodeploy.messages import Message, in_language
from autodeploy.reports.plan_report import headroom_line, off_lines, render_markdown, render_plan_set
from autodeploy.reports.recommendation import pareto_line
from autodeploy.reports.wording import width
from autodeploy.search.ranking.diversity import pareto_set
from autodeploy.search.ranking.explanation import headroom
from autodeploy.specs.planset import Breakdown, PlanSet
from tests import factories

BREAKDOWN = Breakdown(compute_s=6.0, pipeline_bubble_s=2.0, exposed_ep_s=1.5, recompute_s=0.5)


def plan_set() -> PlanSet:
    """Three plans: the second takes less memory, the third fewer cards."""
    changes: list[dict[str, Any]] = [
        {"tokens_per_s": 300.0, "peak_memory_gib": 60.0, "num_npus_used": 384},
        {"tokens_per_s": 280.0, "peak_memory_gib": 50.0, "num_npus_used": 384},
        {"tokens_per_s": 250.0, "peak_memory_gib": 60.0, "num_npus_used": 352},
    ]
    losses = headroom(10.0, 0.4, BREAKDOWN)
    plans = tuple(factories.plan(number, headroom=losses, **each) for number, each in enumerate(changes, start=1))
    return factories.plan_set().model_copy(update={"plans": plans, "pareto": pareto_set(plans, plans[:2])})


def test_the_largest_losses_and_what_mfu_would_be() -> None:
    line = headroom_line(plan_set().plans[0], "en")
    # Ideal 4 s of 10: 2 s below peak and 2 s of bubble, each gone alone 4/8; EP 4/8.5; all three 4/4.5.
    assert line is not None
    for part in ("kernels below peak 2.00 s (+10.0 MFU points)", "bubble 2.00 s (+10.0", "EP 1.50 s (+7.1 MFU"):
        assert part in line
    assert "recompute" not in line
    assert line.endswith("MFU 88.9 % without these")
    assert headroom_line(factories.plan(), "en") is None


def test_what_none_beats_is_named() -> None:
    found = plan_set()
    line = pareto_line(found, "en")
    assert line is not None
    assert line.startswith("3 Pareto-optimal plans")
    assert "#1 " in line
    assert "50.0 GiB 384 cards" in line
    assert "60.0 GiB 352 cards" in line
    third = found.pareto[2]
    assert third.rank is None
    assert f"TP{third.strategy.tp} PP{third.strategy.pp}" in line
    many = pareto_line(found.model_copy(update={"pareto": found.pareto * 3}), "en")
    assert many is not None
    assert many.startswith("9 Pareto-optimal plans (time, memory, cards): ")
    assert many.count(";") == 4
    assert many.endswith("; ...")
    alone = found.model_copy(update={"pareto": found.pareto[:1]})
    assert pareto_line(alone, "en") is None


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_reports_hold_all_of_it(lang: Any) -> None:
    found = plan_set()
    said = [headroom_line(found.plans[0], lang), pareto_line(found, lang)]
    text = render_plan_set(found, lang)
    flat = "".join(text.split())
    markdown = render_markdown(found, lang).replace("\\", "")
    for line in said:
        assert line is not None
        assert "".join(line.split()) in flat
        assert line in markdown
    assert all(width(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize(
    ("lang", "said"),
    [
        ("en", ["off (requires n_routed_experts): coc, mc2", "off (switched off): ring"]),
        ("zh", ["未使用（需要 n_routed_experts）：coc, mc2", "未使用（已关闭）：ring"]),
    ],
)
def test_features_that_no_plan_may_use_are_listed_by_their_reasons(lang: Any, said: list[str]) -> None:
    """In Markdown and in the HTML report; the terminal's table has no room for them."""
    no_experts = Message("common.it_needs_field", name="n_routed_experts")
    off = {"coc": no_experts, "ring": Message("strategies.switched_off"), "mc2": no_experts}
    found = plan_set().model_copy(update={"features_off": off})
    assert off_lines(found, lang) == said
    assert all(line in render_markdown(found, lang) for line in said)
    page = render_html(found, lang)
    assert all(name in page and in_language(reason, lang) in page for name, reason in off.items())
    assert off_lines(plan_set(), lang) == []
