"""A server on this machine with a few stored searches, and a browser page that notes what goes wrong in it."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.responses import Response
from starlette.routing import Route

from api.app import create_app
from api.server import server_config
from autodeploy.kit.settings import Settings
from autodeploy.service.runner.planning import PLANNER as REAL_PLANNER
from autodeploy.service.session import open_services
from autodeploy.specs.reading import read_spec_document
from tests import factories
from tests.conftest import NO_CHROMIUM
from tests.support import browsers
from tests.support.forked_processes import processes
from tests.support.openapi_document import routes_read_once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastapi import FastAPI
    from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request
    from starlette.requests import Request as StarletteRequest

    from autodeploy.service.session import Services

PLANNER = "tests.quick_planner"
SPEC = {
    "model": "llama2-7b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {"effort": "fast", "top_k": 3, "fix": {"tp": 2, "micro_batch_size": 1}, "allow": {"pp": [2, 4]}},
}
START_S = 20.0
FITS = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
# Charts are drawn anew a moment after their window has another width.
SOON_FITS = f"""async () => {{
  const fits = {FITS}, until = performance.now() + 10_000;
  while (!fits() && performance.now() < until) await new Promise((resolve) => setTimeout(resolve, 20));
  return fits();
}}"""
WIDTHS = (390, 1024, 1440)
# One after the other into view, until each is drawn; how many were not in time.
DRAW = """async () => {
  const stood = scrollY, open = document.querySelector("#parts [aria-selected=true]");
  const charts = [...document.querySelectorAll(".chart")];
  for (const chart of charts) {
    const until = performance.now() + 30_000;
    while (!chart.dataset.drawn && performance.now() < until) {
      const away = chart.closest(".away");
      if (away) document.getElementById(away.getAttribute("aria-labelledby")).click();
      chart.scrollIntoView({ block: "center", behavior: "instant" });
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
  if (charts.length) {
    open?.click();
    scrollTo({ top: stood, behavior: "instant" });
  }
  return charts.filter((chart) => !chart.dataset.drawn).map((chart) => chart.id);
}"""


_PORTS: dict[int, None] = {}  # of all sites of this process, in the order of their first use
_SERVED: set[int] = set()
_stopping = ExitStack()  # servers that were told to stop, which takes a fifth of a second
ALL_PARTS = "() => document.querySelectorAll('.away').forEach(part => part.classList.remove('away'))"


@dataclass(frozen=True)
class Site:
    """A running server: its address and its services."""

    url: str
    services: Services
    stored: dict[str, str]
    """Ids of stored searches by what is special about them."""


@contextmanager
def _listener() -> Iterator[socket.socket]:
    """On a port that an earlier site had, if one is free: the browser knows what it fetched and compiled from there."""
    listener = None
    for port in [port for port in _PORTS if port not in _SERVED]:
        with suppress(OSError):
            listener = socket.create_server(("127.0.0.1", port))
            break
    listener = listener or socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    _PORTS.setdefault(port)
    _SERVED.add(port)
    try:
        with listener:
            yield listener
    finally:
        _SERVED.remove(port)


def _axe(_: StarletteRequest) -> Response:
    from axe_playwright_python.sync_playwright import Axe  # with Playwright, which not all who serve need

    kept = {"Cache-Control": "max-age=86400, immutable"}
    return Response(Axe().axe_script, media_type="text/javascript", headers=kept)


@contextmanager
def serving(app: FastAPI, *, at_once: bool = False) -> Iterator[str]:
    """Serves the app on a port of the loopback until the end of the block, with axe-core as `/axe.js`, which the
    browser then keeps compiled; gives its address. The end waits for the server `at_once`, or that of the next does.
    """
    app.router.routes.insert(0, Route("/axe.js", _axe))
    with ExitStack() as stack:
        listener = stack.enter_context(_listener())
        port = listener.getsockname()[1]
        config = server_config(app, app.state.settings)
        config.timeout_graceful_shutdown = 1
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        stack.callback(thread.join, timeout=10)
        began = time.monotonic()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                assert time.monotonic() - began < START_S, "the server did not start in time"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
        _stopping.close()
        if not at_once:
            _stopping.push(stack.pop_all())


def store_searches(services: Services) -> dict[str, str]:
    """A good search, one with a single plan, one that fits nowhere and one that failed."""
    stored = {}
    documents = {
        "good": factories.spec(top_k=5),
        "single": factories.spec(num_npus=96, top_k=1),
        "infeasible": factories.spec(model=factories.DEEPSEEK_V3 | {"name": "infeasible"}, num_npus=16),
    }
    for name, spec in documents.items():
        stored[name] = services.searches.plan_and_store(spec).search.id
    with pytest.raises(RuntimeError):
        services.searches.plan_and_store(factories.spec(model=factories.DEEPSEEK_V3 | {"name": "fails"}))
    stored["failed"] = services.searches.list(limit=1).items[0].id
    return stored


@pytest.fixture(scope="session", autouse=True)
def _forked() -> Iterator[None]:
    """Services inside a test fork their processes, and read what their routes say once."""
    with processes(forked=True), routes_read_once(), _stopping:
        yield


@pytest.fixture(scope="session", autouse=True)
def _frequent_looks() -> Iterator[None]:
    """Tests wait for a page hardly longer than it takes."""
    from tests.support.frequent_looks import look_often  # with Playwright, which not all who serve need

    with pytest.MonkeyPatch.context() as patch:
        look_often(patch)
        yield


@dataclass(frozen=True)
class Stored:
    """A database file and ids of what is in it, by what is special about them."""

    path: Path
    ids: dict[str, str]


# Planned once: each module's server has a copy.
@pytest.fixture(scope="session")
def stored_searches(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """What `store_searches` stores."""
    path = tmp_path_factory.mktemp("stored") / "pages.db"
    with open_services(Settings(database_url=f"sqlite:///{path}"), planner=PLANNER) as services:
        return Stored(path, store_searches(services))


@pytest.fixture(scope="session")
def planned_search(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """One search, planned by the real planner."""
    path = tmp_path_factory.mktemp("planned") / "pages.db"
    with open_services(Settings(database_url=f"sqlite:///{path}"), planner=REAL_PLANNER) as services:
        plan_set = services.searches.plan_and_store(read_spec_document(SPEC))
    return Stored(path, {"search": plan_set.search.id} | {f"plan{plan.rank}": plan.plan_id for plan in plan_set.plans})


@pytest.fixture(scope="module")
def site(stored_searches: Stored, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with stored searches and a runner that plans quickly."""
    with _site(tmp_path_factory.mktemp("site"), stored_searches) as site:
        yield site


@pytest.fixture(scope="module")
def empty_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that has never been used."""
    with _site(tmp_path_factory.mktemp("empty_site"), None) as site:
        yield site


@pytest.fixture(scope="module")
def planned(planned_search: Stored, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with the real planner, whose one search it has planned."""
    with _site(tmp_path_factory.mktemp("plans"), planned_search, planner=REAL_PLANNER) as site:
        yield site


@contextmanager
def _site(directory: Path, stored: Stored | None, *, planner: str = PLANNER) -> Iterator[Site]:
    path = directory / "pages.db"
    if stored is not None:
        shutil.copy(stored.path, path)
    app = create_app(Settings(database_url=f"sqlite:///{path}", poll_s=0.1), planner=planner)
    with serving(app) as url:
        yield Site(url, app.state.services, stored.ids if stored is not None else {})


def fits_every_width(page: Page) -> None:
    """No page is wider than its window, on a telephone or on a desk."""
    found = page.viewport_size
    assert found is not None
    widths = WIDTHS if found["width"] <= WIDTHS[0] else WIDTHS[::-1]  # the page stays as wide as the last one
    for width in widths:
        if width != found["width"]:
            page.set_viewport_size({"width": width, "height": found["height"]})
        assert page.evaluate(SOON_FITS), f"{page.url} is too wide for {width}"


@dataclass
class Visitor:
    """A browser page and everything in it that should not have happened."""

    page: Page
    site_url: str
    faults: list[str] = field(default_factory=list)

    def open(self, path: str, *, charts: bool = False) -> Page:
        """Goes to an address of the site, and scrolls through it where `charts` are to be drawn: seconds of CPU."""
        self.page.goto(self.site_url + path)
        if charts:
            self.wait_for_charts()
        return self.page

    def wait_for_charts(self) -> None:
        """Brings each figure of the page into view, waits until it is drawn, and goes back to where it stood."""
        self.page.evaluate("for (const each of document.querySelectorAll('details.open')) each.open = true")
        assert self.page.evaluate(DRAW) == []

    def watch(self) -> None:
        """Notes console errors, uncaught exceptions and requests to anywhere else."""
        self.page.on("request", self._requests)
        self.page.on("pageerror", self._fails)
        self.page.on("console", self._complains)

    def watch_no_more(self) -> None:
        """The page may be another visitor's."""
        self.page.remove_listener("request", self._requests)
        self.page.remove_listener("pageerror", self._fails)
        self.page.remove_listener("console", self._complains)

    def _requests(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in {"http", "https"} and address.netloc != urlsplit(self.site_url).netloc:
            self.faults.append(f"request to {request.url}")

    def _fails(self, error: Error) -> None:
        self.faults.append(f"exception: {error}")

    def _complains(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.faults.append(message.text)


@contextmanager
def visiting(browser: Browser, url: str, *, fresh: bool = False, **options: object) -> Iterator[Visitor]:
    """A visitor without cookies and kept filters; at the end nothing may have gone wrong.

    Its page is one that others had with the same options, unless it is to be `fresh`, with nothing fetched.
    """
    # A page that scrolls smoothly to where it is asked for is drawn thirty times on its way.
    calm = {"reduced_motion": "reduce", "color_scheme": "light"}
    settings = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB"} | calm | options
    with browsers.page(browser, settings, fresh=fresh) as page:
        visitor = Visitor(page, url)
        visitor.watch()
        try:
            yield visitor
            assert visitor.faults == []
        finally:
            visitor.watch_no_more()


@pytest.fixture
def chromium_browser() -> Browser:
    """The machine's Chromium, headless, driven by Playwright."""
    browser = browsers.browser()
    if browser is None:
        pytest.skip(NO_CHROMIUM)
    return browser


# Not a fixture's end: there is one browser for all modules here, and while it is open no other test's loop could run.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _stopping.close()
        browsers.close()


@pytest.fixture
def visitor(chromium_browser: Browser, site: Site) -> Iterator[Visitor]:
    """A visitor of the site with stored searches."""
    with visiting(chromium_browser, site.url) as visitor:
        yield visitor
