"""The documentation as pages of the server: Markdown of docs/, with links between its pages."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from markdown_it import MarkdownIt
from markupsafe import Markup

from api.http.languages import language_of, requested_language
from api.ui.page_inputs import not_found
from api.ui.rendering import render
from autodeploy.kit.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.token import Token

    from autodeploy.messages import Language

router = APIRouter(include_in_schema=False)

_API = Path(__file__).resolve().parents[1]
FOLDER = next((each for each in (_API / "documentation", _API.parent / "docs") if each.is_dir()), _API)
"""In a wheel beside the pages, in a checkout beside the packages."""
PAGE = re.compile(r"[a-z0-9_-]+(?:/[a-z0-9_-]+)*")
FIGURE = re.compile(r"explanation/figures/[a-z0-9_]+\.svg")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_EXTERNAL = ("http://", "https://", "mailto:", "#")


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its title, its HTML with addresses below `/docs`, and the language that it is in."""

    title: str
    html: str
    lang: Language


def read_page(name: str, lang: Language) -> Page | None:
    """The page of that name, in the reader's language where there is one; None where there is none."""
    if not PAGE.fullmatch(name):
        return None
    for folder, spoken in (("zh/", "zh"), ("", "en")):
        if spoken in {lang, "en"} and (FOLDER / f"{folder}{name}.md").is_file():
            return _page(f"{folder}{name}", spoken)
    return None


@cache
def titles(lang: Language) -> dict[str, str]:
    """Titles of pages in the language of an index, by the names of the pages."""
    index = read_page("index", lang)
    links = re.findall(r'href="docs/([^"#]*)[^"]*">([^<]*)<', "" if index is None else index.html)
    return {page: html.unescape(words) for page, words in links}


@cache  # of pages that are there: anybody can ask for names of others
def _page(name: str, lang: Language) -> Page:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(_COMMENT.sub("", text))
    title = name
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            words = tokens[place + 1].content
            token.attrSet("id", _anchor(words))
            title = words if token.tag == "h1" else title
        _led(token.children or (), PurePosixPath(name).parent)
    return Page(title, reader.renderer.render(tokens, reader.options, {}), lang)


def _anchor(words: str) -> str:
    """As GitHub makes it: lower case, without punctuation, with hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")


def _led(tokens: Sequence[Token], folder: PurePosixPath) -> None:
    """Turns addresses of files into those of pages; what no page shows keeps its words alone."""
    closing = []
    for token in tokens:
        if token.type == "link_open":
            target = _address(str(token.attrs["href"]), folder)
            token.tag, token.attrs = ("a", {"href": target}) if target else ("span", {})
            closing.append(token.tag)
        elif token.type == "link_close":
            token.tag = closing.pop()
        elif token.type == "image":
            target = _address(str(token.attrs["src"]), folder)
            if target is None:
                token.type, token.tag = "text", ""
            else:
                token.attrs["src"] = target


def _address(target: str, folder: PurePosixPath) -> str | None:
    if target.startswith(_EXTERNAL):
        return target
    file, sign, anchor = target.partition("#")
    name = normpath(folder / file).removeprefix("zh/")
    if name.startswith("../"):
        return None
    if FIGURE.fullmatch(name):
        return f"docs/{name}"
    page = name.removesuffix(".md")
    return f"docs/{page}{sign}{anchor}" if name.endswith(".md") and (FOLDER / name).is_file() else None


@router.get("/docs")
@router.get("/docs/{name:path}")
def documentation(request: Request, name: str = "index") -> Response:
    """A page of the documentation, or a figure of one."""
    if FIGURE.fullmatch(name) and (FOLDER / name).is_file():
        return FileResponse(FOLDER / name, media_type="image/svg+xml")
    page = read_page(name.strip("/") or "index", language_of(request))
    if page is None:
        return not_found(request, NotFoundError())
    title = page.title
    if page.lang != language_of(request):
        title = titles(language_of(request)).get(name.strip("/"), title)
    return _shown(request, page, title)


def _shown(request: Request, page: Page, title: str) -> HTMLResponse:
    kept = requested_language(request)

    def lead(found: re.Match[str]) -> str:
        name, address, anchor = found.groups()
        asked = f"?lang={kept}" if kept and name == "href" else ""
        return f'{name}="{request.scope.get("root_path", "")}/{address}{asked}{anchor}"'

    body = re.sub(r'(href|src)="(docs/[^"#]*)([^"]*)"', lead, page.html).replace("<pre>", '<pre tabindex="0">')
    return render(request, "docs.html", page=page, title=title, body=Markup(body))
