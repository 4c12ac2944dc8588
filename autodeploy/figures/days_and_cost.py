"""Days against cost of plans on several clusters: what sooner costs, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.figures.labels import picture_words
from autodeploy.figures.layout import front_trace, limit_line, point_trace, quiet_figure
from autodeploy.figures.palette import LIMIT, PART_COLOURS
from autodeploy.reports.wording import degrees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.figures.layout import Figure
    from autodeploy.messages import Language
    from autodeploy.specs.clusters import ClusterComparison

COLOURS = tuple(PART_COLOURS[name] for name in ("compute_s", "exposed_ep_s", "optimizer_s", "recompute_s"))
MARGIN = {"l": 8, "r": 16, "t": 30, "b": 8}  # room for the deadline above the points
SYMBOLS = ("circle", "diamond", "square", "triangle-up")


def days_and_cost(comparison: ClusterComparison, titles: Sequence[str], lang: Language = "en") -> Figure:
    """A point a plan with its cards and the 80 % interval of its days, the Pareto front and the deadline.

    Parameters
    ----------
    titles : of the clusters, in their order.
    """
    words = picture_words(lang)
    front = sorted((p for answer in comparison.clusters for p in answer.points if p.on_front), key=lambda p: p.days)
    traces = []
    if len(front) > 1:
        traces.append(front_trace(words["front"], [point.days for point in front], [point.cost for point in front]))
    for index, answer in enumerate(comparison.clusters):
        points = answer.points
        traces.append(
            point_trace(
                name=titles[index],
                x=[point.days for point in points],
                y=[point.cost for point in points],
                mode="markers+text",
                text=[f"{point.num_npus:,}" for point in points],
                textposition="top center",
                marker={
                    "size": 13,
                    "color": COLOURS[index % len(COLOURS)],
                    "symbol": SYMBOLS[index % len(SYMBOLS)],
                    "line": {"width": 1.5, "color": "#ffffff"},
                },
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [point.days_high - point.days for point in points],
                    "arrayminus": [point.days - point.days_low for point in points],
                    "thickness": 1,
                    "width": 4,
                    "color": COLOURS[index % len(COLOURS)],
                },
                customdata=[[degrees(point.strategy), f"{point.num_npus:,}"] for point in points],
                hovertemplate=f"{titles[index]} \u00d7 %{{customdata[1]}}<br>%{{customdata[0]}}<br>%{{x:.1f}} "
                f"{words['days']}, %{{y:,.0f}}<extra></extra>",
            )
        )
    limit = limit_line(
        "x", comparison.days, LIMIT, f"{words['deadline']} {comparison.days:g}", y=1, yanchor="bottom", xanchor="center"
    )
    return quiet_figure(traces, x_title=words["days"], y_title=words["cost"], height_px=400, margin=MARGIN, **limit)
