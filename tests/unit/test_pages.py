"""What the pages say and in which language, without a server."""

from __future__ import annotations

import re
import string
from importlib.resources import files

import pytest

from api.http.languages import best_accepted, texts
from api.ui import formats, new_search_form
from api.ui.rendering import PLOTLY, SCRIPTS, STYLE, asset, asset_url, compressed, json_island
from api.ui.search_page import (
    bound_words,
    columns,
    dense_layers,
    expected,
    fate_kinds,
    fates,
    recommendation,
    recompute_words,
    rows,
    search_context,
    spec_text,
    step_shares,
    times_faster,
)
from api.ui.views import profile_page
from autodeploy.kit.errors import FieldError
from autodeploy.specs.planset import Breakdown, Rescaled
from autodeploy.specs.strategy import Recompute
from hardware_profiles import list_profiles, load_profile
from tests import factories

TEMPLATES = files("api.ui") / "templates"


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_both_languages_say_everything() -> None:
    english, chinese = texts("en"), texts("zh")
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert placeholders(text) == placeholders(chinese[key]), key
        assert text.strip()
        assert chinese[key].strip()


def test_templates_ask_only_for_texts_that_are_there() -> None:
    source = "".join(entry.read_text(encoding="utf-8") for entry in TEMPLATES.iterdir())
    asked = set(re.findall(r"""\bt\(["'"]([a-z_0-9.]+)["'"][,)]""", source))
    assert len(asked) > 80
    assert all(texts("en")[key] for key in asked)


def test_templates_have_no_inline_code_or_style() -> None:
    for entry in TEMPLATES.iterdir():
        source = entry.read_text(encoding="utf-8")
        own = source.replace("<style>{{ style }}</style>", "") if entry.name == "paper.html" else source
        assert not re.search(r"\sstyle=|\son[a-z]+=|<style", own), entry.name
        assert not re.search(r"https?://", source), entry.name


@pytest.mark.parametrize(
    ("header", "lang"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("de,en;q=0.5,zh;q=0.7", "zh"),
        ("fr", "en"),
        ("zh;q=0,en;q=0.1", "en"),
        ("zh;q=x", "en"),
        ("en-GB, zh", "en"),
    ],
)
def test_accepted_languages(header: str, lang: str) -> None:
    assert best_accepted(header) == lang


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formats.seconds(61.234567), "61.23 s"),
        (formats.seconds(134.24), "134.2 s"),
        (formats.seconds(1204.4), "1,204 s"),
        (formats.seconds(0.8124), "812 ms"),
        (formats.seconds(0.0124), "12.4 ms"),
        (formats.seconds(0.0), "0 s"),
        (formats.seconds(None), "–"),
        (formats.compact(14.8e12), "14.8T"),
        (formats.compact(469_000), "469k"),
        (formats.compact(384), "384"),
        (formats.days(365.2), "365"),
        (formats.days(3.44), "3.4"),
        (formats.percent(0.38), "38.0 %"),
        (formats.signed_percent(0.037), "+3.7 %"),
        (formats.signed_percent(-0.037), "−3.7 %"),
        (formats.gib(55.51), "55.5 GiB"),
        (formats.instant("2026-11-20T12:00:00Z"), "2026-11-20 12:00Z"),
        (formats.instant("2026-11-20T14:00:00+02:00"), "2026-11-20 12:00Z"),
        (formats.instant("soon"), "soon"),
        (formats.quantity(1600.0), "1,600"),
        (formats.quantity(353.9), "353.9"),
        (formats.quantity(1e-5), "1e-05"),
        (formats.product_name("mindspeed-llm"), "MindSpeed-LLM"),
    ],
)
def test_numbers_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


def test_the_bar_of_a_step_is_full() -> None:
    plan = factories.plan(1)
    shares = step_shares(plan.breakdown, plan.step_time_s, "en")
    assert sum(share.share for share in shares) == pytest.approx(1.0)
    assert shares[-1].start + shares[-1].share == pytest.approx(1.0)
    assert step_shares(Breakdown(), 0.0, "en") == ()


