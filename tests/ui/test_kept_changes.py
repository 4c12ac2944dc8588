"""A change that was estimated in the what-if box is saved as a plan of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from autodeploy.specs.spec import Spec
from tests.ui.conftest import visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.conftest import Site


def test_a_change_becomes_a_plan_with_a_page(chromium_browser: Browser, planned: Site) -> None:
    before = planned.stored["plan1"]
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"/plans/{before}?lang=en")
        page.locator("#knob-recompute").select_option("full")
        expect(page.locator("[data-key='step_time_s']")).not_to_have_text("–", timeout=20_000)
        promised = page.locator("[data-key='step_time_s']").text_content()
        by_stage = (page.locator("[data-key='stages']").text_content() or "").split()
        assert max(map(float, by_stage)) == float(page.locator("[data-key='peak_memory_gib']").text_content() or 0)
        page.get_by_role("button", name="Save as a plan").click()
        page.wait_for_url(re.compile(r"/plans/p_\w+\?lang=en"))
        kept = re.search(r"p_\w+", page.url)
        assert kept is not None
        assert kept[0] != before
        expect(page.locator(".heading")).to_contain_text("recompute full")
        expect(page.locator(".heading .lead")).to_contain_text(f"{promised} s")
        page.locator(".crumb a").nth(1).click()
        expect(page.locator("main")).to_contain_text("no search compared it with others")
    view = planned.services.searches.plan(kept[0])
    assert view.plan.strategy.recompute.granularity == "full"
    assert by_stage == [f"{stage.total_gib:.1f}" for stage in view.plan.stages]
    assert not view.plan_set.reproducible
    # The search of the same spec is answered by the search, not by what was saved.
    again = planned.services.searches.plan_and_store(Spec.model_validate(view.plan_set.search.spec), reuse=True)
    assert again.plans[0].plan_id != kept[0]


def test_what_does_not_fit_is_not_saved(chromium_browser: Browser, planned: Site) -> None:
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"/plans/{planned.stored['plan1']}?lang=en")
        page.locator("#knob-usable_hbm_gib").fill("2")
        page.get_by_role("button", name="Save as a plan").click()
        expect(page.locator("section[aria-labelledby='what-if'] [role=alert]")).to_contain_text(
            "a plan that does not fit is not kept"
        )
        visitor.faults = [fault for fault in visitor.faults if "422" not in fault]
