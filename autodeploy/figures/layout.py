"""What every figure shares: quiet axes, no background, a legend below, text that a page recolours for dark grounds."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from autodeploy.figures.palette import GRID, TEXT

FONT = "Inter, 'Segoe UI', system-ui, 'PingFang SC', 'Noto Sans SC', 'Microsoft YaHei', sans-serif"


def quiet_figure(traces: list[Any], *, x_title: str, y_title: str, height_px: int, **layout: Any) -> go.Figure:
    """A figure of the given traces in the house style; `layout` overrides any of its settings.

    A page draws the legend itself, and on a narrow screen changes what `meta["narrow"]` says.
    """
    axis = {"gridcolor": GRID, "zeroline": False, "automargin": True, "linecolor": GRID, "ticks": ""}
    settings: dict[str, Any] = {
        "template": go.layout.Template(),
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
    figure = go.Figure(data=traces, layout=settings)
    figure.update_layout(**layout)
    return figure


def figure_json(figure: go.Figure) -> dict[str, Any]:
    """The figure as plain JSON values (`data` and `layout`), as plotly.js takes them."""
    document: dict[str, Any] = json.loads(figure.to_json(validate=False))
    return {"data": document["data"], "layout": document["layout"]}


@cache
def plotly_js() -> str:
    """The source of plotly.js that the installed plotly brings; it draws what `figure_json` describes."""
    source: str = get_plotlyjs()
    return source


@cache
def plotly_style_ids() -> tuple[str, ...]:
    """Ids of style sheets for its maps that plotly.js writes into a page unless an element of that id is there.

    A page with a strict content security policy brings such elements itself. Each id is a hash in the source.
    """
    return tuple(sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly_js()))))
