"""One person's way through the pages in both languages: submit, watch, cancel, compare, what-if, scaling, export."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from api.http.languages import texts
from autodeploy.formats.import_document import import_document
from tests import factories
from tests.ui.conftest import SPEC as PLANNED
from tests.ui.conftest import fits_every_width, visiting
from tests.ui.test_accessibility import violations_in_both_schemes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.ui.conftest import Site


def test_from_a_pasted_spec_to_a_launch_script(chromium_browser: Browser, planned: Site) -> None:
    """Until the plans are exported in English, then in Chinese."""
    says = texts("en")
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open("/?lang=en")
        page.get_by_role("link", name=says["site.new"]).first.click()
        page.locator("#way-of-spec").click()
        page.locator("#spec-text").fill(json.dumps(PLANNED | {"training": {**PLANNED["training"], "tokens": 1e12}}))
        expect(page.locator("#paste-status")).not_to_be_empty()
        page.locator("#paste").get_by_role("button", name=says["search"]).click()
        page.wait_for_url(re.compile(r"/searches/srch_\w+\?lang=en"))
        page.locator("section.best").wait_for(timeout=60_000)
        expect(page.locator("section", has=page.locator("#run"))).to_contain_text(says["run.goodput"])
        expect(page.locator("section", has=page.locator("#run"))).to_contain_text("Llama 3 405B")
        search_id = re.findall(r"srch_\w+", page.url)[0]
        _scale(page, says)
        page.goto(f"{planned.url}/searches/{search_id}?lang=en")
        _export(page)
        page.locator("a.language").click()
        page.wait_for_url(re.compile(rf"/searches/{search_id}\?lang=zh"))
        says = texts("zh")
        visitor.wait_for_charts()
        fits_every_width(page)
        page.set_viewport_size({"width": 1280, "height": 900})
        page.get_by_role("button", name=says["site.compare"]).click()
        page.wait_for_url(re.compile(r"/compare\?"))
        assert page.locator("thead th").count() == 3
        visitor.open(f"/searches/{search_id}?lang=zh")
        page.locator("#open-plan").click()
        _turn_a_knob(page)
        _ask_why_not(page, says)


def _scale(page: Page, says: dict[str, str]) -> None:
    page.get_by_role("tab", name=says["search.part_outlook"]).click()
    page.get_by_role("button", name=says["plan.ablate"]).click(timeout=120_000)
    rows = page.locator("section", has=page.locator("#scaling")).locator("tbody tr")
    expect(rows.first).to_be_visible(timeout=60_000)
    assert rows.count() >= 4
    expect(rows.locator("xpath=self::*[contains(@class, 'first')]")).to_contain_text("100.0 %")
    fits_every_width(page)
    assert violations_in_both_schemes(page, within="section[aria-labelledby='scaling']") == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})


def _export(page: Page) -> None:
    page.locator("#to-plans").click()
    fold = page.locator("#plan-1")
    fold.locator("summary").first.click()
    with page.expect_download() as started:
        fold.get_by_role("link", name="mindspeed-llm", exact=True).click()
    script = started.value.path().read_text()
    strategy = import_document(script, "launch.sh").document["strategy"]
    assert (strategy["tp"], strategy["micro_batch_size"]) == (2, 1)


def _turn_a_knob(page: Page) -> None:
    before = page.locator("[data-key='step_time_s']").inner_text()
    page.locator("select[name=micro_batch_size]").select_option("2")
    expect(page.locator("[data-key='step_time_s']")).not_to_have_text(before, timeout=20_000)


def _ask_why_not(page: Page, says: dict[str, str]) -> None:
    page.locator("input[name=strategy]").fill("tp=16,pp=1")
    page.get_by_role("button", name=says["plan.why_not"]).click()
    answer = page.locator("section", has=page.locator("#why-not")).get_by_role("status")
    expect(answer).not_to_be_empty(timeout=60_000)
    assert re.search("[\u4e00-\u9fff]", answer.inner_text())


def test_a_search_is_watched_and_stopped_in_chinese(chromium_browser: Browser, site: Site) -> None:
    """`test_pages_in_a_browser` does it in English."""
    says = texts("zh")
    slow = factories.spec(model=factories.DEEPSEEK_V3 | {"name": "slow"})
    search_id = site.services.searches.submit(slow, reuse=False).search.id
    with visiting(chromium_browser, site.url) as visitor:
        page = visitor.open(f"/searches/{search_id}?lang=zh")
        expect(page.locator("[data-count='solved']")).to_have_text(re.compile(r"^\d+$"), timeout=30_000)
        page.get_by_role("button", name=says["progress.cancel"]).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(says["status.cancelled"], timeout=30_000)
