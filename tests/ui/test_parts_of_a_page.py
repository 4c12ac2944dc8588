"""The page of a search: its answer first, the rest behind tabs that stand in the address, and all of it on paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.ui.conftest import visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.ui.conftest import Site, Visitor

PARTS = ("plans", "pictures", "space", "outlook", "about")
MOST_PX = 2600  # the answer, its warnings, the steps beside it and the ranked plans
HEIGHT = "document.documentElement.scrollHeight"


def _address(site: Site, part: str = "") -> str:
    return f"/searches/{site.stored['good']}?lang=en{part}"


def _shown(page: Page) -> list[str]:
    return [name for name in PARTS if page.locator(f"#{name}").is_visible()]


def test_the_answer_and_the_ranked_plans_come_first(visitor: Visitor, site: Site) -> None:
    page = visitor.open(_address(site))
    assert _shown(page) == ["plans"]
    expect(page.locator("section.best")).to_be_visible()
    expect(page.locator("#ranked")).to_be_visible()
    assert page.evaluate(HEIGHT) <= MOST_PX
    expect(page.get_by_role("tab", name="Plans")).to_have_attribute("aria-selected", "true")


def test_the_keyboard_walks_the_tabs_and_the_address_keeps_the_choice(visitor: Visitor, site: Site) -> None:
    page = visitor.open(_address(site))
    page.get_by_role("tab", name="Plans").focus()
    for name in (*PARTS[1:], PARTS[0], PARTS[1]):
        page.keyboard.press("ArrowRight")
        assert _shown(page) == [name]
        assert page.evaluate("location.hash") == f"#{name}"
        expect(page.locator(f"#to-{name}")).to_be_focused()
    page.reload()
    assert _shown(page) == ["pictures"]
    assert (page.locator("a.language").get_attribute("href") or "").endswith("#pictures")


def test_a_link_into_a_part_opens_it(visitor: Visitor, site: Site) -> None:
    page = visitor.open(_address(site, "#fates"))
    assert _shown(page) == ["space"]
    expect(page.locator("#fates")).to_be_in_viewport()
    page.evaluate("location.hash = '#plan-2'")
    expect(page.locator("#plan-2")).to_be_in_viewport()
    assert _shown(page) == ["plans"]
    expect(page.locator("#plan-2")).to_have_attribute("open", "")


def test_paper_and_readers_without_scripts_have_all_parts(chromium_browser: Browser, site: Site) -> None:
    with visiting(chromium_browser, site.url) as visitor:
        page = visitor.open(_address(site, "#space"))
        page.emulate_media(media="print")
        assert _shown(page) == list(PARTS)
        page.emulate_media(media="screen")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert _shown(page) == list(PARTS), "figures are drawn at their size before the paper is"
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert _shown(page) == ["space"]
    with visiting(chromium_browser, site.url, java_script_enabled=False) as reader:
        reader.page.goto(site.url + _address(site))
        assert _shown(reader.page) == list(PARTS)
