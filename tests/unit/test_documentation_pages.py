"""The documentation is served: every page renders, its links lead to pages or nowhere, figures are sent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.ui.documentation import FOLDER, read_page

PAGES = sorted(
    str(path.relative_to(FOLDER).with_suffix(""))
    for folder in ("how-to", "explanation", "reference", "zh")
    for path in (FOLDER / folder).rglob("*.md")
)


@pytest.mark.parametrize("name", [*PAGES, "index", "tutorial"])
def test_every_page_renders_with_links_to_what_is_there(name: str) -> None:
    page = read_page(name.removeprefix("zh/"), "zh" if name.startswith("zh/") else "en")
    assert page is not None
    assert "<h1" in page.html
    assert "<!--" not in page.html
    for target in re.findall(r'(?:href|src)="([^"]+)"', page.html):
        if target.startswith(("http", "mailto:", "#")):
            continue
        file, _, anchor = target.removeprefix("docs/").partition("#")
        assert target.startswith("docs/")
        if file.endswith(".svg"):
            assert (FOLDER / file).is_file()
            continue
        other = read_page(file, page.lang)
        assert other is not None, target
        assert not anchor or f'id="{anchor}"' in other.html or page.lang == "zh", target


@pytest.mark.parametrize("name", ["../README", "/etc/passwd", "how-to/none", "", "how-to/../tutorial"])
def test_what_is_no_page_is_none(name: str) -> None:
    assert read_page(name, "en") is None


def test_links_of_pages_lead_to_pages_and_anchors_that_are_there() -> None:
    templates = Path(__file__).resolve().parents[2] / "api" / "ui" / "templates"
    led = [
        found
        for path in templates.glob("*.html")
        for found in re.findall(r'ui\.docs\(link, t, "([^"]+)", "([^"]*)"', path.read_text(encoding="utf-8"))
    ]
    assert len(led) >= 3
    for name, anchor in led:
        page = read_page(name, "en")
        assert page is not None
        assert not anchor or f'id="{anchor}"' in page.html
