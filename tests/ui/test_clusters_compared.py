"""The page of comparisons tells what a plan's training takes and costs on other clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import visiting
from tests.ui.test_accessibility import violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.conftest import Site


@pytest.mark.parametrize(("lang", "scheme", "width"), [("en", "light", 1024), ("zh", "dark", 390)])
def test_two_clusters_with_prices_are_drawn_and_listed(
    chromium_browser: Browser, site: Site, lang: str, scheme: str, width: int
) -> None:
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    with visiting(chromium_browser, site.url, **options) as visitor:
        page = visitor.open(f"/compare?lang={lang}")
        form = page.locator("form[action*='/compare/clusters']")
        assert form.locator("select[name='cluster-0']").input_value() == "ascend-800t-a2"
        assert form.locator("select[name='cluster-1']").input_value() == "cloudmatrix-384"
        form.locator("select[name='cluster-0']").select_option(
            "cloudmatrix-384:910C-560T"
        )  # the quick planner has no other
        for name, value in (("tokens", "1T"), ("days", "300"), ("price-0", "1.2"), ("price-1", "2.6")):
            form.locator(f"input[name='{name}']").fill(value)
        form.get_by_role("button").click()
        section = page.locator("section[aria-labelledby='clusters']")
        expect(section.locator("tbody tr").first).to_be_visible()
        assert section.locator("tbody tr").count() >= 2
        assert section.get_by_role("cell", name="*", exact=True).count() >= 1
        visitor.wait_for_charts()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert violations(page) == []
        assert form.locator("input[name='price-1']").input_value() == "2.6", "what was typed stays"
        page.locator("a.language").click()
        expect(page.locator("h1")).to_be_visible()
        assert "/compare" in page.url


def test_a_mistake_is_told_beside_the_form_with_what_was_typed(chromium_browser: Browser, site: Site) -> None:
    with visiting(chromium_browser, site.url) as visitor:
        page = visitor.open("/compare?lang=en")
        for name, value in (("tokens", "many"), ("days", "30"), ("price-0", "-1"), ("price-1", "2.6")):
            page.locator(f"input[name='{name}']").fill(value)
        page.get_by_role("button", name="Compare days and cost").click()
        alert = page.locator("section[aria-labelledby='clusters'] [role=alert]")
        expect(alert).to_contain_text("/clusters/0/price_per_npu_hour")
        expect(alert).to_contain_text("/tokens")
        assert page.locator("input[name='tokens']").input_value() == "many"
        visitor.faults = [fault for fault in visitor.faults if "422" not in fault]
