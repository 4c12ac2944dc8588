"""A plan's page, the comparison, tags and notes, and pasted files, walked in Chromium with the real planner."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import expect

from autodeploy.formats.import_document import import_document
from autodeploy.specs.reading import read_spec_document
from tests.support import plain_http
from tests.ui.conftest import SPEC, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from autodeploy.messages import Language
    from tests.ui.conftest import Site

FILES = Path(__file__).parents[1] / "launch_files"


def test_a_plan_shows_its_pipeline_and_its_groups(chromium_browser: Browser, planned: Site) -> None:
    """In Chinese; `test_timeline` has it in English."""
    lang = "zh"
    with visiting(chromium_browser, planned.url, color_scheme="dark") as visitor:
        page = visitor.open(f"/searches/{planned.stored['search']}?lang={lang}")
        page.locator("#open-plan").click()
        page.wait_for_url(re.compile(rf"/plans/p_\w+\?lang={lang}"))
        visitor.wait_for_charts()
        page.locator("#timeline").scroll_into_view_if_needed()
        page.wait_for_selector("#timeline-box[data-drawn]")
        for name in ("#chart-groups svg.main-svg", "#timeline-canvas"):
            box = page.locator(name).first.bounding_box()
            assert box is not None
            assert box["width"] > 300
        expect(page.locator("section", has=page.locator("#groups")).locator("tbody tr").first).to_contain_text("TP")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_turning_a_knob_asks_for_a_new_estimate(chromium_browser: Browser, planned: Site) -> None:
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"/plans/{planned.stored['plan1']}?lang=en")
        expect(page.locator("#what-if-button")).to_be_hidden()
        page.get_by_label("Micro batch").select_option("2")
        page.wait_for_selector("#what-if-answer[data-answered='1']")
        step = page.locator("[data-key='step_time_s']")
        expect(step).to_have_text(re.compile(r"^\d+\.\d+$"))
        with_scripts = step.inner_text()
        memory = page.locator("[data-key='peak_memory_gib']").inner_text()
        chance = page.locator("[data-key='p_fits']").inner_text()
    answer = plain_http.post(
        f"{planned.url}/plans/{planned.stored['plan1']}/what-if?lang=en", data={"micro_batch_size": "2"}
    )
    assert answer.status_code == 200
    assert f'data-key="step_time_s">{with_scripts}<' in answer.text, "the form says what the script says"
    assert f'data-key="peak_memory_gib">{memory}<' in answer.text
    assert f'data-key="p_fits">{chance}<' in answer.text.replace("&gt;", ">").replace("&lt;", "<")


def test_cards_batch_and_lengths_are_asked_for_too_and_kept_in_the_address(
    chromium_browser: Browser, planned: Site
) -> None:
    """Half of the cards take longer; the address that results shows the same to whoever opens it."""
    path = f"/plans/{planned.stored['plan1']}"
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"{path}?lang=en")
        for label, value in (("Cards", "8"), ("Sequence length", "2048")):
            page.get_by_label(label, exact=True).fill(value)
            with page.expect_response("**/what-if*") as answered:
                page.get_by_label(label, exact=True).press("Tab")
            assert answered.value.ok
        page.wait_for_selector("#what-if-answer[data-answered='2']")  # an answer is shown after it has come
        step = page.locator("[data-key='step_time_s']")
        expect(step).to_have_text(re.compile(r"^\d+\.\d+$"))
        expect(page.locator("[data-key='interval']")).to_have_text(re.compile(r"^[\d.]+ – [\d.]+$"))
        expect(page.locator("[data-part='compute_s']")).not_to_have_text("–")
        with_scripts, address = step.inner_text(), page.url
        assert "num_npus=8" in address
        assert "seq_length=2048" in address
        assert "tp=" not in address
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector("#what-if-answer[data-answered='1']")
        expect(page.get_by_label("Cards", exact=True)).to_have_value("8")
        expect(step).to_have_text(with_scripts)
    form = {"num_npus": "8", "seq_length": "2048", "global_batch_size": "64", "tp": "2"}
    answer = plain_http.post(f"{planned.url}{path}/what-if?lang=en", data=form)
    assert answer.status_code == 200
    assert f'data-key="step_time_s">{with_scripts}<' in answer.text, "the form says what the script says"
    assert plain_http.post(f"{planned.url}{path}/what-if?lang=en", data={"num_npus": "none"}).status_code == 422


def test_hardware_is_turned_and_both_steps_are_drawn(chromium_browser: Browser, planned: Site) -> None:
    """A slower chip takes longer and so fills the bar, whose scale this plan's shares; the form draws the same."""
    path = f"/plans/{planned.stored['plan1']}"
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"{path}?lang=en")
        with page.expect_response("**/what-if*") as answered:
            page.get_by_label("Chip grade").select_option("910B4")
        assert answered.value.ok
        expect(page.get_by_label("Usable HBM (GiB)")).to_have_value("30.5")
        with page.expect_response("**/what-if*") as answered:
            page.get_by_label("Link: between nodes (GB/s per card)").fill("5")
            page.get_by_label("Link: between nodes (GB/s per card)").press("Tab")
        sent = parse_qs(answered.value.request.post_data)
        assert sent["device"] == ["910B4"]
        assert sent["scale_out.gb_per_s_per_npu"] == ["5"]
        expect(page.locator("#what-if-answer[data-answered='2']")).to_be_visible()
        total = "all => all.reduce((sum, r) => sum + Number(r.getAttribute('width')), 0)"
        now, after = (page.locator(f"#what-if-{name} svg rect").evaluate_all(total) for name in ("now", "changed"))
        step = page.locator("[data-key='step_time_s']").inner_text()
        assert "device=910B4" in page.url
    assert after == pytest.approx(1000.0, abs=1.0)
    assert 200.0 < now < 950.0
    form = {"device": "910B4", "scale_out.gb_per_s_per_npu": "5"}
    answer = plain_http.post(f"{planned.url}{path}/what-if?lang=en", data=form).text
    assert f'data-key="step_time_s">{step}<' in answer
    bars = answer[answer.index('id="what-if-now"') : answer.index('id="what-if-now"') + 12_000].split("</svg>")[:2]
    widths = [sum(float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', bar)) for bar in bars]
    assert widths == [pytest.approx(now, abs=1.0), pytest.approx(1000.0, abs=1.0)]
    bad = plain_http.post(f"{planned.url}{path}/what-if?lang=en", data={"usable_hbm_gib": "-3"})
    assert bad.status_code == 422
    assert "usable_hbm_gib: -3 is outside" in bad.text


def test_what_was_changed_is_searched_and_exported(chromium_browser: Browser, planned: Site) -> None:
    """The turned axis is fixed in the spec that /new offers, which is accepted; the script is of the change."""
    path = f"/plans/{planned.stored['plan1']}"
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"{path}?lang=en")
        page.get_by_label("Cards", exact=True).fill("8")
        page.get_by_label("Micro batch").select_option("2")
        with page.expect_download() as started:
            page.get_by_role("button", name="Launch file for").click()
        read = import_document(started.value.path().read_text(), "launch.sh").document
        assert read["strategy"]["micro_batch_size"] == 2
        assert read["cluster"]["num_npus"] == 8
        page.get_by_role("button", name="Search from here").click()
        offered = json.loads(page.locator("#spec-text").input_value())
        assert offered["cluster"]["num_npus"] == 8
        assert offered["search"]["fix"] == {"tp": 2, "micro_batch_size": 2}
        assert offered["search"]["allow"] == {"pp": [2, 4]}
        page.locator("#paste").get_by_role("button", name="Search").click()
        page.wait_for_url(re.compile(r"/searches/srch_"))
    with plain_http.Client(base_url=planned.url) as reader:
        illegal = reader.post(f"{path}/script?lang=zh", data={"pp": "32"})
        assert illegal.status_code == 422
        assert "/strategy" in illegal.text
        assert re.search("[\u4e00-\u9fff]", illegal.text.split('role="alert"')[1].split("</section>")[0])
        assert reader.post(f"{path}/search", data={"num_npus": "0"}).status_code == 422
        for box in ("script", "search"):
            assert reader.post(f"/plans/p_missing1/{box}").status_code == 404
            foreign = reader.post(f"{path}/{box}", headers={"Origin": "https://elsewhere.example"})
            assert foreign.status_code == 403


def test_values_that_cannot_be_launched_are_grey_and_say_why(chromium_browser: Browser, planned: Site) -> None:
    path = f"/plans/{planned.stored['plan1']}"
    told = plain_http.get(f"{planned.url}{path}/knobs?lang=en").json()
    assert "32" in told["pp"], "32 stages and TP2 are more than 16 cards"
    assert "2" not in told.get("tp", {})
    in_chinese = plain_http.get(f"{planned.url}{path}/knobs?lang=zh").json()
    assert in_chinese["pp"]["32"] != told["pp"]["32"]
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"{path}?lang=en")
        page.locator("#what-if-form").scroll_into_view_if_needed()
        page.wait_for_selector("#what-if-form[data-greyed='yes']")
        option = page.locator("#knob-pp option[value='32']")
        assert option.get_attribute("title") == told["pp"]["32"]
        assert "✕" in option.inner_text()
        assert page.locator("#knob-tp option[value='2']").get_attribute("title") is None
    assert plain_http.get(f"{planned.url}/plans/p_missing1/knobs").status_code == 404


