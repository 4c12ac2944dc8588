"""From a model's config.json to a launch script of a changed plan, in one go, by keyboard, with the real planner."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from api.app import create_app
from autodeploy.formats.import_document import import_document
from autodeploy.kit.settings import Settings
from tests.ui.conftest import Site, fits_every_width, serving, visiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page

# A model with experts of nobody's, in the words of transformers.
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "router_aux_loss_coef": 0.001,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MOST_TABS, TABS_AT_ONCE = 200, 10
# Further tabs stay where they are wanted: each question between them takes as long as a tab.
HOLDS = """wanted => {
  window.wantedFocus = wanted;
  if (!window.holdsFocus) {
    addEventListener("keydown", (event) => {
      if (event.key === "Tab" && document.activeElement === window.wantedFocus) event.preventDefault();
    }, true);
  }
  window.holdsFocus = true;
}"""
SHOWS_FOCUS = """() => {
  window.wantedFocus = null;
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== "none" || style.boxShadow !== "none";
}"""


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with the real planner and no search."""
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path_factory.mktemp('walk') / 'pages.db'}", poll_s=0.1))
    with serving(app) as url:
        yield Site(url, app.state.services, {})


def test_from_a_configuration_to_the_script_of_a_changed_plan(chromium_browser: Browser, empty: Site) -> None:
    """In English; `test_walk_through` does most of it with a mouse, in Chinese too."""
    with visiting(chromium_browser, empty.url) as visitor:
        page = visitor.open("/new?lang=en")
        _go_to(page, page.locator("#way-of-preset"))
        page.keyboard.press("ArrowRight")  # of the tabs
        _go_to(page, page.locator("#spec-text"))
        page.keyboard.insert_text(json.dumps(CONFIG))
        _go_to(page, page.locator("#paste-cluster"))
        page.keyboard.type("ascend-800t")
        for name, value in (("num_npus", "16"), ("seq_length", "4k"), ("global_batch_size", "64")):
            _go_to(page, page.locator(f"#paste-{name}"))
            page.keyboard.type(value)
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/searches/srch_\w+"))
        page.locator("section.best").wait_for(timeout=120_000)
        expect(page.locator("section.best")).to_contain_text("TP")
        _go_to(page, page.locator("#open-plan"))
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/plans/p_"))
        for name, value in (("routing_imbalance", "2.0"), ("num_npus", "8")):
            _go_to(page, page.locator(f"#knob-{name}"))
            page.keyboard.press("ControlOrMeta+A")
            page.keyboard.type(value)
            page.keyboard.press("Tab")
            expect(page).to_have_url(re.compile(f"{name}={value}"), timeout=20_000)
        expect(page.locator("[data-key='against']")).to_contain_text("%", timeout=20_000)
        _go_to(page, page.get_by_role("link", name="Time by operator"))
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/operators"))
        rows = page.locator("section.card").first.locator("table").first.locator("tbody tr")
        taken_s = [float(each) for each in rows.locator("td:last-child").all_inner_texts()]
        assert len(taken_s) > 5
        assert taken_s[0] == max(taken_s), "the slowest operator stands first"
        fits_every_width(page)
        page.go_back()
        page.wait_for_url(re.compile(r"routing_imbalance=2.0"))
        assert page.locator("#knob-num_npus").input_value() == "8", "what was turned is still turned"
        assert page.locator("#knob-routing_imbalance").input_value() == "2.0"
        expect(page.locator("[data-key='against']")).to_contain_text("%", timeout=20_000)
        fits_every_width(page)
        _go_to(page, page.get_by_role("button", name="Launch file for"))
        with page.expect_download(timeout=60_000) as started:
            page.keyboard.press("Enter")
        document = import_document(started.value.path().read_text(), "launch.sh").document
        assert document["cluster"]["num_npus"] == 8
        _go_to(page, page.locator(".crumb a").nth(1))
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/searches/srch_\w+"))
        _go_to(page, page.get_by_role("button", name="Compare"))
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/compare\?"))
        expect(page.locator("pre.diff ins").first).to_be_visible()
        fits_every_width(page)


def _go_to(page: Page, wanted: Locator) -> None:
    """Presses Tab until an element has the focus, which can then be seen."""
    wanted.evaluate(HOLDS)
    for _ in range(MOST_TABS // TABS_AT_ONCE):
        for _ in range(TABS_AT_ONCE):
            page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            assert page.evaluate(SHOWS_FOCUS), "the focused element does not show it"
            return
    raise AssertionError(f"{wanted} is not reached by the keyboard")
