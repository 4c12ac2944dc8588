"""Answers of forms, faults, and post-training in both languages and colour schemes: what axe-core says, and widths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from autodeploy.search import planner
from autodeploy.specs.spec import Spec
from tests.support import plain_http
from tests.support.rl_plans import DENSE, changed, rl_plan_set
from tests.ui.conftest import ALL_PARTS, WIDTHS, fits_every_width, visiting
from tests.ui.test_accessibility import ALL_FOLDS, judged, violations_in_both_schemes

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.conftest import Site

SEND = """([address, fields]) => {
  const form = Object.assign(document.createElement("form"), { method: "post", action: address });
  for (const [name, value] of Object.entries(fields)) {
    form.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
  }
  document.body.append(form);
  form.submit();
}"""
# The page of what is missing is one, whatever it is: `test_error_pages` reads what it says of each.
MISSING = ("/plans/p_none", "/searches/srch_none", "/profiles/none")
JUDGED = (
    *("/nothing/here", "/compare?plans={plan1}"),
    *("/searches/{rl}", "/plans/{rl_plan}", "/plans/{rl_plan}/operators", "/plans/{rl_plan}/stages"),
)
ELEMENTS = re.compile(r"<[a-z0-9]+(?: class=\"[^\"]*\")?")
NARROW, WIDE = ({"width": width, "height": 900} for width in (WIDTHS[0], WIDTHS[-1]))
ABLATION = "section[aria-labelledby='ablation']"
WHAT_IF, WHY_NOT = ("section[aria-labelledby='what-if']", "section[aria-labelledby='why-not']")
# Language, form, its fields, and the part of the page that answers; all rules see the rest of that page elsewhere.
# Neither language has colours or elements of its own, and `tests/integration` reads answers of forms in both;
# `test_clusters_compared` and `test_walk_through` judge the answers of forms that are sent there.
SENT: tuple[tuple[str, str, dict[str, str], str | None], ...] = (
    ("zh", "/plans/{plan1}/what-if", {"micro_batch_size": "2"}, WHAT_IF),
    ("en", "/plans/{plan1}/what-if", {"tp": "16", "pp": "4"}, f"{WHAT_IF} .alert"),
    ("en", "/plans/{plan1}/why-not", {"strategy": "tp=16,pp=1", "others": "plan"}, WHY_NOT),
    ("zh", "/plans/{plan1}/why-not", {"strategy": "nonsense"}, f"{WHY_NOT} .alert"),
    ("en", "/plans/{plan1}/ablation", {}, ABLATION),
    ("zh", "/plans/{plan1}/search", {"micro_batch_size": "2"}, "main"),
    ("en", "/searches/{search}/notes", {"tags": "x" * 100}, "main"),
    ("zh", "/new", {"form": "paste", "spec": "model: ["}, "main"),
)


@pytest.fixture(scope="module")
def post_trained(planned: Site) -> dict[str, str]:
    """Ids of a search and a plan of post-training, beside those of the site."""
    plan_set, plan = rl_plan_set(changed(DENSE, swap_optimizer=True))
    spec = Spec.model_validate(plan_set.search.spec)
    estimated = planner.estimate(spec.model_copy(update={"strategy": plan.strategy}))
    kept = planned.services.searches.keep(plan_set, spec, estimated)
    return planned.stored | {"rl": kept.search.id, "rl_plan": kept.plans[0].plan_id}


def test_what_is_missing_and_post_training(
    chromium_browser: Browser, planned: Site, post_trained: dict[str, str]
) -> None:
    with visiting(chromium_browser, planned.url, viewport=NARROW) as visitor:
        broken = {path: found for path in JUDGED if (found := judged(visitor, path.format(**post_trained)))}
        visitor.faults = [fault for fault in visitor.faults if "404" not in fault]
    assert broken == {}, broken


def test_what_is_missing_has_the_elements_of_one_page(site: Site) -> None:
    judged, *others = (
        plain_http.get(f"{site.url}{path}?lang=zh", headers={"Accept": "text/html"})
        for path in ("/nothing/here", *MISSING)
    )
    elements = set(ELEMENTS.findall(judged.text))
    assert len(elements) > 10
    for other in others:
        assert other.status_code == 404
        assert set(ELEMENTS.findall(other.text)) <= elements


def test_what_forms_answer(chromium_browser: Browser, planned: Site) -> None:
    broken: dict[str, list[str]] = {}
    with visiting(chromium_browser, planned.url, viewport=WIDE) as visitor:
        page = visitor.open("/")  # a form is sent from there, and from each answer the next
        for lang, path, fields, answer in SENT:
            filled = {name: value.format(**planned.stored) for name, value in fields.items()}
            with page.expect_navigation(timeout=120_000):
                page.evaluate(SEND, [f"{path.format(**planned.stored)}?lang={lang}", filled])
            fits_every_width(page)
            if answer == ABLATION:
                rows = page.locator(f"{ABLATION} tbody tr")
                expect(rows.first).to_contain_text("All features off")
                assert rows.count() > 4
            page.evaluate(ALL_PARTS)
            page.evaluate(ALL_FOLDS)
            if found := violations_in_both_schemes(page, within=answer):
                broken[f"{path} {fields}"] = found
        visitor.faults = [fault for fault in visitor.faults if "422" not in fault]
    assert broken == {}, broken
