"""A step of reinforcement learning in two pictures: its phases on the cards, and the batch while it generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.figures.labels import phase_name, picture_words
from autodeploy.figures.layout import bar_trace, point_trace, quiet_figure
from autodeploy.figures.palette import BEST, OTHER, REST, RL_COLOURS

if TYPE_CHECKING:
    from autodeploy.figures.layout import Figure
    from autodeploy.messages import Language
    from autodeploy.specs.rl_plan import RlPlan


def phases_timeline(rl: RlPlan, lang: Language = "en") -> Figure:
    """Each phase as a bar from its start to its end, on the cards that it runs on; one trace a phase."""
    words = picture_words(lang)
    traces = [
        bar_trace(
            name=phase_name(phase.name, lang),
            meta=phase.name,
            orientation="h",
            x=[phase.end_s - phase.start_s],
            base=[phase.start_s],
            y=[words[phase.devices]],
            marker={"color": RL_COLOURS.get(phase.name, OTHER), "line": {"width": 0}},
            hovertemplate="%{base:.1f} + %{x:.1f} s",
        )
        for phase in rl.phases
        if phase.end_s > phase.start_s
    ]
    return quiet_figure(traces, x_title="s", y_title="", height_px=220, barmode="overlay")


def batch_over_time(rl: RlPlan, lang: Language = "en") -> Figure:
    """Sequences that decode at once, on the fullest rank and on a mean one; the tail is shaded."""
    words, points = picture_words(lang), rl.generation.batch_over_time
    until = [point.until_s for point in points]
    traces = [
        point_trace(name=words[name], meta=name, mode="lines", x=until, y=values, line={"color": colour, "shape": "vh"})
        for name, values, colour in (
            ("fullest", [point.batch for point in points], BEST),
            ("mean", [point.mean_batch for point in points], OTHER),
        )
    ]
    tail = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "fillcolor": REST, "line": {"width": 0}}
    shapes = [{**tail, "x0": rl.generation.tail_starts_s, "x1": until[-1]}] if until else []
    return quiet_figure(traces, x_title="s", y_title=words["sequences"], height_px=260, shapes=shapes)
