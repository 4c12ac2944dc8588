"""The gap beside a recommended plan is its own, wherever it is shown; where none is proven, none is shown."""

from __future__ import annotations

import pytest

from api.ui import formats
from autodeploy.reports.plan_report import render_plan_set
from autodeploy.service.session import open_services
from autodeploy.specs.planset import Optimality, PlanSet
from tests import factories
from tests.integration.conftest import QUICK, quick_settings, running_app

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

# Bounds of the first plan's 138 s or so, with the time of a plan that is faster by prediction.
PROVEN = {"near": (0.99, 0.995), "usual": (0.924, 0.986), "far": (0.4, 0.9), "met by the fastest": (0.913, 0.913)}
UNPROVEN = {"nothing": None, "no bound at the limit": 0.0}


def with_bound(bound: float | None, fastest_s: float) -> PlanSet:
    """Two plans, the second faster, with the gaps that a search gives them."""
    found = factories.plan_set(2, "feasible")
    times = (found.plans[0].step_time_s, fastest_s)
    gaps = [None if bound is None else 1.0 - bound / each for each in times]
    plans = [
        plan.model_copy(update={"step_time_s": step, "gap": gap})
        for plan, step, gap in zip(found.plans, times, gaps, strict=True)
    ]
    optimality = Optimality(objective="step_time", bound=bound, gap=gaps[1])
    document = found.model_copy(update={"plans": tuple(plans), "optimality": optimality}).model_dump(mode="json")
    return PlanSet.model_validate(document)


async def shown(monkeypatch, sqlite_url, found: PlanSet) -> tuple[str, str, dict[str, object], dict[str, object]]:
    """The page of the search, the list on a page, the list's item and the document."""
    changes = {"plans": found.plans, "optimality": found.optimality, "status": found.status}
    monkeypatch.setattr(factories, "cautious", lambda planned: planned.model_copy(update=changes))
    with open_services(quick_settings(sqlite_url), planner=QUICK) as services:
        stored = services.searches.plan_and_store(factories.spec())
    async with running_app(quick_settings(sqlite_url)) as client:
        page = (await client.get(f"/searches/{stored.search.id}?lang=en")).text
        rows = (await client.get("/?lang=en")).text
        (item,) = (await client.get("/v1/searches")).json()["items"]
        document = (await client.get(f"/v1/searches/{stored.search.id}")).json()
    return page, rows, item, document


@pytest.mark.parametrize("name", PROVEN)
async def test_a_gap_beside_the_recommended_plan_is_its_own(name, sqlite_url, monkeypatch):
    step = factories.plan().step_time_s
    bound, fastest = (share * step for share in PROVEN[name])
    found = with_bound(bound, fastest)
    own, other = 1.0 - bound / step, 1.0 - bound / fastest
    page, rows, item, document = await shown(monkeypatch, sqlite_url, found)
    assert item["gap"] == document["plans"][0]["gap"] == pytest.approx(own)
    assert document["optimality"]["gap"] == pytest.approx(other, abs=1e-12)
    heading = page[page.index("<h1>") : page.index("</h1>")]
    for place in (heading, rows):
        assert formats.percent(own) in place
        assert formats.percent(other) not in place
    assert formats.percent(own) in page[page.index('id="card"') :]
    report = render_plan_set(found)
    assert f"within {100 * own:.1f} %" in " ".join(report.split())


@pytest.mark.parametrize("name", UNPROVEN)
async def test_where_no_bound_was_proven_no_gap_is_shown(name, sqlite_url, monkeypatch):
    step = factories.plan().step_time_s
    found = with_bound(UNPROVEN[name], 0.9 * step)
    page, rows, item, document = await shown(monkeypatch, sqlite_url, found)
    assert item["gap"] is document["plans"][0]["gap"] is document["optimality"]["gap"] is None
    assert "of the optimum" not in page
    assert "100.0 %" not in rows
    assert "no bound proven" in page
    assert "no bound proven" in " ".join(render_plan_set(found).split())
