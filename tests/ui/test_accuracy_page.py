"""The accuracy page in Chromium and without scripts: published runs, the ledger, stale plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from autodeploy.reports.figures.charts import shipped_points
from autodeploy.specs.measured_run import MeasuredRun, ProfilerTimes
from tests import factories
from tests.support import plain_http
from tests.ui.conftest import visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.conftest import Site, Visitor


@pytest.fixture(scope="module")
def measured(site: Site) -> Site:
    """The site with a run of its best plan and one that the profiler watched."""
    search = site.services.searches.get(site.stored["good"]).plan_set
    plan = search.plans[0]
    site.services.runs.add(plan.plan_id, MeasuredRun(step_time_s=1.30 * plan.step_time_s))
    times = ProfilerTimes(computing_s=100.0, communication_s=20.0, bubble_s=15.0, free_s=5.0)
    site.services.runs.add(plan.plan_id, MeasuredRun(source="profiler", step_time_s=140.0, profiler=times))
    return site


def test_a_new_installation_shows_published_runs_and_how_to_add_its_own(empty_site: Site) -> None:
    page = plain_http.get(f"{empty_site.url}/accuracy?lang=en").text
    assert page.count("<circle") >= len(shipped_points())
    assert "autodeploy runs add PLAN_ID train.log" in page
    assert "Report what was measured" in page


def test_the_ledger_shows_prediction_measurement_and_what_the_overlay_mends(visitor: Visitor, measured: Site) -> None:
    page = visitor.open("/accuracy?lang=en")
    ledger = page.locator("section", has=page.locator("#ledger"))
    expect(ledger.locator("tbody tr")).to_have_count(2)
    stated = ledger.locator("tbody tr").nth(1)
    for text in ("cloudmatrix-384", "DeepSeek-V3", "stated", "134.2 s", "174.5 s", "+30.0 %", "no"):
        expect(stated).to_contain_text(text)
    clusters = page.locator("section", has=page.locator("#clusters"))
    expect(clusters.locator("tbody tr")).to_contain_text("software ×")
    profiler = page.locator("section", has=page.locator("#profiler"))
    expect(profiler.locator("tbody tr")).to_have_count(5)
    expect(profiler).to_contain_text("bubble, PP send")
    expect(page.locator("section", has=page.locator("#reranked1")).locator("tbody tr")).to_have_count(6)
    expect(page.locator(".plot svg")).to_be_visible()
    assert page.locator(".plot circle").count() > len(shipped_points())


def test_a_stale_search_says_so_and_shows_the_new_order(visitor: Visitor, measured: Site) -> None:
    page = visitor.open(f"/searches/{measured.stored['good']}?lang=en")
    warning = page.locator("section", has=page.locator("#stale"))
    expect(warning).to_contain_text("search again for current figures")
    expect(warning.locator("tbody tr")).to_have_count(5)
    expect(warning.locator("tbody tr").first).to_contain_text("2")
    page = visitor.open("/?lang=en")
    expect(page.locator("tbody tr", has_text="134.2 s").first).to_contain_text("stale")
    fresh = measured.services.searches.plan_and_store(factories.spec(top_k=2))
    page = visitor.open(f"/searches/{fresh.search.id}?lang=en")
    expect(page.locator("#stale")).to_have_count(0)


@pytest.mark.parametrize(("lang", "scheme", "title"), [("en", "light", "Accuracy"), ("zh", "dark", "准确度")])
def test_it_reads_in_both_languages_without_scripts(
    chromium_browser: Browser, measured: Site, lang: str, scheme: str, title: str
) -> None:
    with visiting(chromium_browser, measured.url, color_scheme=scheme, java_script_enabled=False) as visitor:
        page = visitor.page
        page.goto(f"{measured.url}/accuracy?lang={lang}")
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        expect(page.locator(".plot svg")).to_be_visible()
        expect(page.locator("#clusters")).to_be_visible()
        assert page.locator("script:not([src*='pages'])").count() == 0  # but those of all pages


def test_it_fits_a_narrow_window(chromium_browser: Browser, measured: Site) -> None:
    with visiting(chromium_browser, measured.url, viewport={"width": 400, "height": 800}) as visitor:
        page = visitor.open("/accuracy?lang=en")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_links_lead_somewhere_and_clusters_filter(measured: Site) -> None:
    with plain_http.Client(base_url=measured.url) as reader:
        page = reader.get("/accuracy?cluster=cloudmatrix-384&lang=en")
        assert page.status_code == 200
        assert "run_" in page.text
        nobody = reader.get("/accuracy?cluster=nobody&lang=en")
        assert "Report what was measured" in nobody.text
        run = measured.services.runs.list().items[0]
        assert reader.get(f"/v1/runs/{run.id}").json()["plan_id"] == run.plan_id
