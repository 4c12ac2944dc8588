"""Where the time of a step goes: one stacked bar a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.figures.labels import part_names, picture_words, plan_label, short_label
from autodeploy.figures.layout import bar_trace, quiet_figure
from autodeploy.figures.palette import PART_COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.figures.layout import Figure
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan

_ROW_PX = 38
_FRAME_PX = 150


def step_time_breakdown(plans: Sequence[Plan], lang: Language = "en") -> Figure:
    """Stacked horizontal bars, in seconds, best plan on top; the bars of a plan sum to its step time.

    Parts that are zero in every plan get no trace.
    """
    rows = [plan_label(plan, lang) for plan in plans]
    traces = []
    for field, colour in PART_COLOURS.items():
        seconds = [float(getattr(plan.breakdown, field)) for plan in plans]
        if not any(seconds):
            continue
        shares = [_share_pct(part_s, plan.step_time_s) for part_s, plan in zip(seconds, plans, strict=True)]
        traces.append(
            bar_trace(
                name=part_names(lang)[field],
                meta=field,
                orientation="h",
                x=seconds,
                y=rows,
                customdata=shares,
                marker={"color": colour, "line": {"width": 0}},
                hovertemplate="%{x:.3f} s (%{customdata:.1f} %)",
            )
        )
    short = [short_label(plan, lang) for plan in plans]
    return quiet_figure(
        traces,
        x_title=picture_words(lang)["step_time_s"],
        y_title="",
        height_px=_FRAME_PX + _ROW_PX * len(rows),
        barmode="stack",
        bargap=0.35,
        yaxis={"autorange": "reversed", "type": "category"},
        hovermode="closest",
        meta={"narrow": {"yaxis.tickvals": rows, "yaxis.ticktext": short, "xaxis.nticks": 4, "xaxis.tickangle": 0}},
    )


def _share_pct(part_s: float, step_time_s: float) -> float:
    return 100.0 * part_s / step_time_s if step_time_s > 0 else 0.0
