"""How soon a page is of use on a slow machine and line: Chromium with its processor slowed and its network throttled.

python -m tests.ui.page_speed http://127.0.0.1:8000 / /new /searches/srch_...
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from tests.support import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CPU_SLOWDOWN = 4
# Fast 3G as the developer tools of Chromium know it: 1.6 Mbit/s down and 0.75 Mbit/s up less a tenth, 150 ms by 3.75.
FAST_3G = {
    "offline": False,
    "latency": 562.5,
    "downloadThroughput": 1.6e6 / 8 * 0.9,
    "uploadThroughput": 0.75e6 / 8 * 0.9,
}
# The largest text or picture that has been painted: the page can be read.
LARGEST_PAINT = """() => new Promise((resolve) => {
  new PerformanceObserver((list) => resolve(list.getEntries().at(-1).startTime))
    .observe({ type: "largest-contentful-paint", buffered: true });
})"""
SETTLED_MS = 600


@dataclass
class Visit:
    """One visit: seconds to the largest paint, and what came over the wire by kind in bytes."""

    useful_s: float = 0.0
    wire_bytes: dict[str, int] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)

    @property
    def document_and_css_bytes(self) -> int:
        return self.wire_bytes.get("Document", 0) + self.wire_bytes.get("Stylesheet", 0)


def visits(browser: Browser, address: str, *, slowed: bool = True, slowdown: int = CPU_SLOWDOWN) -> tuple[Visit, Visit]:
    """The first visit of a browser that knows nothing of the site, and the next one.

    Without `slowed` machine and line are as they are, and seconds are not waited for and stay 0.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    try:
        page = context.new_page()
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        if slowed:
            session.send("Network.emulateNetworkConditions", FAST_3G)
            session.send("Emulation.setCPUThrottlingRate", {"rate": slowdown})
        current = Visit()
        kinds: dict[str, str] = {}

        def answered(event: dict[str, Any]) -> None:
            kinds[event["requestId"]] = event["type"]
            current.addresses.append(event["response"]["url"])

        def finished(event: dict[str, Any]) -> None:
            kind = kinds.get(event["requestId"], "Other")
            current.wire_bytes[kind] = current.wire_bytes.get(kind, 0) + round(event["encodedDataLength"])

        session.on("Network.responseReceived", answered)
        session.on("Network.loadingFinished", finished)
        cold = current
        cold.useful_s = _useful_s(page, address, slowed=slowed)
        page.goto("about:blank")
        warm = current = Visit()
        warm.useful_s = _useful_s(page, address, slowed=slowed)
        return cold, warm
    finally:
        context.close()


def _useful_s(page: Page, address: str, *, slowed: bool) -> float:
    page.goto(address, wait_until="load")
    if not slowed:
        return 0.0
    page.wait_for_timeout(SETTLED_MS)
    return float(page.evaluate(LARGEST_PAINT)) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site")
    parser.add_argument("paths", nargs="+")
    given = parser.parse_args()
    sys.stdout.write("page | cold s | warm s | document KiB | CSS KiB | scripts KiB\n")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.chromium_path(), args=chromium.launch_options())
        for path in given.paths:
            cold, warm = visits(browser, given.site + path)
            sizes = (cold.wire_bytes.get(kind, 0) / 1024 for kind in ("Document", "Stylesheet", "Script"))
            cells = (path, *(f"{value:.2f}" for value in (cold.useful_s, warm.useful_s, *sizes)))
            sys.stdout.write(" | ".join(cells) + "\n")
        browser.close()


if __name__ == "__main__":
    main()
