"""Questions a newcomer asks of the pages: what if, kept side by side and sent on; pictures and tables saved; help."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.conftest import Site, Visitor


def test_the_answer_is_one_line_in_view_and_changes_are_kept_in_the_address(
    chromium_browser: Browser, planned: Site
) -> None:
    with visiting(chromium_browser, planned.url, viewport={"width": 1280, "height": 700}) as visitor:
        page = visitor.open(f"/plans/{planned.stored['plan1']}?lang=en")
        page.locator("#knob-micro_batch_size").scroll_into_view_if_needed()
        page.locator("#knob-micro_batch_size").select_option("2")
        page.wait_for_selector("#what-if-answer[data-answered='1']")
        line = page.locator("#what-if-line")
        expect(line).to_contain_text("GiB")
        assert re.search(r"[\d.]+ s \([+−][\d.]+ %\) · [\d.]+ GiB", line.inner_text())
        box = line.bounding_box()
        assert box is not None
        assert 0 <= box["y"] < 700, "in the window while the knobs are turned"
        page.locator("#what-if-keep").click()
        rows = page.locator("#what-if-kept tbody tr")
        expect(rows).to_have_count(1)
        page.locator("#knob-recompute").select_option("full")
        page.wait_for_selector("#what-if-answer[data-answered='2']")
        page.locator("#what-if-keep").click()
        expect(rows).to_have_count(2)
        page.reload()
        expect(page.locator("#what-if-kept tbody tr")).to_have_count(2)
        expect(page.locator("#what-if-kept tbody tr").first.locator("td").first).to_contain_text(re.compile(r"\d|–"))
        page.locator("#what-if-kept tbody tr").first.get_by_role("button").last.click()
        expect(page.locator("#what-if-kept tbody tr")).to_have_count(1)
        assert page.url.count("kept=") == 1


def test_values_of_a_choice_are_asked_for_while_it_is_looked_over(visitor: Visitor, site: Site) -> None:
    plan_id = site.services.searches.plans(site.stored["good"])[0].plan_id
    page = visitor.open(f"/plans/{plan_id}?lang=en")
    with page.expect_response(lambda answer: "what-if" in answer.url and answer.status == 204) as ahead:
        page.locator("#knob-recompute").focus()
    assert ahead.value.request.headers["x-ahead"] == "1"
    with page.expect_response(lambda answer: "what-if" in answer.url and answer.status != 204):
        page.locator("#knob-recompute").select_option("full")


def test_a_picture_is_saved_as_png_and_its_table_as_csv(visitor: Visitor, site: Site) -> None:
    page = visitor.open(f"/searches/{site.stored['good']}?lang=en#pictures", charts=True)
    section = page.locator("section", has=page.locator("#chart-time"))
    with page.expect_download() as saved:
        section.locator("[data-save=PNG]").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as saved:
        section.locator("[data-save=CSV]").click()
    lines = saved.value.path().read_text().splitlines()
    assert len(lines) == 1 + page.locator(".dense.plans tbody tr").count()
    assert lines[0].count(",") == lines[1].count(",")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_question_mark_leads_to_the_documentation(visitor: Visitor, site: Site, lang: str) -> None:
    page = visitor.open(f"/searches/{site.stored['good']}?lang={lang}")
    page.locator("a.docs").first.click()
    page.wait_for_url(re.compile("/docs/how-to/read_a_plan"))
    expect(page.locator("article h1")).to_be_visible()
    page.locator("footer a", has_text="API").first.click()
    expect(page.locator("article")).to_contain_text("/v1/searches")
    assert visitor.faults == []


def test_the_report_prints_what_the_page_shows(visitor: Visitor, site: Site) -> None:
    page = visitor.open(f"/searches/{site.stored['good']}?lang=en")
    with page.expect_download() as saved:
        page.locator(".best .actions a[download]").last.click()
    text = saved.value.path().read_text()
    assert page.locator(".best h2").inner_text().splitlines()[-1] in text
    assert "<script" not in text
