"""The page of a new search: tabs of ways to start, and choices that follow the hardware profile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from api.http.languages import texts
from tests.ui.conftest import visiting
from tests.ui.test_accessibility import violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from autodeploy.messages import Language
    from tests.ui.conftest import Site, Visitor

FITS = "document.documentElement.scrollWidth <= window.innerWidth"


@pytest.mark.parametrize(
    ("width", "lang", "scheme"), [(390, "zh", "dark"), (1024, "en", "light"), (1440, "zh", "light")]
)
def test_ways_are_tabs_for_pointer_and_keyboard(
    chromium_browser: Browser, site: Site, width: int, lang: Language, scheme: str
) -> None:
    viewport = {"width": width, "height": 900}
    with visiting(chromium_browser, site.url, color_scheme=scheme, viewport=viewport) as visitor:
        page = visitor.open(f"/new?lang={lang}")
        expect(page.get_by_role("tab")).to_have_count(4)
        expect(page.locator("#fields")).to_be_visible()
        expect(page.locator("#paste")).to_be_hidden()
        page.get_by_role("tab", name=texts(lang)["new.from_config"]).click()
        expect(page.locator("#fields")).to_be_hidden()
        expect(page.locator("#paste-lead")).to_have_text(texts(lang)["new.paste_lead"])
        assert "model_type" in (page.locator("#spec-text").get_attribute("placeholder") or "")
        expect(page.locator("#paste .optional").first).to_be_hidden()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=texts(lang)["new.from_script"])).to_be_focused()
        expect(page.get_by_role("tab", selected=True)).to_have_text(texts(lang)["new.from_script"])
        endings = page.locator("#paste input[type=file]").get_attribute("accept") or ""
        assert set(endings.split(",")) == {".sh", ".yaml", ".yml", ".toml"}
        assert page.url.endswith("#script")
        assert page.evaluate(FITS)
        assert violations(page) == []
        page.reload()
        expect(page.get_by_role("tab", selected=True)).to_have_text(texts(lang)["new.from_script"])
        page.get_by_role("tab", selected=True).focus()
        page.keyboard.press("Home")
        expect(page.locator("#fields")).to_be_visible()


def test_choices_follow_the_profile(visitor: Visitor) -> None:
    page = visitor.open("/new?lang=en")
    profile, cards, grade = (page.locator(f"#f-cluster-{name}") for name in ("profile", "num_npus", "device"))
    batch = page.locator("#f-training-global_batch_size")
    assert grade.locator("option").all_inner_texts() == ["profile default (910C)", "910C", "910C-560T"]
    profile.select_option("ascend-800t-a2")
    assert "910B3" in grade.locator("option").all_inner_texts()
    assert "910C" not in grade.locator("option").all_inner_texts()
    expect(cards).to_have_value("128")
    expect(batch).to_have_value("5120")
    expect(page.locator("#f-cluster-num_npus-help")).to_contain_text("8 per node; e.g. 128, or 16 nodes")
    grade.select_option("910B2")
    cards.fill("64")
    profile.select_option("cloudmatrix-384")
    expect(cards).to_have_value("64")  # what was typed stays
    expect(batch).to_have_value("15360")
    expect(grade).to_have_value("")  # this profile has no such grade


def test_a_number_as_people_write_it_starts_a_search(visitor: Visitor) -> None:
    page = visitor.open("/new?lang=en")
    page.locator("#f-model").select_option("qwen3-30b-a3b")
    page.locator("#f-cluster-num_npus").fill("8 nodes")
    page.locator("#f-training-seq_length").fill("4k")
    page.locator("#f-training-tokens").fill("1T")
    page.locator("#fields button").last.click()
    page.wait_for_url("**/searches/srch_*")
    page.locator("section.best").wait_for(timeout=30_000)
    expect(page.locator("main")).to_contain_text("64 cards")


def test_a_pasted_file_with_faults_is_shown_in_its_own_way(visitor: Visitor) -> None:
    page = visitor.open("/new?lang=en#config")
    page.locator("#spec-text").fill(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 64}))
    page.locator("#paste button").last.click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("tab", selected=True)).to_have_text("A model's config.json")
    expect(page.locator("#spec-text")).to_be_visible()
    visitor.faults = [fault for fault in visitor.faults if "422" not in fault]
