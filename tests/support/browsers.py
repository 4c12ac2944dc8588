"""One browser for many tests, and pages that are handed from one visitor to the next.

A page that has shown figures has compiled plotly.js: a new one would take two seconds of processor time for it again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from playwright.sync_api import Browser, Page, Playwright

OF_PAGES = ("viewport", "color_scheme")  # what a page may be told anew; the rest is its context's
NOTHING_KEPT = "() => { if (location.protocol.startsWith('http')) localStorage.clear(); }"


class _Open:
    """What is open at the moment."""

    playwright: Playwright | None = None
    browser: Browser | None = None
    pages: dict[str, Page]


_open = _Open()
_open.pages = {}


def browser() -> Browser | None:
    """The machine's Chromium, headless, driven by Playwright, open until `close`; None where there is none."""
    path = chromium.chromium_path()
    if _open.browser is None and path is not None:
        from playwright.sync_api import sync_playwright

        _open.playwright = sync_playwright().start()
        _open.browser = _open.playwright.chromium.launch(executable_path=path, args=chromium.launch_options())
    return _open.browser


def close() -> None:
    """Closes browser and driver: while they are open an event loop runs in this thread."""
    _open.pages.clear()
    if _open.browser is not None:
        _open.browser.close()
    if _open.playwright is not None:
        _open.playwright.stop()
    _open.browser = _open.playwright = None


@contextmanager
def page(browser: Browser, options: Mapping[str, Any], *, fresh: bool) -> Iterator[Page]:
    """A page of a context with these options: one that had been left in order, or a new one."""
    of_context = {name: value for name, value in options.items() if name not in OF_PAGES}
    name = repr(sorted(of_context.items()))
    found = None if fresh else _open.pages.pop(name, None)
    if found is None:
        found = browser.new_context(**options).new_page()
    else:
        if found.viewport_size != options["viewport"]:
            found.set_viewport_size(options["viewport"])
        found.emulate_media(color_scheme=options["color_scheme"], media="screen")
        found.mouse.move(0, 0)
    in_order = False
    try:
        yield found
        in_order = not fresh and name not in _open.pages
    finally:
        if in_order and _clear(found):
            _open.pages[name] = found
        else:
            found.context.close()


def _clear(page: Page) -> bool:
    """Leaves nothing of one visitor to the next but what the browser has fetched; medium and pointer wait until then,
    when the page has gone. False where its site has gone too.
    """
    from playwright.sync_api import Error

    page.unroute_all()
    page.evaluate(NOTHING_KEPT)
    site = urlsplit(page.url)
    if site.scheme in {"http", "https"}:
        # Of the same site: for any other page, also an empty one, the browser takes another process, which knows
        # nothing. Awaited, since a navigation on its way would interrupt that of the next visitor.
        try:
            page.goto(f"{site.scheme}://{site.netloc}/static/icon.svg", wait_until="commit")
        except Error:
            return False
    page.context.clear_cookies()
    for other in page.context.pages:
        if other is not page:
            other.close()
    return True
