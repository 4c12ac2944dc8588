"""Style sheets and scripts of the pages, under addresses that change with their content.

plotly.js is served from the installed package: nothing is fetched from elsewhere, nothing is copied into the project.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from autodeploy.reports.figures import layout as palette
from autodeploy.reports.figures.layout import plotly_js

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
