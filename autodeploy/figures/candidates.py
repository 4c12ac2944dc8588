"""What became of the candidates of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from autodeploy.figures.labels import WORDS, Language
from autodeploy.figures.layout import quiet_figure
from autodeploy.figures.palette import FATE_COLOURS

if TYPE_CHECKING:
    from autodeploy.specs.planset import Counts


def candidates_by_fate(counts: Counts, lang: Language = "en") -> go.Figure:
    """One bar for each fate and each rule that rejected, on a logarithmic scale, the largest on top."""
    words = WORDS[lang]
    rows = [(rule, n, FATE_COLOURS["rejected"]) for rule, n in counts.rejected.items()]
    rows += [(words[f], int(getattr(counts, f)), FATE_COLOURS[f]) for f in ("too_big", "pruned", "solved")]
    rows = sorted([row for row in rows if row[1] > 0], key=lambda row: (-row[1], row[0]))
    bars = go.Bar(
        orientation="h",
        x=[n for _, n, _ in rows],
        y=[name for name, _, _ in rows],
        text=[f"{n:,}" for _, n, _ in rows],
        textposition="outside",
        cliponaxis=False,
        marker={"color": [colour for _, _, colour in rows], "line": {"width": 0}},
        hovertemplate="%{x:,} %{y}<extra></extra>",
    )
    figure = quiet_figure([bars], x_title=words["candidates"], y_title="", height_px=90 + 26 * max(1, len(rows)))
    figure.update_layout(yaxis_autorange="reversed", xaxis_type="log", bargap=0.3, margin_r=72, showlegend=False)
    figure.update_xaxes(dtick=1)
    return figure