def test_a_model_without_experts_has_no_knob_of_them(chromium_browser: Browser, planned: Site) -> None:
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"/plans/{planned.stored['plan1']}?lang=en")
        expect(page.get_by_label("TP", exact=True)).to_be_visible()
        assert page.get_by_label("EP", exact=True).count() == 0
        assert page.get_by_label("Routing imbalance, sustained", exact=True).count() == 0


def test_a_knob_that_cannot_be_turned_says_why(chromium_browser: Browser, planned: Site) -> None:
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"/plans/{planned.stored['plan1']}?lang=en")
        page.get_by_label("PP", exact=True).select_option("32")
        expect(page.locator("#what-if-errors")).to_contain_text("etp x ep x pp")
        assert "422" in visitor.faults.pop()


def test_why_not_answers_without_scripts_and_ablation_can_be_asked_for(
    chromium_browser: Browser, planned: Site
) -> None:
    with visiting(chromium_browser, planned.url, java_script_enabled=False) as visitor:
        page = visitor.page
        page.goto(f"{planned.url}/searches/{planned.stored['search']}?lang=en")
        page.get_by_label("Change", exact=True).fill("tp=8, pp=2")
        page.get_by_role("button", name="Why not?").click()
        expect(page.locator("section", has=page.locator("#why-not")).get_by_role("status")).not_to_be_empty()
        page.get_by_label("Change", exact=True).fill("nonsense")
        page.get_by_role("button", name="Why not?").click()
        expect(page.get_by_role("alert")).to_contain_text("AXIS=VALUE")
        assert "422" in visitor.faults.pop()
        page.goto(f"{planned.url}/plans/{planned.stored['plan1']}?lang=en")
        # `test_every_answer` sends this form, and reads what it answers.
        form = page.locator("#ablation + form")
        expect(form).to_have_attribute("action", f"/plans/{planned.stored['plan1']}/ablation?lang=en#ablation")
        expect(form).to_have_attribute("method", "post")
        expect(form.get_by_role("button")).to_be_enabled()


