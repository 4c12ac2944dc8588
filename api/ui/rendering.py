"""From a template to a response: language, addresses, formats and the headers every page carries."""

from __future__ import annotations

import gzip
import json
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from api.prefix import own_address
from api.ui.assets import asset_url
from api.ui.formats import FILTERS
from api.ui.languages import language_of, requested_language, texts
from autodeploy import messages
from autodeploy.reports.figures.layout import plotly_style_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

# plotly.js would write a style sheet into the page; charts.css stands in for it, so 'self' is enough everywhere.
# It makes patterns and saved pictures with data: addresses.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Vary": "Accept-Language, Accept-Encoding",
    "Cache-Control": "no-cache",
}
R = TypeVar("R", bound=Response)


def json_island(value: Any) -> Markup:
    """JSON that may stand inside a script element: no character in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("api.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS, json_island=json_island, translated=messages.in_language)
    environment.globals.update(plotly_style_ids=plotly_style_ids, version=version("autodeploy"))
    return environment


ENVIRONMENT = _environment()


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """The page; addresses made with `link` keep the language that the reader asked for, those with `at` do not."""
    lang = language_of(request)
    kept = requested_language(request)
    words = texts(lang)

    def t(key: str, **values: Any) -> str:
        return words[key].format(**values) if values else words[key]

    def at(path: str) -> str:
        return own_address(request, path)

    def link(path: str, query: Mapping[str, Any] | None = None) -> str:
        pairs = [(k, v) for k, v in (query or {}).items() if v not in (None, "")]
        if kept is not None and "lang" not in dict(pairs):
            pairs.append(("lang", kept))
        return at(path) + ("?" + urlencode(pairs) if pairs else "")

    def in_language(other: str) -> str:
        query = dict(request.query_params) | {"lang": other}
        path = request.url.path
        if request.method == "POST" and path.count("/") > 1:  # the answer of a box: its page, which can be asked again
            path = path.rpartition("/")[0]
        return at(path) + "?" + urlencode(query)

    html = ENVIRONMENT.get_template(template).render(
        context
        | {
            "t": t,
            "tr": partial(messages.in_language, lang=lang),
            "lang": lang,
            "at": at,
            "asset_url": lambda name: at(asset_url(name)),
            "link": link,
            "in_language": in_language,
            "path": request.url.path,
        }
        | {"session_of": getattr(getattr(request.state, "principal", None), "name", "")}
    )
    return _compressed(request, HTMLResponse(html, status_code=status, headers=HEADERS | {"Content-Language": lang}))


def data(request: Request, value: Any) -> JSONResponse:
    """What a script of a page asks for, as JSON."""
    return _compressed(request, JSONResponse(value, headers={"Cache-Control": "no-cache", "Vary": HEADERS["Vary"]}))


def _compressed(request: Request, answer: R) -> R:
    """No page holds a secret that its length could give away."""
    if "gzip" in request.headers.get("accept-encoding", ""):
        answer.body = gzip.compress(bytes(answer.body), compresslevel=5, mtime=0)
        answer.headers["Content-Encoding"] = "gzip"
        answer.headers["Content-Length"] = str(len(answer.body))
    return answer
