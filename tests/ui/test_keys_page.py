"""The page of keys in a browser: who is logged in, both languages and schemes, and an admin who ends a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from api.app import create_app
from autodeploy.kit.settings import Settings
from tests.ui.conftest import PLANNER, fits_every_width, serving, visiting
from tests.ui.test_accessibility import ALL_FOLDS, violations_in_both_schemes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from autodeploy.service.requests.callers import AccessService


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[str, AccessService]]:
    """The address of a server that asks for keys, and those keys."""
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'keys.db'}", poll_s=0.1, auth="keys")
    app = create_app(settings, planner=PLANNER)
    with serving(app) as url:
        yield url, app.state.services.access


def log_in(page: Page, url: str, key: str, lang: str) -> None:
    page.goto(f"{url}/keys?lang={lang}")
    page.locator("input[name=key]").fill(key)
    page.locator("main form button").click()
    page.locator("dl.tiles").wait_for()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_admin_sees_all_keys_and_revokes_one(
    chromium_browser: Browser, locked: tuple[str, AccessService], lang: str
) -> None:
    url, access = locked
    key, _ = access.create("operator", "admin")
    other = access.create("vision-ci", "write", team="vision")[1].id
    with visiting(chromium_browser, url, viewport={"width": 390, "height": 844}, fresh=True) as visitor:
        page = visitor.page
        log_in(page, url, key, lang)
        expect(page.locator("header a.who")).to_have_attribute("aria-current", "page")
        fits_every_width(page)
        page.evaluate(ALL_FOLDS)
        assert violations_in_both_schemes(page) == []
        page.goto(f"{url}/keys?lang={lang}")
        page.locator("tbody tr", has_text=other).locator("summary").click()
        page.locator(f"form[action*='{other}/revoke'] button").click()
        expect(page.locator("tbody tr", has_text=other).locator("summary")).to_have_count(0)
        visitor.faults = [fault for fault in visitor.faults if "401" not in fault]  # the form to log in with
    assert [each.id for each in access.list() if each.revoked_at] == [other]
