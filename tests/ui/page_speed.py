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
FULL_SPEED = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
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


def visits(
    browser: Browser,
    address: str,
    *,
    slowed: int = 2,
    slowdown: int = CPU_SLOWDOWN,
    settled_ms: float = SETTLED_MS,
) -> tuple[Visit, Visit]:
    """The first visit of a browser that knows nothing of the site, and the next one.

    Parameters
    ----------
    slowed : on how many of the two machine and line are slow; on others seconds are not waited for and stay 0.
    settled_ms : so long after a page has loaded something larger may be painted.
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
        cold.useful_s = _useful_s(page, address, settled_ms if slowed else None)
        page.goto("about:blank")
        if slowed == 1:
            session.send("Network.emulateNetworkConditions", FULL_SPEED)
            session.send("Emulation.setCPUThrottlingRate", {"rate": 1})
        warm = current = Visit()
        warm.useful_s = _useful_s(page, address, settled_ms if slowed == 2 else None)
        return cold, warm
    finally:
        context.close()


def _useful_s(page: Page, address: str, settled_ms: float | None) -> float:
    page.goto(address, wait_until="load")
    if settled_ms is None:
        return 0.0
    page.wait_for_timeout(settled_ms)
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
