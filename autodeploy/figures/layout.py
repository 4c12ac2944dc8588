"""What every figure shares: quiet axes, no background, a legend below, text that a page recolours for dark grounds.

Figures are written in plotly.js's own words, as mappings: plotly's Python objects check every value of every trace,
which takes a page of thousands of bars longer than all the rest of it. The tests hold every figure against those
objects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from autodeploy.figures.palette import GRID, OTHER, TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

FONT = "Inter, 'Segoe UI', system-ui, 'PingFang SC', 'Noto Sans SC', 'Microsoft YaHei', sans-serif"
Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """Traces and layout as plotly.js takes them."""

    data: list[Trace]
    layout: dict[str, Any]


def bar_trace(**fields: Any) -> Trace:
    """A trace of bars."""
    return {"type": "bar", **fields}


def point_trace(**fields: Any) -> Trace:
    """A trace of points or of lines between them."""
    return {"type": "scatter", **fields}


def front_trace(name: str, x: Sequence[float], y: Sequence[float]) -> Trace:
    """The steps of a Pareto front."""
    line = {"color": OTHER, "width": 1.5, "shape": "hv"}
    return point_trace(name=name, x=x, y=y, mode="lines", line=line, hoverinfo="skip")


def quiet_figure(traces: list[Trace], *, x_title: str, y_title: str, height_px: int, **layout: Any) -> Figure:
    """A figure of the given traces in the house style; `layout` overrides any of its settings, those within axes too.

    A page draws the legend itself, and on a narrow screen changes what `meta["narrow"]` says.
    """
    axis = {"gridcolor": GRID, "zeroline": False, "automargin": True, "linecolor": GRID, "ticks": ""}
    settings: dict[str, Any] = {
        "height": height_px,
        "margin": {"l": 8, "r": 16, "t": 12, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": TEXT},
        "separators": ".,",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        "hoverlabel": {"namelength": -1},
        "xaxis": axis | {"title": {"text": x_title}},
        "yaxis": axis | {"title": {"text": y_title}},
    }
    for name, value in layout.items():
        inside = name in {"xaxis", "yaxis"}
        settings[name] = settings[name] | value if inside else value
    return Figure(traces, settings)


def limit_line(along: str, value: float, colour: str, text: str, **place: Any) -> dict[str, Any]:
    """The layout's settings of a dashed line across the picture at a value of an axis, with a text at its end.

    Parameters
    ----------
    along : the axis of the value, x or y. place : where the text stands, in the words of an annotation.
    """
    other = "y" if along == "x" else "x"
    at = {f"{along}0": value, f"{along}1": value, f"{along}ref": along}
    across = {f"{other}0": 0, f"{other}1": 1, f"{other}ref": f"{other} domain"}
    line = {"color": colour, "width": 1.5, "dash": "dash"}
    annotation = {"text": text, "font": {"color": colour}, "showarrow": False, **place}
    annotation |= {along: value, f"{along}ref": along, f"{other}ref": f"{other} domain"}
    return {"shapes": [{"type": "line", "line": line, **at, **across}], "annotations": [annotation]}


def figure_json(figure: Figure) -> dict[str, Any]:
    """The figure as plain JSON values (`data` and `layout`), as plotly.js takes them."""
    return {"data": figure.data, "layout": figure.layout}


@cache
def plotly_js() -> str:
    """The source of plotly.js that the installed plotly brings; it draws what `figure_json` describes."""
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return source


@cache
def plotly_style_ids() -> tuple[str, ...]:
    """Ids of style sheets for its maps that plotly.js writes into a page unless an element of that id is there.

    A page with a strict content security policy brings such elements itself. Each id is a hash in the source.
    """
    return tuple(sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly_js()))))
