"""Predicted against measured speed of many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from autodeploy.figures.accuracy_svg import COLOURS, Point, groups_of
from autodeploy.figures.layout import quiet_figure
from autodeploy.figures.palette import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Sequence


def predicted_against_measured(points: Sequence[Point]) -> go.Figure:
    """A point a run, tokens per second and card on logarithmic axes, with the diagonal."""
    traces: list[Any] = []
    if points:
        values = [v for p in points for v in (p.measured, p.predicted)]
        ends = [min(values) / 1.1, max(values) * 1.1]
        line = {"color": REFERENCE, "width": 1}
        traces.append(go.Scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip"))
    for number, (name, members) in enumerate(groups_of(points).items()):
        traces.append(
            go.Scatter(
                name=name,
                x=[p.measured for p in members],
                y=[p.predicted for p in members],
                mode="markers",
                marker={"size": 8, "color": COLOURS[number % len(COLOURS)], "opacity": 0.75},
                customdata=[[p.name, f"{p.predicted / p.measured - 1.0:+.1%}"] for p in members],
                hovertemplate="%{customdata[0]}<br>%{y:,.0f} for %{x:,.0f}: %{customdata[1]}<extra></extra>",
            )
        )
    figure = quiet_figure(
        traces, x_title="measured tokens/s a card", y_title="predicted tokens/s a card", height_px=520
    )
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return figure
