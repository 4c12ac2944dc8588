"""Answers of forms, faults, and post-training in both languages and colour schemes: what axe-core says, and widths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autodeploy import planner
from autodeploy.specs.spec import Spec
from tests.support.rl_plans import DENSE, changed, rl_plan_set
from tests.ui.conftest import ALL_PARTS, fits_every_width, visiting
from tests.ui.test_accessibility import violations
from tests.ui.test_plan_pages import planned as planned

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.ui.conftest import Site

SEND = """([address, fields]) => {
  const form = Object.assign(document.createElement("form"), { method: "post", action: address });
  for (const [name, value] of Object.entries(fields)) {
    form.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
  }
  document.body.append(form);
  form.submit();
}"""
GOT = ("/nothing/here", "/plans/p_none", "/searches/srch_none", "/profiles/none", "/compare?plans={plan1}")
POST_TRAINING = ("/searches/{rl}", "/plans/{rl_plan}", "/plans/{rl_plan}/operators", "/plans/{rl_plan}/stages")
SENT: tuple[tuple[str, dict[str, str]], ...] = (
    ("/plans/{plan1}/what-if", {"micro_batch_size": "2"}),
    ("/plans/{plan1}/what-if", {"tp": "16", "pp": "4"}),
    ("/plans/{plan1}/why-not", {"strategy": "tp=16,pp=1", "others": "plan"}),
    ("/plans/{plan1}/why-not", {"strategy": "nonsense"}),
    ("/plans/{plan1}/ablation", {}),
    ("/plans/{plan1}/search", {"micro_batch_size": "2"}),
    ("/searches/{search}/scaling", {}),
    ("/searches/{search}/notes", {"tags": "x" * 100}),
    ("/compare/clusters", {"plan": "{plan1}", "days": "30"}),
    ("/new", {"form": "paste", "spec": "model: ["}),
)
SCHEMES = pytest.mark.parametrize(("lang", "scheme"), [("en", "dark"), ("zh", "light")])


@pytest.fixture(scope="module")
def post_trained(planned: Site) -> dict[str, str]:
    """Ids of a search and a plan of post-training, beside those of the site."""
    plan_set, plan = rl_plan_set(changed(DENSE, swap_optimizer=True))
    spec = Spec.model_validate(plan_set.search.spec)
    estimated = planner.estimate(spec.model_copy(update={"strategy": plan.strategy}))
    kept = planned.services.searches.keep(plan_set, spec, estimated)
    return planned.stored | {"rl": kept.search.id, "rl_plan": kept.plans[0].plan_id}


def _judge(page: Page, broken: dict[str, list[str]], name: str) -> None:
    """Notes what is wrong with the page that is open."""
    fits_every_width(page)
    page.evaluate(ALL_PARTS)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    if found := violations(page):
        broken[name] = found


@SCHEMES
def test_what_is_missing_and_post_training(
    chromium_browser: Browser, planned: Site, post_trained: dict[str, str], lang: str, scheme: str
) -> None:
    broken: dict[str, list[str]] = {}
    with visiting(chromium_browser, planned.url, color_scheme=scheme) as visitor:
        for path in (*GOT, *POST_TRAINING):
            address = path.format(**post_trained)
            page = visitor.open(f"{address}{'&' if '?' in path else '?'}lang={lang}", charts=True)
            _judge(page, broken, path)
        visitor.faults = [fault for fault in visitor.faults if "404" not in fault]
    assert broken == {}, broken


@SCHEMES
def test_what_forms_answer(chromium_browser: Browser, planned: Site, lang: str, scheme: str) -> None:
    broken: dict[str, list[str]] = {}
    with visiting(chromium_browser, planned.url, color_scheme=scheme) as visitor:
        page = visitor.open(f"/?lang={lang}")  # a form is sent from there, and from each answer the next
        for path, fields in SENT:
            filled = {name: value.format(**planned.stored) for name, value in fields.items()}
            with page.expect_navigation(timeout=120_000):
                page.evaluate(SEND, [f"{path.format(**planned.stored)}?lang={lang}", filled])
            visitor.wait_for_charts()
            _judge(page, broken, f"{path} {fields}")
        visitor.faults = [fault for fault in visitor.faults if "422" not in fault]
    assert broken == {}, broken
