"""Predicted against measured speed of many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.figures.accuracy_svg import COLOURS, Point, axis_titles, groups_of
from autodeploy.figures.layout import point_trace, quiet_figure
from autodeploy.figures.palette import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.figures.layout import Figure, Trace
    from autodeploy.messages import Language


def predicted_against_measured(points: Sequence[Point], lang: Language = "en") -> Figure:
    """A point a run, tokens per second and card on logarithmic axes, with the diagonal."""
    traces: list[Trace] = []
    if points:
        values = [v for p in points for v in (p.measured, p.predicted)]
        ends = [min(values) / 1.1, max(values) * 1.1]
        line = {"color": REFERENCE, "width": 1}
        traces.append(point_trace(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip"))
    for number, (name, members) in enumerate(groups_of(points).items()):
        traces.append(
            point_trace(
                name=name,
                x=[p.measured for p in members],
                y=[p.predicted for p in members],
                mode="markers",
                marker={"size": 8, "color": COLOURS[number % len(COLOURS)], "opacity": 0.75},
                customdata=[[p.name, f"{p.predicted / p.measured - 1.0:+.1%}"] for p in members],
                hovertemplate="%{customdata[0]}<br>%{y:,.0f} for %{x:,.0f}: %{customdata[1]}<extra></extra>",
            )
        )
    measured, predicted = axis_titles(lang)
    return quiet_figure(
        traces,
        x_title=measured,
        y_title=predicted,
        height_px=520,
        xaxis={"type": "log"},
        yaxis={"type": "log"},
    )
