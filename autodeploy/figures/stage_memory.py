"""What fills the memory of each pipeline stage's cards, against what is usable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.figures.labels import memory_names, picture_words
from autodeploy.figures.layout import bar_trace, limit_line, quiet_figure
from autodeploy.figures.palette import LIMIT, MEMORY_COLOURS

if TYPE_CHECKING:
    from autodeploy.figures.layout import Figure
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan


def stage_memory(plan: Plan, lang: Language = "en") -> Figure:
    """One stacked bar a pipeline stage, in GiB on the card, and the line of the usable memory."""
    words = picture_words(lang)
    stages = [str(index) for index in range(len(plan.stages))]
    traces = []
    for field, colour in MEMORY_COLOURS.items():
        gib = [float(getattr(stage.memory_gib, field)) for stage in plan.stages]
        if any(gib):
            traces.append(
                bar_trace(
                    name=memory_names(lang)[field],
                    meta=field,
                    x=stages,
                    y=gib,
                    marker={"color": colour, "line": {"width": 0}},
                    hovertemplate="%{y:.2f} GiB",
                )
            )
    limit = f"{words['limit']} {plan.memory_limit_gib:.1f} GiB"
    return quiet_figure(
        traces,
        x_title=words["stage"],
        y_title=words["peak_memory_gib"],
        height_px=380,
        barmode="stack",
        bargap=0.3,
        xaxis={"type": "category", "showgrid": False},
        yaxis={"range": [0, 1.12 * max([plan.memory_limit_gib, *(stage.total_gib for stage in plan.stages)])]},
        **limit_line("y", plan.memory_limit_gib, LIMIT, limit, x=1, xanchor="right", yanchor="bottom"),
    )
