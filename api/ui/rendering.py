"""From a template to a response: language, addresses, formats, headers, style sheets, scripts; made ready at the start.

Assets are served under addresses that change with their content, plotly.js from the installed package: nothing is
fetched from elsewhere.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from api.http.languages import language_of, requested_language, texts
from api.http.prefix import own_address
from api.ui.formats import FILTERS
from autodeploy import messages
from autodeploy.messages import LANGUAGES, Language
from autodeploy.reports.figures import layout as palette
from autodeploy.reports.figures.charts import MEMORY_FILE, shipped_points
from autodeploy.reports.figures.layout import plotly_js, plotly_style_ids
from autodeploy.service.calls import SMALL_SPEC
from autodeploy.space.rules import load_rules
from autodeploy.specs.spec import parse_spec
from hardware_profiles import list_profiles, load_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from autodeploy.service.session import Services


PLOTLY = "plotly.min.js"
STYLE = "pages.css"
SCRIPTS = "pages.js"
# What every page loads is one file each, fetched once and kept; plotly.js is fetched when the first figure is drawn.
_BUNDLES = {
    STYLE: ("palette.css", "base.css", "charts.css"),
    SCRIPTS: (
        "axis_ticks.js",
        "tabs.js",
        "copy.js",
        "details.js",
        "charts.js",
        "downloads.js",
        "new.js",
        "paste.js",
        "progress_curve.js",
        "progress.js",
        "searches.js",
        "start.js",
        "strategies.js",
        "timeline.js",
        "what_if.js",
    ),
}
_MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it goes over the wire."""

    name: str
    content: bytes
    media_type: str
    digest: str


@cache
def asset(name: str) -> Asset | None:
    """The file of that name, or None; read once."""
    content = _content(name)
    if content is None:
        return None
    suffix = name[name.rindex(".") :]
    digest = hashlib.sha256(content).hexdigest()[:12]
    return Asset(name, content, _MEDIA_TYPES[suffix], digest)


@cache
def compressed(name: str) -> bytes:
    """The file of that name as gzip; made when it is first sent, because plotly.js takes a while."""
    served = asset(name)
    if served is None:
        raise LookupError(f"no static file {name!r}")
    return gzip.compress(served.content, compresslevel=6, mtime=0)


def asset_url(name: str) -> str:
    """The address of a file, which may be cached for ever."""
    served = asset(name)
    if served is None:
        raise LookupError(f"no static file {name!r}")
    return f"/static/{name}?v={served.digest}"


def _content(name: str) -> bytes | None:
    if name in _BUNDLES:
        return _bundle(name)
    if name == PLOTLY:
        return plotly_js().encode()
    if name == "palette.css":
        return palette_css().encode()
    shipped = {entry.name: entry for entry in (files("api.ui") / "static").iterdir()}
    entry = shipped.get(name)
    return entry.read_bytes() if entry is not None and entry.is_file() else None


def _bundle(name: str) -> bytes:
    parts = []
    for part in _BUNDLES[name]:
        served = asset(part)
        if served is None:
            raise LookupError(f"no static file {part!r}")
        parts.append(served.content.strip())
    text = b"\n".join(parts)
    # In a function of their own, scripts share names with each other but with nobody else.
    return text if name == STYLE else b'"use strict";\n(() => {\n' + text + b"\n})();\n"


def palette_css() -> str:
    """The palette as classes, so that tables and bars have the colours of the figures."""
    colours = palette.PART_COLOURS | palette.MEMORY_COLOURS
    colours |= {f"fate-{fate}": colour for fate, colour in palette.FATE_COLOURS.items()}
    return "".join(f".c-{name} {{ fill: {colour}; background: {colour}; }}\n" for name, colour in colours.items())


# plotly.js would write a style sheet into the page; charts.css stands in for it, so 'self' is enough everywhere.
# It makes patterns with data: addresses and saved pictures with blob: ones.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
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
        | _spoken(lang)
        | {
            "paper": False,
            "at": at,
            "asset_url": lambda name: at(asset_url(name)),
            "link": link,
            "in_language": in_language,
            "path": request.url.path,
            "principal": getattr(request.state, "principal", None),
        }
    )
    return _compressed(request, HTMLResponse(html, status_code=status, headers=HEADERS | {"Content-Language": lang}))


def _spoken(lang: Language) -> dict[str, Any]:
    """Texts of the language for every template."""
    words = texts(lang)

    def t(key: str, **values: Any) -> str:
        return words[key].format(**values) if values else words[key]

    return {"t": t, "tr": partial(messages.in_language, lang=lang), "lang": lang}


def on_paper(template: str, lang: Language, **context: Any) -> str:
    """A page as one file: its styles inside, without scripts, and without what only a server answers."""
    style = Markup(_bundle(STYLE).decode())
    return ENVIRONMENT.get_template(template).render(context | _spoken(lang) | {"paper": True, "style": style})


def data(request: Request, value: Any) -> JSONResponse:
    """JSON for a script of a page."""
    return _compressed(request, JSONResponse(value, headers={"Cache-Control": "no-cache", "Vary": HEADERS["Vary"]}))


def _compressed(request: Request, answer: R) -> R:
    """No page holds a secret that its length could give away."""
    if "gzip" in request.headers.get("accept-encoding", ""):
        answer.body = gzip.compress(bytes(answer.body), compresslevel=5, mtime=0)
        answer.headers["Content-Encoding"] = "gzip"
        answer.headers["Content-Length"] = str(len(answer.body))
    return answer


READY_LIMIT_S = 20.0


def make_ready(services: Services) -> None:
    """Reads templates, texts, rules and profiles, while the processes that compute for requests start beside.

    Some two seconds of work on two cores, all of it kept for the life of the server. Who asked in these seconds would
    wait for all of it at once, or be refused because too many wait. Where a machine is so busy that it takes long, the
    processes go on beside the first requests.
    """
    end_s = time.monotonic() + READY_LIMIT_S
    starting = threading.Thread(target=services.make_ready, daemon=True)
    starting.start()
    warm_up()
    services.planner.check_space(parse_spec(SMALL_SPEC))  # as each submission does
    starting.join(max(0.0, end_s - time.monotonic()))


def warm_up() -> None:
    """Reads what pages need, whichever planner computes."""
    for name in list_profiles():
        load_profile(name)
    load_rules()
    for name in ENVIRONMENT.list_templates(extensions=["html"]):
        ENVIRONMENT.get_template(name)
    for lang in LANGUAGES:
        texts(lang)
    shipped_points()
    shipped_points(MEMORY_FILE)
    plotly_style_ids()
    for name in (STYLE, SCRIPTS, PLOTLY):
        compressed(name)
