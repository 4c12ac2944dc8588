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
from autodeploy.importers.spec_file import read_spec_file
from autodeploy.jobs.planning import PLANNER
from autodeploy.services import open_services
from autodeploy.settings import Settings
from tests.support import chromium
from tests.ui.conftest import serving, visiting

if TYPE_CHECKING:
    from autodeploy.services import Services

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHOWN = "deepseek_v3_cloudmatrix_384.yaml"
OTHERS = ("cannot_fit.yaml",)
WIDTH_PX = 1280


def plan_examples(services: Services) -> str:
    """Plans the examples and returns the id of the search that is shown; it is the newest."""
    for name in (*OTHERS, SHOWN):
        shown = services.searches.plan_and_store(read_spec_file(EXAMPLES / name)).search.id
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as data, sync_playwright() as playwright:
        settings = Settings(database_url=f"sqlite:///{data}/pages.db")
        with open_services(settings, planner=PLANNER) as services:
            shown = plan_examples(services)
        browser = playwright.chromium.launch(executable_path=chromium.chromium_path(), args=chromium.launch_options())
        with serving(create_app(settings)) as url:
            pictures = {
                "searches": ("/?lang=en", "light", 560),
                "search": (f"/searches/{shown}?lang=en", "light", 1560),
                "search_zh_dark": (f"/searches/{shown}?lang=zh", "dark", 1180),
                "new_search": ("/new?lang=en", "light", 940),
                "hardware": ("/profiles/cloudmatrix-384?lang=en", "light", 900),
            }
            for name, (path, scheme, height_px) in pictures.items():
                with visiting(browser, url, color_scheme=scheme) as visitor:
                    page = visitor.open(path)
                    clip = {"x": 0, "y": 0, "width": WIDTH_PX, "height": height_px}
                    page.screenshot(path=str(directory / f"{name}.png"), full_page=True, clip=clip)  # type: ignore[arg-type]
        browser.close()


if __name__ == "__main__":
    main()
