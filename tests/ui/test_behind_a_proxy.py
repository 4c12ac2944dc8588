"""Below a path of another site, behind proxies with TLS: pages, forms, scripts and streams, also in a real browser."""

from __future__ import annotations

import html
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect

from api.app import create_app
from api.http.session import COOKIE
from autodeploy.client import Client
from autodeploy.kit.settings import Settings
from autodeploy.service.requests.callers import AccessService
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from tests import factories
from tests.quick_planner import SLOW
from tests.support import plain_http, proxy
from tests.support.proxy import PREFIX
from tests.ui.conftest import PLANNER, serving, store_searches
from tests.ui.conftest import visiting as a_visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

# nginx with the example where it is installed (Debian: nginx-light), elsewhere one that does the same.
PROXIES = ["nginx" if proxy.nginx_path() else "keeps the prefix", "strips the prefix"]
# How a proxy hands paths on shows in what the service answers: a browser looks at one, programs ask through both.
IN_A_BROWSER = pytest.mark.parametrize("behind", PROXIES[:1], indirect=True)
# Of several searches and plans one is enough, and of addresses that differ in what they ask for.
IDS = re.compile(r"(srch|p)_\w+")
WRITTEN = re.compile(r'(?:href|src|action|formaction)="([^"#][^"]*)"')
ADDRESSES = """() => [...document.querySelectorAll('[href], [src], [action], [formaction]')].map(
    e => e.getAttribute('href') ?? e.getAttribute('src') ?? e.getAttribute('action') ?? e.getAttribute('formaction'))"""


