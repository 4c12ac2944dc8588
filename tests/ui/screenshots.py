"""Takes the pictures of the documentation from a server that plans the examples with the real planner.

python -m tests.ui.screenshots docs/images
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from api.app import create_app
from autodeploy.formats.measurements.measured_file import read_measured_text
from autodeploy.kit.settings import Settings
from autodeploy.service.clusters.overlays import only_run
from autodeploy.service.runner.planning import PLANNER
from autodeploy.service.session import open_services
from autodeploy.specs.reading import read_spec_file
from tests.support import chromium
from tests.ui.conftest import serving, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from autodeploy.service.session import Services

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHOWN = "deepseek_v3_cloudmatrix_384.yaml"
OTHERS = ("cannot_fit.yaml", "llama2_70b_32.yaml")
WIDTH_PX = 1280
BELOW_PX = 20
CANVAS_MS = 120_000  # the first sweep of a large search waits for a process of the server


def plan_examples(services: Services) -> str:
    """Plans the examples and returns the id of the search that is shown; it is the newest."""
    for name in (*OTHERS, SHOWN):
        shown = services.searches.plan_and_store(read_spec_file(EXAMPLES / name)).search.id
    return shown


def measure_runs(services: Services) -> None:
    """Made-up measurements near the predictions, for the picture of the ledger."""
    for search in services.searches.list(limit=10).items:
        if search.best_plan_id is None:
            continue
        step_s = services.searches.plan(search.best_plan_id).plan.step_time_s
        log = "step,step_time_s\n" + "".join(
            f"{n},{step_s * (1.4 if n == 1 else 1.07 + 0.002 * (n % 3))}\n" for n in range(1, 9)
        )
        services.runs.add(search.best_plan_id, only_run(read_measured_text(log)))
        parts = services.searches.plan(search.best_plan_id).plan.breakdown
        computing = parts.compute_s + parts.recompute_s + parts.imbalance_s + parts.optimizer_s
        exposed = parts.exposed_tp_s + parts.exposed_ep_s + parts.exposed_dp_s
        bubble = parts.pipeline_bubble_s + parts.exposed_pp_s
        us = [1e6 * v for v in (1.06 * computing, 1.2 * exposed + bubble, 0.02 * step_s, bubble)]
        trace = "Device_id,Step,Computing,Communication(Not Overlapped),Free,Bubble\n0,1," + ",".join(map(str, us))
        services.runs.add(search.best_plan_id, only_run(read_measured_text(trace)))


def draw_canvases(page: Page) -> None:
    """Brings each picture that the page draws itself into view, waits for it, and goes back to the top."""
    for box in ("#all-strategies", "#timeline-box"):
        if page.locator(f"{box} canvas").is_visible():
            page.locator(f"{box} canvas").scroll_into_view_if_needed()
            page.wait_for_selector(f"{box}[data-drawn]", timeout=CANVAS_MS)
    page.evaluate("() => window.scrollTo({ top: 0, behavior: 'instant' })")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as data, sync_playwright() as playwright:
        settings = Settings(database_url=f"sqlite:///{data}/pages.db")
        with open_services(settings, planner=PLANNER) as services:
            shown = plan_examples(services)
            plans = [plan.plan_id for plan in services.searches.plans(shown)]
        browser = playwright.chromium.launch(executable_path=chromium.chromium_path(), args=chromium.launch_options())
        with serving(create_app(settings), at_once=True) as url:
            # Name: address, colours, and the part of the page that the picture ends with.
            pictures = {
                "searches": ("/?lang=en", "light", "main"),
                "search": (f"/searches/{shown}?lang=en", "light", "section:has(#ranked)"),
                "search_zh": (f"/searches/{shown}?lang=zh#pictures", "light", "section:has(#time)"),
                "search_zh_dark": (f"/searches/{shown}?lang=zh#outlook", "dark", "section:has(#run)"),
                "plan": (f"/plans/{plans[0]}?lang=en", "light", "section:has(#timeline)"),
                "compare": (f"/compare?plans={','.join(plans[:3])}&lang=en", "light", "main"),
                "new_search": ("/new?lang=en", "light", "#fields"),
                "hardware": ("/profiles/cloudmatrix-384?lang=en", "light", "section:has(#g2)"),
                "accuracy_page": ("/accuracy?lang=en", "light", "section:has(#profiler)"),
            }
            for name, (path, scheme, last) in pictures.items():
                if name == "accuracy_page":  # the last: a run makes the other pictures' plans old
                    with open_services(settings, planner=PLANNER) as services:
                        measure_runs(services)
                with visiting(browser, url, color_scheme=scheme) as visitor:
                    page = visitor.open(path, charts=True)
                    draw_canvases(page)
                    box = page.locator(last).first.bounding_box()
                    assert box is not None
                    clip = {"x": 0, "y": 0, "width": WIDTH_PX, "height": box["y"] + box["height"] + BELOW_PX}
                    page.screenshot(path=str(directory / f"{name}.png"), full_page=True, clip=clip)  # type: ignore[arg-type]
        browser.close()


if __name__ == "__main__":
    main()
