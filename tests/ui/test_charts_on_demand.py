"""Figures are drawn when they come near the view, by pointer or keyboard, and on paper; not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from api.ui.rendering import PLOTLY, SCRIPTS
from tests.ui.conftest import visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.ui.conftest import Site, Visitor

DRAWN = ".chart[data-drawn]"
LOADED = "() => performance.getEntriesByType('resource').map(each => each.name)"
PLACES = "() => [...document.querySelectorAll('.chart')].map(each => each.getBoundingClientRect().top + scrollY)"


def _search(site: Site, part: str = "#pictures") -> str:
    return f"/searches/{site.stored['good']}?lang=en{part}"


def _loads(page: Page, name: str) -> bool:
    return any(name in address for address in page.evaluate(LOADED))


def test_nothing_is_drawn_or_fetched_before_it_is_near_the_view(visitor: Visitor, site: Site) -> None:
    page = visitor.open(_search(site, ""))
    page.wait_for_load_state("networkidle")
    assert _loads(page, SCRIPTS)
    assert not _loads(page, PLOTLY)
    assert page.locator(DRAWN).count() == 0
    page.get_by_role("tab", name="Time and memory").click()
    places = page.evaluate(PLACES)
    page.locator("#chart-time").scroll_into_view_if_needed()
    page.wait_for_selector("#chart-time[data-drawn]")
    assert page.locator(f"#chart-layers{DRAWN}").count() == 0, "far below"
    visitor.wait_for_charts()
    assert page.locator(DRAWN).count() == len(places) == 4
    assert page.evaluate(PLACES) == pytest.approx(places, abs=1.0), "nothing moves when a figure is drawn"


def test_the_keyboard_brings_a_chart_into_view(visitor: Visitor, site: Site) -> None:
    page = visitor.open(_search(site))
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("Boolean(document.activeElement.closest('ul.legend'))"):
            break
    hidden = page.locator(":focus").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector("#chart-time[data-drawn]")
    expect(page.locator(":focus")).to_have_attribute("aria-pressed", "false")
    shown = "name => document.getElementById('chart-time').data.find(trace => trace.name === name).visible"
    page.wait_for_function(f"name => ({shown})(name) === false", arg=hidden)


def test_paper_has_bars_and_tables_whatever_was_drawn(visitor: Visitor, site: Site) -> None:
    page = visitor.open(_search(site, ""))
    page.emulate_media(media="print")
    table = page.locator("section", has=page.locator("#chart-layers")).locator("details")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    expect(table).to_have_attribute("open", "")
    assert page.locator(".paper svg.bar:visible").count() >= 2, "time of the plans, memory of the stages"
    assert page.locator(".chart:visible").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert table.get_attribute("open") is None
    page.emulate_media(media="screen")
    assert page.locator(".paper:visible").count() == 0


def test_without_its_library_a_page_keeps_its_tables_and_tries_again(chromium_browser: Browser, site: Site) -> None:
    with visiting(chromium_browser, site.url) as visitor:
        visitor.page.route(f"**/{PLOTLY}*", lambda route: route.abort())
        page = visitor.open(_search(site, ""))
        with page.expect_event("requestfailed"):
            page.get_by_role("tab", name="Time and memory").click()
            page.locator("#chart-time").scroll_into_view_if_needed()
        expect(page.locator("section", has=page.locator("#chart-time")).locator("summary")).to_be_visible()
        page.unroute(f"**/{PLOTLY}*")
        for name in ("Plans", "Time and memory"):
            page.get_by_role("tab", name=name).click()
        page.locator("#chart-time").scroll_into_view_if_needed()
        page.wait_for_selector("#chart-time[data-drawn]")
        assert [fault for fault in visitor.faults if "ERR_FAILED" not in fault] == []
        visitor.faults.clear()
