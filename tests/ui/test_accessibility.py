"""Every page in both languages and colour schemes: its links, its width, what axe-core says; and the keyboard alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests import factories
from tests.ui.conftest import ALL_PARTS, WIDTHS, fits_every_width, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.ui.conftest import Site, Visitor

RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
ALL_FOLDS = "() => document.querySelectorAll('details').forEach(fold => { fold.open = true; })"
# Language, ink and ground of the body, and where links lead that keep the language; then all of the page is shown.
SPOKEN = f"""() => {{
  const {{ color, backgroundColor }} = getComputedStyle(document.body);
  const links = [...document.querySelectorAll("a[href^='/']:not(.language)")].map((link) => link.getAttribute("href"));
  const spoken = [document.documentElement.lang, color, backgroundColor, links];
  ({ALL_PARTS})();
  ({ALL_FOLDS})();
  return spoken;
}}"""
# Of siblings alike in elements, classes and roles all through, as a template's loop or a figure's axis makes them, two
# stay: each further one would be judged as they are. What a figure draws without a word has no colour that is judged:
# classes do not tell it apart, nor does how many there are of a kind.
FEWER = """() => {
  const kindOf = (element) => {
    const seen = {}, drawn = element instanceof SVGElement && !element.textContent.trim();
    const inside = [...element.children].map((child) => {
      const kind = kindOf(child);
      seen[kind] = (seen[kind] ?? 0) + 1;
      if (seen[kind] > 2 && !child.id && !child.querySelector("[id]")) child.remove();
      return kind;
    });
    const judged = drawn ? /^(role|aria-|tabindex|href)/ : /^(class|role|aria-|tabindex|hidden|disabled)/;
    const named = [...element.attributes].filter(({ name }) => judged.test(name));
    const own = named.map(({ name, value }) => (/^(class|role|aria-hidden)/.test(name) ? name + value : name));
    const says = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    return `${element.tagName}[${own}]${says}(${drawn ? Object.keys(seen) : inside})`;
  };
  kindOf(document.body);
}"""


# Of texts alike in ink, size and all that lies under them one is judged for its contrast, and every field.
ONE_OF_EACH_COLOUR = """() => {
  const grounds = new Map([[null, ""]]);
  const groundOf = (element) => {
    if (!grounds.has(element)) {
      const style = getComputedStyle(element);
      const own = [style.backgroundColor, style.backgroundImage, style.opacity, style.filter, style.position];
      const says = String(own) === "rgba(0, 0, 0, 0),none,1,none,static" ? "" : `(${own})`;
      grounds.set(element, groundOf(element.parentElement) + says);
    }
    return grounds.get(element);
  };
  const seen = new Set();
  for (const element of document.body.querySelectorAll("*")) {
    delete element.dataset.colour;
    const says = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const field = element.matches("input, select, textarea");
    if ((!says && !field) || !element.checkVisibility()) continue;
    const { color, fontSize, fontWeight, textShadow } = getComputedStyle(element);
    const disabled = element.closest(":disabled, [aria-disabled=true]") !== null;
    const svg = element.closest("svg") !== null;
    const kind = [color, fontSize, fontWeight, textShadow, disabled, svg, groundOf(element)].join("|");
    if (field || !seen.has(kind)) element.dataset.colour = "judged";
    seen.add(kind);
  }
  axe.configure({ rules: [{ id: "color-contrast", selector: "[data-colour]" }] });
}"""


# Null without axe. The whole answer lists every node that a rule let pass: megabytes for a page of charts.
RUN = f"""async ([within, rules]) => {{
  if (!("axe" in window)) return null;
  ({ONE_OF_EACH_COLOUR})();
  return (await axe.run(within ?? document, {{ resultTypes: ["violations"], ...rules }})).violations;
}}"""
LOAD = """() => new Promise((loaded, failed) => {
  const script = Object.assign(document.createElement("script"), { src: "/axe.js" });
  [script.onload, script.onerror] = [() => loaded(), () => failed(new Error("no axe-core"))];
  document.head.append(script);
})"""
# Leaves less of the page, with pictures of its figures, which would be drawn anew; the scheme that it is not in.
OTHER_SCHEME = f"""() => {{
  document.querySelectorAll(".chart").forEach((chart) => chart.replaceWith(chart.cloneNode(true)));
  ({FEWER})();
  return matchMedia("(prefers-color-scheme: dark)").matches ? "light" : "dark";
}}"""
# A page as it comes over HTTP instead of the one that is open, whose scripts and style sheet are the same.
INSTEAD = """async (address) => {
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  const other = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.documentElement.lang = other.documentElement.lang;
  document.body.replaceWith(other.body);
}"""


def violations(page: Page, *, within: str | None = None, rules: dict[str, Any] = RULES) -> list[str]:
    """One line for each rule that the page breaks: the rule, where, and what is wrong.

    Parameters
    ----------
    within : selector of the part that is looked at; the whole page without it.
    """
    found: list[dict[str, Any]] | None = page.evaluate(RUN, [within, rules])
    if found is None:
        page.evaluate(LOAD)
        found = page.evaluate(RUN, [within, rules])
    assert found is not None
    return [
        f"{rule['id']} {node['target']} {node.get('failureSummary', '')} {node['html'][:160]}"
        for rule in found
        for node in rule["nodes"][:5]
    ]


def violations_in_both_schemes(page: Page, *, within: str | None = None) -> list[str]:
    """Of the page in its scheme by all rules, and by those of colours in the other one, which stays; leaves less of the
    page.
    """
    other = page.evaluate(OTHER_SCHEME)
    found = violations(page, within=within)
    page.emulate_media(color_scheme=other)
    return found + violations(page, within=within, rules=CONTRAST)


def paths(site: Site) -> list[str]:
    plans = [plan.plan_id for plan in site.services.searches.plans(site.stored["good"])]
    return [
        *("/", "/?status=cancelled&model=nothing", "/new", "/profiles", "/profiles/cloudmatrix-384", "/accuracy"),
        *("/software/megatron-lm", "/docs", "/docs/how-to/rest_api"),
        *("/compare", "/compare?plans=" + ",".join(plans[:3]), f"/plans/{plans[0]}"),
        f"/plans/{plans[0]}/operators",
        f"/plans/{plans[0]}/stages",
        *(f"/searches/{search_id}" for search_id in site.stored.values()),
    ]


def speaks(page: Page, path: str, lang: str, scheme: str) -> None:
    """The page is in its language and scheme, its links keep the language, and all of it fits every width."""
    spoken, ink, ground, links = page.evaluate(SPOKEN)
    assert spoken.startswith(lang)
    assert (brightness(ink) > brightness(ground)) == (scheme == "dark")
    assert len(links) > 3
    for href in links:
        assert f"lang={lang}" in href or href.startswith(("/v1/", "/openapi.json"))
    fits_every_width(page)


def judged(visitor: Visitor, path: str) -> list[str]:
    """What a page breaks. Neither language has colours or elements of its own: all rules see English, which is longer,
    in both schemes and with its figures; Chinese is read in the other scheme, as it is before scripts.
    """
    address = f"{path}{'&' if '?' in path else '?'}lang="
    visitor.page.emulate_media(color_scheme="light")
    page = visitor.open(f"{address}en", charts=True)
    speaks(page, path, "en", "light")
    found = violations_in_both_schemes(page)
    page.evaluate(INSTEAD, f"{address}zh")
    speaks(page, path, "zh", "dark")
    return found


def test_every_page_speaks_its_languages_fits_and_breaks_no_rule(chromium_browser: Browser, site: Site) -> None:
    # Each page is opened as wide as the last was left, and judged at its widest.
    with visiting(chromium_browser, site.url, viewport={"width": WIDTHS[0], "height": 900}) as visitor:
        broken = {path: found for path in paths(site) if (found := judged(visitor, path))}
    assert broken == {}, "\n".join(f"{path}: {line}" for path, lines in broken.items() for line in lines)


def test_a_search_breaks_no_rule_on_a_phone(chromium_browser: Browser, site: Site) -> None:
    """Sizes of targets and what scrolls inside are others there; colours are the same."""
    with visiting(chromium_browser, site.url, viewport={"width": WIDTHS[0], "height": 844}) as visitor:
        page = visitor.open(f"/searches/{site.stored['good']}?lang=en", charts=True)
        page.evaluate(ALL_PARTS)
        assert violations(page, rules=RULES | {"rules": {"color-contrast": {"enabled": False}}}) == []


@pytest.mark.parametrize(("lang", "scheme"), [("en", "light"), ("zh", "dark")])
def test_a_running_search_fits_a_phone_and_breaks_no_rule(
    chromium_browser: Browser, site: Site, lang: str, scheme: str
) -> None:
    spec = factories.spec(model=factories.DEEPSEEK_V3 | {"name": "slow"}, num_npus=384 if lang == "en" else 768)
    search_id = site.services.searches.submit(spec).search.id
    options = {"color_scheme": scheme, "viewport": {"width": 390, "height": 844}}
    with visiting(chromium_browser, site.url, **options) as visitor:
        page = visitor.open(f"/searches/{search_id}?lang={lang}")
        expect(page.locator("#progress-curve path.best")).to_be_attached(timeout=30_000)
        page.locator("#progress-rules summary").click()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert violations(page) == []
        site.services.searches.cancel(search_id)
        expect(page.locator("#progress")).not_to_be_attached(timeout=30_000)


def brightness(colour: str) -> int:
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3])


def test_answers_and_complaints_break_no_rule_either(visitor: Visitor, site: Site) -> None:
    page = visitor.open("/new")
    page.get_by_label("Cards", exact=True).fill("many")
    page.locator("#fields").get_by_role("button", name="Search").click()
    page.wait_for_selector("#summary:not([hidden])")
    assert violations(page) == []
    visitor.faults = [fault for fault in visitor.faults if "422" not in fault]  # the browser notes the refusal


def test_a_broken_rule_would_be_seen(visitor: Visitor) -> None:
    page = visitor.open("/")
    page.evaluate("document.body.append(Object.assign(document.createElement('img'), {src: '/static/icon.svg'}))")
    page.evaluate(
        "const p = document.querySelector('main').appendChild(document.createElement('p'));"
        "p.textContent = 'Pale'; p.style.color = '#999';"
    )
    found = violations(page)
    assert {"image-alt", "color-contrast"} <= {line.partition(" ")[0] for line in found}
    assert "Pale" in str(found)


def test_the_keyboard_alone_reaches_a_plan(visitor: Visitor, site: Site) -> None:
    page = visitor.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("(document.activeElement.getAttribute('href') || '').startsWith('/searches/')"):
            break
    seen = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert seen != "none", "the focused link does not show"
    page.keyboard.press("Enter")
    page.wait_for_url("**/searches/*")