def test_chosen_plans_are_compared(chromium_browser: Browser, planned: Site) -> None:
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"/searches/{planned.stored['search']}?lang=en")
        page.get_by_role("button", name="Compare").click()
        page.wait_for_url(re.compile(r"/compare\?"))
        assert page.locator("thead th").count() == 3
        assert page.locator("tbody").first.locator("tr").count() > 1
        expect(page.get_by_text("sequence length", exact=True)).to_have_count(0)
        script = page.locator("pre.diff").first
        expect(script.locator("ins").first).to_be_visible()
        assert script.locator("ins").count() + script.locator("del").count() > 1
        assert not any(line.lstrip("+- ").startswith("#") for line in script.inner_text().splitlines())
    with plain_http.Client(base_url=planned.url) as reader:
        first = planned.stored["plan1"]
        assert "Choose two to five" in reader.get(f"/compare?plans={first}&lang=en").text
        assert reader.get(f"/compare?plans={first},p_aaaaaaaa").status_code == 404
        both = reader.get(f"/compare?plans={first},{planned.stored['plan2']}&lang=zh")
        assert "方案对比" in both.text
        assert "★" in both.text


def test_searches_are_compared_from_the_list(chromium_browser: Browser, planned: Site) -> None:
    """Two boxes of the list lead to the best plans of both, with a bar each, the longer step to the full width."""
    shorter = {**SPEC, "training": {"seq_length": 4096, "global_batch_size": 32}}
    other = planned.services.searches.plan_and_store(read_spec_document(shorter)).plans[0].plan_id
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open("/?lang=zh")
        for plan_id in (planned.stored["plan1"], other):
            page.locator(f"input[name=plans][value={plan_id}]").first.check()
        page.get_by_role("button", name="对比").click()
        page.wait_for_url(re.compile(r"/compare\?.*lang=zh"))
        assert page.locator("thead th").count() == 3
        widths = [
            bar.locator("rect").evaluate_all("all => all.reduce((sum, r) => sum + Number(r.getAttribute('width')), 0)")
            for bar in page.locator("svg.bar").all()
        ]
    long, short = sorted(widths, reverse=True)
    assert long == pytest.approx(1000.0, abs=1.0)
    assert 400.0 < short < 650.0, "half of the batch takes a little more than half of the time"


