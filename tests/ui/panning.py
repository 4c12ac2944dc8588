"""What a picture costs the main thread of a page while it is moved: one step of the pointer a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.pace import slowness_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

STEPS = 60
MOST_SHARE = 0.05
TRIES = 3  # other tests may have the machine
LONG_MS = 50.0  # what browsers call a long task
WATCH = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((each) => each.duration)))
    .observe({ type: "longtask" });
}"""


def long_tasks_while_panning(page: Page, picture: Locator, *, shift: bool = False) -> int:
    """Tasks of the main thread of more than LONG_MS, on the usual machine, while the pointer drags a picture in STEPS
    frames; the fewest of some tries.
    """
    picture.scroll_into_view_if_needed()
    page.evaluate(WATCH)
    box = picture.bounding_box()
    assert box is not None
    y, found = box["y"] + box["height"] / 2, []
    for attempt in range(TRIES):
        page.wait_for_timeout(300)
        page.evaluate("window.longTasks.length = 0")
        x, step = box["x"] + box["width"] / 2, 4 if attempt % 2 else -4
        if shift:
            page.keyboard.down("Shift")
        page.mouse.move(x, y)
        page.mouse.down()
        for number in range(STEPS):
            page.mouse.move(x + step * number, y)
            page.evaluate("() => new Promise(requestAnimationFrame)")
        page.mouse.up()
        if shift:
            page.keyboard.up("Shift")
        long_ms = LONG_MS * slowness_of(page)
        found.append(sum(each_ms > long_ms for each_ms in page.evaluate("window.longTasks")))
        if found[-1] <= MOST_SHARE * STEPS:
            break
    return min(found)