def test_rows_compare_with_the_best() -> None:
    lines = rows(factories.plan_set(3))
    assert [line.slower for line in lines[:3]] == [None, pytest.approx(0.037), pytest.approx(0.075369)]
    assert [line.reference for line in lines] == [False, False, False, True]


def test_a_swapped_optimizer_is_named() -> None:
    swapped = factories.plan(1, strategy=factories.strategy(1, swap_optimizer=True))
    assert rows(factories.plan_set(1, plans=(swapped,)))[0].swap == "unpermute, optimizer"


def test_the_table_has_columns_for_what_is_known() -> None:
    plan_set = factories.plan_set(3)
    known = set(columns(factories.cautious(plan_set))) - set(columns(plan_set))
    assert known == {"p_fits", "search.evidence", "regret"}
    assert all(texts("en")[key] for key in columns(plan_set))


def test_a_label_begins_with_a_capital_as_a_title() -> None:
    assert texts("en")["num_npus"] == texts("en")["knob.num_npus"] == "Cards"
    assert texts("en")["label.num_npus"] == "cards"
    assert texts("zh")["mfu"] == "MFU"
    assert texts("en")["report.counts"].startswith("{enumerated} strategies")
    with pytest.raises(KeyError):
        texts("en")["search.no_such_text"]


def test_nothing_slower_than_a_measured_run_is_called_faster() -> None:
    plan_set = factories.plan_set(2)
    assert times_faster(plan_set) == pytest.approx(1.037**3)
    best_s = plan_set.plans[0].step_time_s
    for measured_s, said in ((best_s * 1.01, True), (best_s * 0.99, False)):
        rescaled = Rescaled(
            ratio=1.0, measured_step_time_s=measured_s, predicted_step_time_s=measured_s, run="r", source="s"
        )
        assert (times_faster(plan_set.model_copy(update={"rescaled": rescaled})) is not None) == said


def test_what_is_compared_with_is_named() -> None:
    faster = factories.plan(1, label="your script", step_time_s=100.0)
    found = recommendation(factories.plan_set(2, reference=faster), "en")
    assert found["reference"] == "your script"
    none = recommendation(factories.infeasible_plan_set(), "zh")
    assert none["evidence"] is none["fastest"] is None


def test_an_expectation_shows_where_it_reads_otherwise() -> None:
    assert expected(factories.plan(1)) is None
    assert expected(factories.plan(1, step_time_s=61.2, expected_step_time_s=61.2001)) is None
    assert expected(factories.plan(1, step_time_s=61.2, expected_step_time_s=63.4)) == "63.40 s"


def test_fates_cover_every_candidate_in_order_of_size() -> None:
    plan_set = factories.plan_set()
    shares = fates(plan_set)
    assert shares[0].key == "rejected:ranks_divide_by_tp_pp_cp"
    assert sum(share.amount for share in shares) == sum(plan_set.counts.rejected.values()) + 30_111 + 3_401 + 88
    assert shares[-1].start + shares[-1].share <= 1.0 + 1e-12
    kinds = fate_kinds(shares, "en")
    assert [kind.key for kind in kinds] == ["rejected", "too_big", "pruned", "solved"]
    assert sum(kind.amount for kind in kinds) == sum(share.amount for share in shares)
    assert sum(kind.share for kind in kinds) == pytest.approx(sum(share.share for share in shares))


def test_layers_without_experts() -> None:
    assert dense_layers({"num_hidden_layers": 4}) == {0, 1, 2, 3}
    model = {"num_hidden_layers": 6, "n_routed_experts": 8, "first_k_dense_replace": 2, "mlp_only_layers": [4]}
    assert dense_layers(model) == {0, 1, 4}


def test_recompute_in_words() -> None:
    assert recompute_words(Recompute()) == "–"
    assert recompute_words(Recompute(granularity="full", num_layers=3)) == "full × 3"
    assert recompute_words(Recompute(granularity="full"), "zh") == "全部"
    assert recompute_words(Recompute(granularity="selective", modules=("mla_up_proj", "norm"))) == "mla up proj, norm"