def test_tags_and_notes_are_kept_and_found(chromium_browser: Browser, planned: Site) -> None:
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open(f"/searches/{planned.stored['search']}?lang=en#about")
        page.get_by_label("Tags, separated by commas").fill("baseline, v3")
        page.get_by_label("Note", exact=True).fill("<b>before the move</b>")
        page.get_by_role("button", name="Save").click()
        page.wait_for_load_state()
        page = visitor.open("/?lang=en")
        page.locator("a.chip", has_text="v3").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody")).to_contain_text("<b>before the move</b>")
    with plain_http.Client(base_url=planned.url) as reader:
        assert "No search matches" in reader.get("/?tag=nothing&lang=en").text
        refused = reader.post(f"/searches/{planned.stored['search']}/notes", data={"tags": "x" * 100})
        assert refused.status_code == 422
        foreign = {"origin": "http://elsewhere.example"}
        for path in ("notes", "cancel"):
            assert reader.post(f"/searches/{planned.stored['search']}/{path}", headers=foreign).status_code == 403


def test_the_list_is_sorted_by_its_titles(chromium_browser: Browser, site: Site) -> None:
    column = "rows => rows.map(row => Number(row.cells[2].textContent))"
    with visiting(chromium_browser, site.url) as visitor:
        page = visitor.open("/?lang=en&profile=cloudmatrix-384")
        for direction in ("descending", "ascending"):
            page.get_by_role("link", name="Cards").press("Enter")
            expect(page.get_by_role("columnheader", name="Cards")).to_have_attribute("aria-sort", direction)
            cards = page.locator("tbody tr").evaluate_all(column)
            assert len(set(cards)) > 1
            assert cards == sorted(cards, reverse=direction == "descending")
        expect(page.locator("select[name=profile]")).to_have_value("cloudmatrix-384")


def test_a_pasted_script_is_read_as_it_stands(chromium_browser: Browser, planned: Site) -> None:
    with visiting(chromium_browser, planned.url) as visitor:
        page = visitor.open("/new?lang=en")
        status = page.locator("#paste-status")
        page.locator("#way-of-script").click()
        page.locator("#spec-text").fill((FILES / "mindspeed_moe.sh").read_text())
        expect(status).to_contain_text("choose the cluster below the text")
        page.locator("#paste-cluster").select_option("cloudmatrix-384")
        expect(status).to_contain_text("launch script")
        expect(status).to_contain_text("--some-flag-of-ours")
        page.locator("#spec-text").fill('torchrun x.py --num-layers "')
        expect(status).to_contain_text("line 1")
        page.locator("#spec-text").fill('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}')
        expect(status).to_contain_text("/")


def test_a_pasted_configuration_begins_a_search(site: Site) -> None:
    config = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
      "vocab_size": 32000, "hidden_act": "silu"}"""
    beside = {"cluster": "cloudmatrix-384", "num_npus": "16", "seq_length": "4096", "global_batch_size": "64"}
    with plain_http.Client(base_url=site.url, timeout=30.0) as reader:
        answer = reader.post("/new", data={"form": "paste", "spec": config, **beside})
        assert answer.status_code == 303, answer.text
        missing = reader.post("/new", data={"form": "paste", "spec": config, **beside, "global_batch_size": ""})
        assert missing.status_code == 422
        assert "global_batch_size" in missing.text
        path = reader.post("/new", data={"form": "paste", "spec": config, **beside, "cluster": "/etc/passwd"})
        assert path.status_code == 422
    found = site.services.searches.get(answer.headers["location"].removeprefix("/searches/")).plan_set
    assert found.search.spec["model"]["hidden_size"] == 4096


def test_an_empty_comparison_offers_the_newest_plans(chromium_browser: Browser, site: Site) -> None:
    lang: Language = "zh"
    with visiting(chromium_browser, site.url) as visitor:
        page = visitor.open(f"/compare?lang={lang}")
        boxes = page.locator("input[name='plans'][type='checkbox']")
        assert boxes.count() >= 2
        assert page.locator("input[name='plans'][type='checkbox']:checked").count() == 2
        page.locator("button.primary").click()
        page.wait_for_url(re.compile(r"/compare\?.*plans=p_\w+.*plans=p_\w+"))
        assert page.locator("thead th").count() == 3
        assert page.evaluate("document.documentElement.lang").startswith(lang)


def test_an_empty_comparison_without_plans_says_what_it_is_for(empty_site: Site) -> None:
    page = plain_http.get(f"{empty_site.url}/compare?lang=en").text
    assert "Only what differs is shown" in page
    assert "checkbox" not in page