@dataclass(frozen=True)
class Behind:
    """A site with a service below a path of it."""

    origin: str
    server: str
    key: str
    stored: dict[str, str]

    def client(self) -> httpx.Client:
        """Through the proxy, with a key."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.origin, headers=headers, verify=False, timeout=60)


@pytest.fixture(scope="module", params=PROXIES)
def behind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    directory = tmp_path_factory.mktemp("proxy")
    url = f"sqlite:///{directory / 'pages.db'}"
    database = Database(url, pool_size=1)
    upgrade(database)
    key, _ = AccessService(database).create("me", "admin")
    database.close()
    settings = Settings(database_url=url, poll_s=0.1, auth="keys", path_prefix=PREFIX, trusted_proxies="127.0.0.1")
    app = create_app(settings, planner=PLANNER)
    certificate = proxy.self_signed(directory)
    with serving(app) as server:
        server_port = urlsplit(server).port or 0
        if request.param == "nginx":
            before = proxy.nginx(server_port, certificate, directory)
        else:
            before = proxy.stand_in(server_port, certificate, strips=request.param == "strips the prefix")
        with before as port:
            yield Behind(f"https://127.0.0.1:{port}", server, key, store_searches(app.state.services))


@contextmanager
def visiting(browser: Browser, site: Behind, *, scripts: bool = True) -> Iterator[Page]:
    """A browser that trusts the certificate; at the end nothing may have gone wrong in it."""
    trusting: dict[str, Any] = {"ignore_https_errors": True, "java_script_enabled": scripts}
    with a_visitor(browser, site.origin, **trusting) as visitor:
        visitor.page.set_default_timeout(90_000)
        yield visitor.page
        # The one answer that a browser complains of is the form to log in with, whose status is 401.
        visitor.faults = [fault for fault in visitor.faults if "401" not in fault]


def log_in(page: Page, site: Behind, path: str = "/") -> None:
    page.goto(f"{site.origin}{PREFIX}{path}")
    page.locator("input[name=key]").fill(site.key)
    page.locator("main form button").click()
    page.wait_for_url(f"{site.origin}{PREFIX}{path}")


def come_back(page: Page, site: Behind) -> None:
    """With the cookie of somebody who has logged in before."""
    with httpx.Client(base_url=site.origin, verify=False, timeout=60) as client:
        answer = client.post(f"{PREFIX}/login", data={"key": site.key}, headers={"Origin": site.origin})
        session = client.cookies[COOKIE]
    assert answer.status_code == 303
    page.context.add_cookies([{"name": COOKIE, "value": session, "url": f"{site.origin}{PREFIX}/"}])


@IN_A_BROWSER
def test_logging_in_ends_at_the_wanted_page_with_a_closed_cookie(chromium_browser, behind):
    search = f"/searches/{behind.stored['good']}"
    with visiting(chromium_browser, behind) as page:
        log_in(page, behind, search)
        expect(page.locator("section.best")).to_be_visible()
        (cookie,) = page.context.cookies()
        assert cookie["name"] == COOKIE
        assert (cookie["path"], cookie["secure"]) == (PREFIX, True)
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.locator("form.logout button").click()
        page.locator("input[name=key]").wait_for()
        assert page.context.cookies() == []


@IN_A_BROWSER
def test_scripts_leave_no_address_above_the_prefix(chromium_browser, behind):
    with visiting(chromium_browser, behind) as page:
        come_back(page, behind)
        found: set[str] = set()
        for path in ("/", "/new", f"/plans/{_plan_id(behind)}", f"/searches/{behind.stored['good']}"):
            page.goto(f"{behind.origin}{PREFIX}{path}")
            found.update(address for address in page.evaluate(ADDRESSES) if not address.startswith("#"))
        assert len(found) > 30
        assert _above_the_prefix(found) == []


def test_every_address_on_every_page_leads_somewhere(behind):
    pages = ["/", "/new", "/profiles", "/profiles/cloudmatrix-384", "/accuracy", f"/plans/{_plan_id(behind)}"]
    pages += ["/login", "/?lang=zh", *(f"/searches/{search_id}" for search_id in behind.stored.values())]
    with behind.client() as client:
        found: set[str] = set()
        for path in pages:
            text = client.get(f"{PREFIX}{path}", headers={"Accept": "text/html"}).text
            found.update(html.unescape(address) for address in WRITTEN.findall(text))
        assert len(found) > 40
        assert _above_the_prefix(found) == []
        for address in {IDS.sub("ID", address).partition("?")[0]: address for address in sorted(found)}.values():
            answer = client.get(address, follow_redirects=True)
            is_of_a_form = answer.status_code == 405
            # A plan of made figures may have no rehearsal that fits: the answer says so.
            of_rehearsals = "rehearse=" in address or address.endswith("/commissioning")
            has_no_rehearsal = of_rehearsals and answer.status_code == 422
            assert answer.is_success or is_of_a_form or has_no_rehearsal, f"{answer.status_code} {address}"


@IN_A_BROWSER
def test_a_search_is_started_watched_and_cancelled(chromium_browser, behind):
    with visiting(chromium_browser, behind) as page:
        come_back(page, behind)
        page.goto(f"{behind.origin}{PREFIX}/new")
        page.locator("#way-of-spec").click()
        page.locator("#spec-text").fill(_slow_spec())
        expect(page.locator("#paste-status")).not_to_be_empty()
        page.locator("#paste button").first.click()
        page.wait_for_url(re.compile(rf"{re.escape(behind.origin + PREFIX)}/searches/srch_\w+$"))
        expect(page.locator("#progress [data-count='enumerated']")).to_have_text("0", timeout=30_000)
        page.locator("#progress form button").click()
        expect(page.locator("h1 .status")).to_have_text(re.compile("cancelled", re.IGNORECASE), timeout=30_000)


@IN_A_BROWSER
def test_the_form_of_fields_and_a_knob_ask_below_the_prefix(chromium_browser, behind):
    with visiting(chromium_browser, behind) as page:
        come_back(page, behind)
        page.goto(f"{behind.origin}{PREFIX}/new")
        with (
            page.expect_response(f"{behind.origin}{PREFIX}/new/read") as asked,
            page.expect_response(f"{behind.origin}{PREFIX}/v1/searches") as posted,
        ):
            page.locator("#fields button").last.click()
        assert (asked.value.status, posted.value.status) == (200, 202)
        page.wait_for_url(re.compile(rf"{re.escape(behind.origin + PREFIX)}/searches/srch_\w+$"))
        expect(page.locator("section.best")).to_be_visible()  # a finished search loads its page again
        page.goto(f"{behind.origin}{PREFIX}/plans/{_plan_id(behind)}")
        with page.expect_response(re.compile(rf"{re.escape(behind.origin + PREFIX)}/plans/p_\w+/what-if")) as asked:
            page.locator("select[name=micro_batch_size]").select_option("2")
        assert asked.value.status in {200, 422}


@IN_A_BROWSER
def test_forms_without_scripts(chromium_browser, behind):
    search = f"/searches/{behind.stored['good']}"
    with visiting(chromium_browser, behind, scripts=False) as page:
        log_in(page, behind, search)
        page.locator("input[name=tags]").fill("kept")
        page.locator("form[action*='/notes'] button").click()
        page.wait_for_url(re.compile(rf"{re.escape(behind.origin + PREFIX + search)}(#about)?$"))
        expect(page.locator("input[name=tags]")).to_have_value("kept")
        page.locator("a.language").click()
        page.wait_for_url(f"{behind.origin}{PREFIX}{search}?lang=zh")


def test_events_are_not_held_back(behind):
    with behind.client() as client:
        made = client.post(f"{PREFIX}/v1/searches", content=_slow_spec(), headers={"Content-Type": "application/json"})
        search_id = made.json()["search"]["id"]
        assert made.headers["location"] == f"{PREFIX}/v1/searches/{search_id}"
        with client.stream("GET", f"{made.headers['location']}/events") as stream:
            kinds = (line for line in stream.iter_lines() if line.startswith("event: "))
            assert next(kinds) == "event: status"
            while next(kinds) != "event: progress":
                pass
        assert client.get(made.headers["location"]).json()["status"] == "running", "it came while the search ran"
        client.post(f"{made.headers['location']}/cancel")


def test_the_api_names_addresses_as_clients_reach_them(behind):
    with behind.client() as client:
        page = client.get(f"{PREFIX}/v1/searches", params={"limit": 1}).json()
        assert page["next"].startswith(f"{PREFIX}/v1/searches?")
        assert client.get(page["next"]).status_code == 200
        redirect = client.get(f"{PREFIX}/v1/searches/")
        assert redirect.status_code == 307
        assert redirect.headers["location"] in {f"{PREFIX}/v1/searches", f"{behind.origin}{PREFIX}/v1/searches"}
        missing = client.get(f"{PREFIX}/v1/searches/srch_unknown0").json()
        assert missing["instance"] == f"{PREFIX}/v1/searches/srch_unknown0"
        assert client.get(f"{PREFIX}/openapi.json").json()["servers"] == [{"url": PREFIX}]
        start = client.get(PREFIX, headers={"Accept": "text/html"}, follow_redirects=True)
        assert start.status_code == 200


def test_the_client_library_takes_the_prefix_and_health_needs_none(behind):
    with Client(f"{behind.server}{PREFIX}", api_key=behind.key) as client:
        assert client.list(limit=1).items
    assert plain_http.get(f"{behind.server}/livez").status_code == 200
    assert plain_http.get(f"{behind.server}{PREFIX}/readyz").status_code == 200


def test_a_form_of_another_site_is_refused(behind):
    with behind.client() as client:
        own = client.post(f"{PREFIX}/login", data={"key": behind.key}, headers={"Origin": behind.origin})
        assert own.status_code == 303
        assert own.headers["location"] == f"{PREFIX}/"
        assert "Secure" in own.headers["set-cookie"]
        foreign = client.post(f"{PREFIX}/login", data={"key": behind.key}, headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 401
        assert "set-cookie" not in foreign.headers


def _above_the_prefix(addresses: set[str]) -> list[str]:
    return [address for address in addresses if not address.startswith(f"{PREFIX}/") and address != PREFIX]


def _slow_spec() -> str:
    return factories.spec(model=factories.DEEPSEEK_V3 | {"name": SLOW}).model_dump_json(exclude_none=True)


def _plan_id(behind: Behind) -> str:
    with behind.client() as client:
        plans = client.get(f"{PREFIX}/v1/searches/{behind.stored['good']}/plans").json()["items"]
    return str(plans[0]["plan_id"])