def test_a_bound_has_the_unit_of_its_objective() -> None:
    plan_set = factories.plan_set()
    assert bound_words(plan_set).endswith(" s")
    memory = plan_set.optimality.model_copy(update={"objective": "peak_memory", "bound": 50.0})
    assert bound_words(plan_set.model_copy(update={"optimality": memory})) == "50.0 GiB"


def test_a_search_without_plans_has_no_charts() -> None:
    context = search_context(factories.infeasible_plan_set(), "en")
    assert context["charts"] == {}
    assert context["best"] is None
    assert "null" not in spec_text(context["spec"])


def test_json_in_a_page_cannot_end_its_element() -> None:
    assert "<" not in json_island({"model": "</script><script>alert(1)</script> & \u2028"})


def test_form_fields_become_a_spec_and_faults_find_their_fields() -> None:
    form = new_search_form.sections([("deepseek-v3", "DeepSeek-V3")], [("cloudmatrix-384", "CloudMatrix 384")])
    values = new_search_form.start_values(form) | {"/training/tokens": "14.8e12", "/cluster/num_npus": "1,024"}
    document = new_search_form.spec_document(form, values)
    assert document["cluster"] == {"profile": "cloudmatrix-384", "num_npus": 1024}
    assert document["training"]["tokens"] == 14.8e12
    assert "memory_limit_gib" not in document["search"]
    typed = new_search_form.spec_document(form, values | {"/cluster/num_npus": "many"})
    assert typed["cluster"]["num_npus"] == "many"
    faults = [
        FieldError("/training/global_batch_size/value", "a"),
        FieldError("/model/x", "b"),
        FieldError("/modelling", "c"),
    ]
    placed, others = new_search_form.errors_by_field(form, faults)
    assert {pointer: [e.message for e in found] for pointer, found in placed.items()} == {
        "/training/global_batch_size": ["a"],
        "/model": ["b"],
    }
    assert [e.message for e in others] == ["c"]


@pytest.mark.parametrize("name", list_profiles())
def test_a_profile_page_has_every_number(name: str) -> None:
    profile = load_profile(name)
    document, page = profile.document.model_dump(mode="json"), profile_page(profile)
    numbers = [number for _, members in page.groups for number in members]
    assert {number.name for number in numbers} == set(profile.quantities)
    assert len(dict(page.groups)) == len(page.groups)

    def quantities(value: object) -> int:
        if isinstance(value, dict):
            return 1 if {"value", "unit", "kind", "source"} <= value.keys() else sum(map(quantities, value.values()))
        return sum(map(quantities, value)) if isinstance(value, list) else 0

    assert len(numbers) == quantities(document) == sum(n for _, n in page.by_kind)
    assert all(number.unit and number.kind and number.source for number in numbers)


def test_assets_change_their_address_with_their_content() -> None:
    plotly = asset(PLOTLY)
    assert plotly is not None
    assert len(compressed(PLOTLY)) < len(plotly.content) / 2
    assert asset_url("pages.css").startswith("/static/pages.css?v=")
    assert asset("../routes.py") is None
    assert asset("nothing.css") is None
    with pytest.raises(LookupError):
        asset_url("nothing.css")


def test_bundles_hold_every_script_and_style_sheet_once() -> None:
    shipped = {entry.name: entry.read_text().strip() for entry in (files("api.ui") / "static").iterdir()}
    scripts, style = (asset(name) for name in (SCRIPTS, STYLE))
    assert scripts is not None
    assert style is not None
    for name, text in shipped.items():
        bundle = {"js": scripts.content, "css": style.content, "svg": text.encode()}[name.rpartition(".")[2]].decode()
        assert bundle.count(text) == 1, name
    templates = files("api.ui") / "templates"
    assert not [t.name for t in templates.iterdir() if t.name != "base.html" and "<script src=" in t.read_text()]
    assert scripts.content.startswith(b'"use strict";'), "a directive holds only where it stands first"
