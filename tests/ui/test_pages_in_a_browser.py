"""A person walks through the pages in Chromium; every visit ends by checking that nothing went wrong in it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from api.ui.rendering import PLOTLY
from tests import factories
from tests.support import plain_http
from tests.ui.conftest import visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Response

    from tests.ui.conftest import Site, Visitor

WEIGHT_LIMIT = 1.5e6  # of a search's page with all that it fetches, beside plotly.js
CHARTS = ("chart-time", "chart-memory", "chart-pareto", "chart-layers")


def test_past_searches_lead_to_a_search(visitor: Visitor, site: Site) -> None:
    page = visitor.open("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Searches")
    assert page.locator("tbody tr").count() >= len(site.stored)
    page.locator("tbody tr", has_text="134.2 s").get_by_role("link").click()
    page.wait_for_url(re.compile(r"/searches/srch_"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("DeepSeek-V3")


def test_a_search_shows_its_best_plan_first_and_charts_that_answer_the_pointer(visitor: Visitor, site: Site) -> None:
    answers: list[Response] = []

    def note(answer: Response) -> None:
        answers.append(answer)

    visitor.page.on("response", note)
    page = visitor.open(f"/searches/{site.stored['good']}#pictures", charts=True)
    page.wait_for_load_state("networkidle")
    page.remove_listener("response", note)
    own = {answer.url: len(answer.body()) for answer in answers if PLOTLY not in answer.url}
    assert len(own) < len(answers)
    assert 10_000 < sum(own.values()) <= WEIGHT_LIMIT, own
    best = page.locator("section.best")
    for degree in ("TP2", "PP16", "VPP2", "EP32", "DP24"):
        expect(best.locator(".axes b", has_text=degree)).to_be_visible()
    expect(best.get_by_role("link", name="Launch file for MindSpeed-LLM")).to_be_visible()
    for text in (
        "134.2 s per step, 1.1 times as fast",
        "1,221",
        "38.0 %",
        "55.5 GiB",
        "377",
        "as fast as the reference (1F1B)",
    ):
        expect(best).to_contain_text(text)
    assert page.locator("section", has=page.locator("#ranked")).locator("tbody tr").count() == 6
    for name in CHARTS:
        box = page.locator(f"#{name} svg.main-svg").first.bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 150
    assert page.locator("#chart-time .trace.bars").count() == 11
    assert page.locator("#chart-time .trace.bars path").count() == 11 * 6
    _answer_the_pointer(page)
    page.get_by_role("tab", name="Plans").click()
    page.get_by_role("link", name="PP16 VPP2 EP48").first.click()
    expect(page.locator("#plan-2")).to_have_attribute("open", "")


def _answer_the_pointer(page: Page) -> None:
    bar = page.locator("#chart-time .trace.bars path").first
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#chart-time .hoverlayer")).to_contain_text("62.0 %")


def test_the_browsers_language_is_spoken(chromium_browser: Browser, site: Site) -> None:
    with visiting(chromium_browser, site.url, locale="zh-CN") as visitor:
        expect(visitor.open("/").get_by_role("heading", level=1)).to_have_text("搜索记录")


def test_an_infeasible_search_says_what_would_fit(visitor: Visitor, site: Site) -> None:
    page = visitor.open(f"/searches/{site.stored['infeasible']}")
    expect(page.locator(".alert")).to_contain_text("memory_fits")
    expect(page.locator(".alert")).to_contain_text("/cluster/num_npus: 64")
    assert page.locator(".chart").count() == 0


def test_a_failed_search_says_so(visitor: Visitor, site: Site) -> None:
    failed = site.stored["failed"]
    expect(visitor.open(f"/searches/{failed}").locator(".alert")).to_contain_text(failed)


def test_faults_of_the_form_stand_beside_their_fields(chromium_browser: Browser, site: Site) -> None:
    with visiting(chromium_browser, site.url) as visitor:
        page = visitor.open("/new")
        page.get_by_label("Cards", exact=True).fill("many")
        page.locator("#fields").get_by_label("Global batch (sequences)").fill("0")
        page.locator("#fields").get_by_role("button", name="Search").click()
        expect(page.get_by_role("alert")).to_contain_text("Invalid document")
        expect(page.locator("[data-pointer='/cluster/num_npus'] .errors")).not_to_be_empty()
        expect(page.locator("[data-pointer='/training/global_batch_size'] .errors")).not_to_be_empty()
        expect(page.get_by_label("Cards", exact=True)).to_be_focused()
        assert page.get_by_label("Cards", exact=True).get_attribute("aria-invalid") == "true"
        assert page.locator("#fields").get_by_label("Sequence length").get_attribute("aria-invalid") is None
        # The browser reports every refused request; this one was on purpose.
        assert len(visitor.faults) == 1
        assert "422" in visitor.faults.pop()


def test_a_search_is_made_by_the_form_and_seen_to_its_end(visitor: Visitor) -> None:
    page = visitor.open("/new")
    page.locator("#f-model").select_option("qwen3-30b-a3b")
    page.get_by_label("Cards", exact=True).fill("64")
    page.locator("#fields").get_by_role("button", name="Search").click()
    page.wait_for_url(re.compile(r"/searches/srch_"))
    page.locator("section.best").wait_for(timeout=30_000)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Qwen3")


def test_a_batch_that_was_meant_in_tokens_is_asked_about(chromium_browser: Browser, site: Site) -> None:
    with visiting(chromium_browser, site.url) as visitor:
        page = visitor.open("/new")
        page.locator("#fields").get_by_label("Global batch (sequences)").fill("4194304")
        page.locator("#fields").get_by_role("button", name="Search").click()
        expect(page.get_by_role("alert")).to_contain_text("Global batch (sequences)")
        expect(page.locator("#fields")).to_contain_text("if tokens were meant, write 1,024")
        page.get_by_label("Search anyway").check()
        page.locator("#fields").get_by_role("button", name="Search").click()
        page.wait_for_url(re.compile(r"/searches/srch_"))
        page.locator("section.best").wait_for(timeout=30_000)
        assert len(visitor.faults) == 1
        assert "422" in visitor.faults.pop()


def test_a_search_that_waits_shows_its_place_and_no_empty_numbers(visitor: Visitor, site: Site) -> None:
    slow = factories.spec(model=factories.DEEPSEEK_V3 | {"name": "slow"})
    asked = [site.services.searches.submit(slow).search.id for _ in range(4)]
    page = visitor.open(f"/searches/{asked[-1]}")
    expect(page.locator("#progress-queue")).to_be_visible()
    expect(page.locator("#progress-queue [data-count='position']")).to_have_text(re.compile(r"^\d+$"))
    expect(page.locator("#progress-live")).to_be_hidden()
    for search_id in asked[:-1]:
        site.services.searches.cancel(search_id)
    expect(page.locator("#progress-live")).to_be_visible(timeout=30_000)
    expect(page.locator("#progress-queue")).to_be_hidden()
    site.services.searches.cancel(asked[-1])
    expect(page.get_by_role("heading", level=1)).to_contain_text("cancelled", timeout=30_000)


def test_a_running_search_is_watched_and_cancelled(visitor: Visitor, site: Site) -> None:
    spec = factories.spec(model=factories.DEEPSEEK_V3 | {"name": "slow"})
    search_id = site.services.searches.submit(spec).search.id
    page = visitor.open(f"/searches/{search_id}")
    solved = page.locator("[data-count='solved']")
    expect(solved).to_have_text(re.compile(r"^\d+$"), timeout=30_000)
    before = int(solved.inner_text())
    page.wait_for_function(f"() => Number(document.querySelector('[data-count=solved]').textContent) > {before}")
    expect(page.locator("[data-seconds='incumbent_s']")).to_have_text(re.compile(r"^\d+\.\d+ s$"))
    page.get_by_text("Rejected, by rule").click()
    expect(page.locator("#progress-rules tbody tr").first).to_contain_text("expert_world_divides120,00065.1 %")
    steps = "() => document.querySelector('#progress-curve path.best').getAttribute('d').split('V').length > 4"
    page.wait_for_function(steps)
    best, bound = (page.locator(f"#progress-curve path.{name}").get_attribute("d") or "" for name in ("best", "bound"))
    falls, rises = (re.findall(r"V([\d.]+)", path) for path in (best, bound))
    assert len(falls) > 3
    assert [float(y) for y in falls] == sorted(map(float, falls)), "better steps lie lower in the picture"
    assert [float(y) for y in rises] == sorted(map(float, rises), reverse=True)
    expect(page.locator("#progress-curve [role='img']")).to_have_accessible_name("Best step so far Proven bound")
    expect(page.locator("#progress-message")).to_have_text(re.compile(r"^Best step so far: 1\d\d\.\d s$"))
    page.get_by_role("button", name="Cancel the search").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("cancelled", timeout=30_000)
    assert site.services.searches.status(search_id) == "cancelled"


def test_the_first_visit_tells_how_to_begin(chromium_browser: Browser, empty_site: Site) -> None:
    with visiting(chromium_browser, empty_site.url) as visitor:
        page = visitor.open("/")
        expect(page.get_by_role("heading", level=2)).to_have_text("No searches yet")
        expect(page.locator(".empty")).to_contain_text(f"curl {empty_site.url}/v1/searches")
        expect(page.locator(".empty")).to_contain_text("autodeploy plan")


def test_pages_are_walked_by_keyboard(visitor: Visitor) -> None:
    page = visitor.open("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_pages_answer_quickly(site: Site) -> None:
    for _ in range(2):
        began_s = time.perf_counter()
        plain_http.get(f"{site.url}/searches/{site.stored['good']}")
        took_s = time.perf_counter() - began_s
    assert took_s < 1.0  # generous: the machine may be busy with other tests
