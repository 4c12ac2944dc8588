"""The pages as a reader without scripts, or a program, sees them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from api.ui import views
from tests import factories
from tests.support import plain_http
from tests.ui.conftest import visiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from playwright.sync_api import Browser

    from tests.ui.conftest import Site

SPEC_TEXT = """
model: qwen3-8b
cluster: {profile: cloudmatrix-384, num_npus: 16}
training: {seq_length: 4096, global_batch_size: 64}
"""


@pytest.fixture
def reader(site: Site) -> Iterator[httpx.Client]:
    with plain_http.Client(base_url=site.url, timeout=30.0) as client:
        yield client


def test_everything_can_be_read_without_scripts(chromium_browser: Browser, site: Site) -> None:
    with visiting(chromium_browser, site.url, java_script_enabled=False) as visitor:
        visitor.page.goto(f"{site.url}/searches/{site.stored['good']}")
        page = visitor.page
        expect(page.locator("section.best")).to_contain_text("134.2 s")
        expect(page.locator("svg.bar rect").first).to_be_visible()
        assert page.locator(".chart:visible").count() == 0
        assert page.locator("section", has=page.locator("#memory")).locator("tbody tr").count() == 16


def test_the_form_works_without_scripts(chromium_browser: Browser, site: Site) -> None:
    with visiting(chromium_browser, site.url, java_script_enabled=False) as visitor:
        page = visitor.page
        page.goto(f"{site.url}/new?lang=en")
        page.get_by_label("Cards", exact=True).fill("-1")
        page.locator("#fields").get_by_role("button", name="Search").click()
        expect(page.locator("[data-pointer='/cluster/num_npus'] .errors")).not_to_be_empty()
        expect(page.get_by_label("Cards", exact=True)).to_have_value("-1")
        page.get_by_label("Cards", exact=True).fill("48")
        page.locator("#fields").get_by_role("button", name="Search").click()
        page.wait_for_url(re.compile(r"/searches/srch_\w+\?lang=en$"))
        assert "422" in visitor.faults.pop()


def test_each_way_to_start_leads_to_its_form(reader: httpx.Client) -> None:
    page = reader.get("/new?lang=en").text
    ways = dict(re.findall(r'<a href="#(\w+)" id="way-of-(\w+)"', page))
    assert ways.keys() == {"fields", "paste"}
    for way in ways:
        assert page.count(f'id="{way}"') == 1
    assert page.count('id="way-of-') == 4


def test_a_pasted_spec_begins_a_search(reader: httpx.Client, site: Site) -> None:
    answer = reader.post("/new", data={"form": "paste", "spec": SPEC_TEXT})
    assert answer.status_code == 303
    search_id = answer.headers["location"].removeprefix("/searches/")
    assert site.services.searches.get(search_id).plan_set.search.spec["cluster"]["num_npus"] == 16


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model: [", "line 1"),
        ("just words", "not a file that can be imported"),
        ("", "not a file that can be imported"),
        ("model: qwen3-8b\ncluster: {profile: nowhere, num_npus: 8}\ntraining: {}", "/cluster/profile"),
        (SPEC_TEXT.replace("qwen3-8b", "qwen3-8bb"), "qwen3-8b"),
        ('{"model": "a\\u0000b"}', "NUL"),
        ('{"model": "\\ud800"}', "surrogate"),
        ("model: &a [*a, *a]", "alias"),
        ("<script>alert(1)</script>: 1", "&lt;script&gt;"),
    ],
)
def test_a_bad_pasted_spec_is_refused_with_its_faults(reader: httpx.Client, text: str, complaint: str) -> None:
    answer = reader.post("/new", data={"form": "paste", "spec": text})
    assert answer.status_code == 422
    assert complaint in answer.text
    assert "<script>alert" not in answer.text


def test_cancelling_without_scripts(reader: httpx.Client, site: Site) -> None:
    spec = factories.spec(model=factories.DEEPSEEK_V3 | {"name": "slow"}, num_npus=768)
    search_id = site.services.searches.submit(spec).search.id
    assert 'http-equiv="refresh"' in reader.get(f"/searches/{search_id}").text
    answer = reader.post(f"/searches/{search_id}/cancel")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/searches/{search_id}")
    again = reader.post(f"/searches/{site.stored['good']}/cancel")
    assert again.status_code == 303  # finished meanwhile: just shown
    assert reader.post("/searches/srch_01m3xk7pq2w9a4fh/cancel").status_code == 404


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"origin": "https://elsewhere.example"}])
def test_forms_of_other_sites_are_refused(reader: httpx.Client, headers: dict[str, str]) -> None:
    assert reader.post("/new", data={"form": "paste", "spec": SPEC_TEXT}, headers=headers).status_code == 403
    assert reader.post("/searches/srch_01m3xk7pq2w9a4fh/cancel", headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/searches/none", "/profiles/none", "/profiles/..%2f..%2fsecret", "/static/none.css"])
def test_what_is_not_there_is_a_page_that_says_so(reader: httpx.Client, path: str) -> None:
    answer = reader.get(path, headers={"accept-language": "zh"})
    assert answer.status_code == 404


def test_every_link_of_a_search_leads_somewhere(reader: httpx.Client, site: Site) -> None:
    page = reader.get(f"/searches/{site.stored['single']}").text
    links = {link.replace("&amp;", "&") for link in re.findall(r'href="(/[^"]*)"', page)}
    assert any("/export?to=" in link for link in links)
    assert {link: reader.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_the_policy_allows_only_this_host(reader: httpx.Client, site: Site) -> None:
    for path in ("/", "/new", "/profiles", f"/searches/{site.stored['good']}", "/searches/none"):
        policy = reader.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "unsafe" not in policy


def test_assets_are_kept_for_ever_and_compressed(reader: httpx.Client, site: Site) -> None:
    page = reader.get(f"/searches/{site.stored['good']}").text
    addresses = re.findall(r'(?:src|href|data-plotly)="(/static/[^"]+)"', page)
    names = sorted({address.partition("?")[0] for address in addresses})
    assert names == [f"/static/{name}" for name in ("icon.svg", "pages.css", "pages.js", "plotly.min.js")]
    for address in addresses:
        answer = reader.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-encoding"] == "gzip"
        same = reader.get(address, headers={"if-none-match": answer.headers["etag"]})
        assert same.status_code == 304
    plain = reader.get(addresses[0], headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers


def test_filters_and_pages_of_the_list(reader: httpx.Client, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert views.PAGE_LENGTH == 50
    monkeypatch.setattr(views, "PAGE_LENGTH", 8)
    for count in range(20):
        site.services.searches.plan_and_store(
            factories.spec(num_npus=384, global_batch_size=15_360 + 384 * count, top_k=1)
        )
    seen: list[str] = []
    address = "/?status=optimal&model=DeepSeek-V3&lang=en"
    for _ in range(3):
        page = reader.get(address).text
        seen += re.findall(r'<th scope="row">.*?<a href="/searches/(srch_\w+)', page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        if following is None:
            break
        address = following[1].replace("&amp;", "&")
        assert "status=optimal" in address
    assert len(seen) == len(set(seen)) >= 21
    assert site.stored["infeasible"] not in seen
    assert "No search matches" in reader.get("/?model=nothing&lang=en").text
    assert reader.get("/?status=bad").status_code == 200
