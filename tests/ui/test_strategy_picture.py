"""The picture of all strategies: its points over HTTP, and the picture itself in Chromium with the real planner."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.support import plain_http
from tests.ui.conftest import Site, visiting
from tests.ui.panning import MOST_SHARE, STEPS, long_tasks_while_panning

if TYPE_CHECKING:
    from playwright.sync_api import Browser


SPREAD = ("step_time_s", "peak_memory_gib")


def points_of(site: Site, lang: str = "en") -> dict[str, object]:
    answer = plain_http.get(f"{site.url}/searches/{site.stored['search']}/strategies?lang={lang}", timeout=60)
    assert answer.status_code == 200
    document: dict[str, object] = answer.json()
    return document


def test_points_are_the_plans_and_others_at_their_bounds(planned: Site) -> None:
    found = points_of(planned)
    points = found["points"]
    assert isinstance(points, list)
    plans = [point for point in points if "plan" in point]
    others = [point for point in points if "ask" in point and "solved" not in point]
    layouts = {point["name"] for point in points}
    assert len(layouts) == len(points), "what is solved is no bound beside itself"
    assert [plan["plan"] for plan in plans] == [planned.stored[f"plan{rank}"] for rank in (1, 2, 3)]
    assert len(others) > 3
    stored = plain_http.get(f"{planned.url}/v1/searches/{planned.stored['search']}").json()
    solved = [point for point in points if "solved" in point]
    assert len(solved) > len(stored["pareto"]), "not only what none beats"
    assert len(plans) + len(solved) >= len(stored["solved"]["step_time_s"])
    assert {point["tp"] for point in points} == {2}, "the search fixes it"
    assert {point["pp"] for point in points} == {2, 4}
    best_s = min(plan["step_time_s"] for plan in plans)
    assert found == points_of(planned)
    assert all(0 < other["mfu_pct"] < 100 and other["peak_memory_gib"] > 1 for other in others)
    assert max(other["step_time_s"] for other in others) > best_s
    chinese = points_of(planned, "zh")["words"]
    assert isinstance(chinese, dict)
    assert re.search("[\u4e00-\u9fff]", chinese["pareto"])
    assert plain_http.get(f"{planned.url}/searches/srch_missing/strategies").status_code == 404


@pytest.mark.parametrize(
    ("width", "lang", "scheme"), [(390, "zh", "light"), (1024, "en", "dark"), (1440, "en", "light")]
)
def test_the_picture_is_walked_with_the_keyboard(
    chromium_browser: Browser,
    planned: Site,
    width: int,
    lang: str,
    scheme: str,
) -> None:
    viewport = {"width": width, "height": 900}
    with visiting(chromium_browser, planned.url, color_scheme=scheme, viewport=viewport) as visitor:
        page = visitor.open(f"/searches/{planned.stored['search']}?lang={lang}")
        assert page.locator("#all-strategies").get_attribute("data-drawn") is None, "not read before it is in view"
        page.locator("#parts a[href='#space']").click()
        page.locator("#strategies-picture").scroll_into_view_if_needed()
        page.wait_for_selector("#all-strategies[data-drawn]")
        plans = int(page.locator("#all-strategies").get_attribute("data-drawn") or 0)
        page.locator("#strategies-bounds").check()
        page.wait_for_function(f"() => Number(document.getElementById('all-strategies').dataset.drawn) > {plans}")
        every = int(page.locator("#all-strategies").get_attribute("data-drawn") or 0)
        page.locator("#all-strategies [data-filter='pp']").select_option("4")
        page.wait_for_function(f"() => Number(document.getElementById('all-strategies').dataset.drawn) < {every}")
        page.locator("#strategies-step").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#strategies-chosen")).to_contain_text("PP4")
        page.locator("#all-strategies [data-role='y']").select_option("mfu_pct")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_strategy_that_lost_says_why(chromium_browser: Browser, planned: Site) -> None:
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"/searches/{planned.stored['search']}?lang=en#space")
        page.locator("#strategies-picture").scroll_into_view_if_needed()
        page.wait_for_selector("#all-strategies[data-drawn]")
        page.locator("#strategies-bounds").check()
        page.locator("#strategies-step").focus()
        page.keyboard.press("End")
        page.locator("#strategies-why").click()
        page.wait_for_url(re.compile("/why-not"))
        expect(page.locator("#why-not")).to_be_visible()
        expect(page.locator("main")).to_contain_text("slower than the best")


def test_a_click_on_a_plan_opens_it(chromium_browser: Browser, planned: Site) -> None:
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"/searches/{planned.stored['search']}?lang=en#space")
        page.locator("#strategies-picture").scroll_into_view_if_needed()
        page.wait_for_selector("#all-strategies[data-drawn]")
        slider = page.locator("#strategies-step")
        slider.focus()
        page.keyboard.press("Home")
        for _ in range(int(slider.get_attribute("max") or 0)):
            if page.locator("#strategies-open").is_visible():
                break
            page.keyboard.press("ArrowRight")
        page.locator("#strategies-open").click()
        page.wait_for_url(re.compile(r"/plans/p_\w+"))


def test_five_thousand_points_are_moved_without_long_tasks(chromium_browser: Browser, planned: Site) -> None:
    found = points_of(planned)
    points = found["points"]
    assert isinstance(points, list)
    others = [point for point in points if "ask" in point and "solved" not in point]
    while len(points) < 5000:
        number = len(points)
        drawn = {name: others[number % len(others)][name] * (1 + 1e-4 * (number % 997)) for name in SPREAD}
        points.append(others[number % len(others)] | drawn)
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.page
        page.route(re.compile("/strategies"), lambda route: route.fulfill(json=found))
        page.goto(f"{planned.url}/searches/{planned.stored['search']}?lang=en#space")
        page.locator("#strategies-picture").scroll_into_view_if_needed()
        page.wait_for_selector("#all-strategies[data-drawn]")
        page.locator("#strategies-bounds").check()
        page.wait_for_selector("#all-strategies[data-drawn='5000']")
        tasks = long_tasks_while_panning(page, page.locator("#strategies-picture"))
        assert tasks <= MOST_SHARE * STEPS, f"{tasks} of {STEPS} steps took too long"
