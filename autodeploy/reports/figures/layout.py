"""Common layout of figures: quiet axes, no background, a legend below, text that a page recolours for dark grounds.

Figures are written in plotly.js's own words, as mappings: plotly's Python objects check every value of every trace,
which takes a page of thousands of bars longer than all the rest of it. The tests hold every figure against those
objects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


# The one palette.
PART_COLOURS: dict[str, str] = {
    "compute_s": "#3f74b8",
    "uneven_stages_s": "#6896cc",
    "imbalance_s": "#93b8e4",
    "recompute_s": "#7c62b3",
    "exposed_swap_s": "#b9a3d9",
    "exposed_tp_s": "#efb45f",
    "exposed_ep_s": "#dd7a3c",
    "exposed_cp_s": "#c4574d",
    "exposed_dp_s": "#b58a55",
    "exposed_pp_s": "#e6a594",
    "pipeline_bubble_s": "#a3a9b3",
    "host_bound_s": "#4a978c",
    "optimizer_s": "#84b676",
    "generation_s": "#56708f",
    "hand_over_s": "#d9c06a",
}
"""Breakdown field to colour, in the order in which the parts are stacked."""

RL_COLOURS: dict[str, str] = {
    "generation": "#56708f",
    "hand_over": "#d9c06a",
    "onload_training": "#b9a3d9",
    "offload_training": "#b9a3d9",
    "preparation": "#a3a9b3",
    "log_probabilities": "#93b8e4",
    "reference": "#84b676",
    "values": "#4a978c",
    "reward": "#efb45f",
    "critic_update": "#7c62b3",
    "update": "#3f74b8",
}
"""Phase of a step of reinforcement learning to colour."""

MEMORY_COLOURS: dict[str, str] = {
    "weights": "#3f74b8",
    "gradients": "#93b8e4",
    "optimizer": "#84b676",
    "activations": "#7c62b3",
    "workspace": "#b9a3d9",
    "communication_buffers": "#dd7a3c",
    "runtime": "#a3a9b3",
}
"""Memory field to colour, in the order in which the parts are stacked."""

LAYER_COLOURS: dict[str, str] = {"dense": "#93b8e4", "moe": "#3f74b8"}
LAYER_INK: dict[str, str] = {"dense": "#1b2430", "moe": "#ffffff"}

SLOT_COLOURS: dict[str, str] = {"forward": "#93b8e4", "backward": "#3f74b8", "pair": "#7c62b3", "after": "#84b676"}

REST = "rgba(128, 134, 144, 0.22)"
"""What is there beside what is told."""

LANE_COLOURS: dict[str, str] = {
    "compute": PART_COLOURS["compute_s"],
    "communication": PART_COLOURS["exposed_ep_s"],
    "host": PART_COLOURS["host_bound_s"],
    "bubble": PART_COLOURS["pipeline_bubble_s"],
}
"""What fills a slot of the pipeline, and what is between slots."""

FATE_COLOURS: dict[str, str] = {
    "rejected": "#a3a9b3",
    "too_big": "#c4574d",
    "pruned": "#efb45f",
    "solved": "#4a978c",
}

BEST = "#3f74b8"
OTHER = "#93b8e4"
REFERENCE = "#a3a9b3"
LIMIT = "#c4574d"
GRID = "rgba(128, 134, 144, 0.28)"
TEXT = "#6b7280"


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


def notebook_figure(figure: Figure) -> Any:
    """The figure as plotly's Python object, which notebooks show."""
    from plotly.graph_objects import Figure as PlotlyFigure

    return PlotlyFigure(figure_json(figure))


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
