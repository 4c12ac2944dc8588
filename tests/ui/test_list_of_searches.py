"""The list of searches in Chromium: its columns, what a phone shows first, and filters kept under names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.support import plain_http
from tests.ui.conftest import visiting
from tests.ui.test_accessibility import violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.conftest import Site


def test_the_list_says_the_layout_of_each_best_plan_and_who_asked(chromium_browser: Browser, site: Site) -> None:
    """Also on a phone, where status and step stand first; who asked has a column only where somebody is known."""
    with visiting(chromium_browser, site.url) as visitor:
        page = visitor.open("/?lang=en")
        row = page.locator("tbody tr", has_text="134.2 s")
        expect(row.locator("td.layout")).to_have_text("TP2 PP16 VPP2 EP32 DP24")
        expect(page.locator("tbody tr", has_text="failed").locator("td.layout")).to_have_text("–")
        assert page.get_by_role("columnheader", name="Author").count() == 0
    (listed,) = (
        item
        for item in plain_http.get(f"{site.url}/v1/searches").json()["items"]
        if item["best_step_time_s"] == pytest.approx(134.2, abs=0.05)
    )
    assert listed["best_degrees"] == {"tp": 2, "pp": 16, "vpp": 2, "cp": 1, "ep": 32, "dp": 24}
    with visiting(chromium_browser, site.url, viewport={"width": 390, "height": 844}) as visitor:
        page = visitor.open("/?lang=zh")
        row = page.locator("tbody tr", has_text="134.2 s")
        top = {name: row.locator(name).first.bounding_box() for name in (".status", "td.n.ahead", "th", "td.layout")}
        heights = {name: box["y"] for name, box in top.items() if box is not None}
        assert max(heights[".status"], heights["td.n.ahead"]) < heights["th"] < heights["td.layout"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(page) == []


def test_a_filter_is_kept_under_a_name_in_the_browser(chromium_browser: Browser, site: Site) -> None:
    with visiting(chromium_browser, site.url) as visitor:
        page = visitor.open("/?lang=en")
        saved = page.locator("#saved-filters")
        expect(saved).to_be_hidden()
        page = visitor.open("/?status=failed&sort=-gap&lang=en")
        saved.get_by_label("Filter name").fill("<b>broken</b>")
        saved.get_by_role("button", name="Save").press("Enter")
        expect(saved.get_by_role("link", name="<b>broken</b>")).to_be_focused()
        expect(saved.locator("form")).to_be_hidden()
        assert violations(page) == []
        page = visitor.open("/?lang=zh")
        saved.get_by_role("link", name="<b>broken</b>").click()
        page.wait_for_url("**/?*status=failed*")
        assert {"lang=zh", "sort=-gap"} <= set(page.url.partition("?")[2].split("&"))
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(saved.get_by_role("link")).to_have_attribute("aria-current", "true")
        saved.get_by_role("button", name="清除 <b>broken</b>").click()
        expect(saved.get_by_role("link")).to_have_count(0)
        page.evaluate("for (const key of Object.keys(localStorage)) localStorage[key] = '{broken'")
        page = visitor.open("/?lang=en")
        expect(saved).to_be_hidden()
