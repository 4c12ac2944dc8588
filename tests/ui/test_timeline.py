"""The pipeline of a plan on its canvas: zoomed by wheel, drag and keys, read slot by slot, stages scrolled inside."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from api.app import create_app
from autodeploy.kit.settings import Settings
from autodeploy.search import planner
from autodeploy.specs.reading import read_spec_document
from tests import factories
from tests.support import plain_http
from tests.ui.conftest import Site, serving, visiting
from tests.ui.panning import MOST_SHARE, STEPS, long_tasks_while_panning
from tests.ui.test_accessibility import violations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

SPEC = {
    "model": "llama3.1-70b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 256},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "strategy": {"tp": 8, "pp": 32, "micro_batch_size": 1, "layers_per_stage": (2,) * 16 + (3,) * 16},
}


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with a plan of 32 stages."""
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path_factory.mktemp('staged') / 'pages.db'}"))
    spec = read_spec_document(SPEC)
    with serving(app) as url:
        kept = app.state.services.searches.keep(factories.plan_set(1, spec=spec), spec, planner.estimate(spec))
        yield Site(url, app.state.services, {"plan": kept.plans[0].plan_id})


def shown(page: Page) -> tuple[float, float]:
    """First and last instant of the picture, in its ticks."""
    low, high = (page.locator("#timeline-box").get_attribute("data-from") or "").split()
    return float(low), float(high)


def until(page: Page, condition: str) -> None:
    """Waits for a condition on `low` and `high`, what the picture shows."""
    page.wait_for_function(
        "condition => { const shown = document.getElementById('timeline-box').dataset.from.split(' ').map(Number);"
        " return new Function('low', 'high', `return ${condition}`)(...shown); }",
        arg=condition,
    )


def opened(page: Page, url: str) -> None:
    page.goto(url)
    page.locator("#timeline").scroll_into_view_if_needed()
    page.wait_for_selector("#timeline-box[data-drawn]")


def test_the_picture_is_zoomed_by_wheel_drag_and_keys(chromium_browser: Browser, staged: Site) -> None:
    with visiting(chromium_browser, staged.url, bypass_csp=True) as visitor:
        page = visitor.page
        opened(page, f"{staged.url}/plans/{staged.stored['plan']}?lang=en")
        low, high = shown(page)
        assert low == 0.0
        box = page.locator("#timeline-canvas").bounding_box()
        assert box is not None
        assert box["height"] < 500
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
        page.mouse.wheel(0, -600)
        until(page, f"low > 0 && high - low < {0.6 * (high - low)}")
        low, high = shown(page)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 100, steps=4)
        page.mouse.up()
        until(page, f"high - low < {0.3 * (high - low)} && low > {low}")
        low, high = shown(page)
        page.locator("#timeline-frame").focus()
        page.keyboard.press("ArrowRight")
        until(page, f"low > {low} && Math.abs(high - low - {high - low}) < 2")
        page.keyboard.press("-")
        until(page, f"high - low > {1.5 * (high - low)}")
        page.get_by_role("button", name="Whole step").click()
        until(page, "low === 0")
        page.get_by_role("button", name="End", exact=True).click()
        until(page, "low > 0")


def test_slots_are_read_one_by_one_and_stages_scroll_inside(chromium_browser: Browser, staged: Site) -> None:
    with visiting(chromium_browser, staged.url, viewport={"width": 390, "height": 844}) as visitor:
        page = visitor.page
        opened(page, f"{staged.url}/plans/{staged.stored['plan']}?lang=en")
        said = page.locator("#timeline-chosen")
        page.get_by_label("Stage", exact=True).fill("31")
        expect(said).to_contain_text(re.compile(r"^Stage 31, F0 \(forward\): .* compute [\d.]+ ms .* bubble before it"))
        assert page.evaluate("document.getElementById('timeline-frame').scrollTop") > 0
        page.get_by_label("Slot", exact=True).press("ArrowRight")
        expect(said).to_contain_text("Stage 31, B0 (backward)")
        page.locator("#timeline-canvas").click(position={"x": 60, "y": 40})
        expect(said).to_contain_text("Stage")
        page.get_by_label("Lanes: compute, communication, host").check()
        expect(page.locator("#timeline-legend")).to_contain_text("exposed communication")
        assert violations(page) == []
        page.get_by_role("link", name="Seconds by stage").click()
        page.wait_for_url(re.compile("/stages"))
        expect(page.locator("tbody tr")).to_have_count(32)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(page) == []


def test_thirty_two_stages_are_moved_without_long_tasks(chromium_browser: Browser, staged: Site) -> None:
    """Where each slot has its text, which costs most, and where slots are too narrow for one."""
    with visiting(chromium_browser, staged.url, bypass_csp=True) as visitor:
        page = visitor.page
        opened(page, f"{staged.url}/plans/{staged.stored['plan']}?lang=en")
        for button in ("Start", "+", "Whole step"):
            page.get_by_role("button", name=button, exact=True).click()
            tasks = long_tasks_while_panning(page, page.locator("#timeline-canvas"), shift=True)
            assert tasks <= MOST_SHARE * STEPS, f"{button}: {tasks} of {STEPS} steps took too long"


def test_the_table_stands_without_scripts_and_the_slots_are_data(chromium_browser: Browser, staged: Site) -> None:
    path = f"/plans/{staged.stored['plan']}"
    with visiting(chromium_browser, staged.url, java_script_enabled=False) as visitor:
        page = visitor.page
        page.goto(f"{staged.url}{path}?lang=zh")
        expect(page.locator("#timeline-box")).to_be_hidden()
        expect(page.get_by_role("link", name="Chrome trace")).to_be_visible()
        page.get_by_role("link", name="各阶段的秒数").click()
        expect(page.locator("tbody tr")).to_have_count(32)
        expect(page.locator("main")).to_contain_text("32 个阶段")
    with plain_http.Client(base_url=staged.url) as reader:
        answer = reader.get(f"{path}/timeline?lang=zh")
        assert answer.headers["content-encoding"] == "gzip"
        assert len(answer.json()["slots"]) == 32
        assert answer.json()["words"]["bubble"] == "空泡"
        assert reader.get("/plans/p_missing1/timeline").status_code == 404
        assert reader.get("/plans/p_missing1/stages").status_code == 404
