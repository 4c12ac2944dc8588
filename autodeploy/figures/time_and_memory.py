"""Step time against peak memory: what a faster plan costs in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.figures.labels import is_reference, picture_words
from autodeploy.figures.layout import front_trace, limit_line, point_trace, quiet_figure
from autodeploy.figures.palette import BEST, LIMIT, OTHER, REFERENCE
from autodeploy.reports.wording import degrees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.figures.layout import Figure, Trace
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan


NEAR_SHARE = 0.06  # of the axes: nearer points have no room for two texts


def pareto_front(plans: Sequence[Plan]) -> list[Plan]:
    """The plans that no other beats in both step time and peak memory, by rising memory."""
    front: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (p.peak_memory_gib, p.step_time_s, p.rank)):
        if not front or plan.step_time_s < front[-1].step_time_s:
            front.append(plan)
    return front


def time_and_memory(plans: Sequence[Plan], lang: Language = "en") -> Figure:
    """A point a plan with the intervals of its step time and memory, the Pareto front and the usable memory.

    The plan for comparison is left out: it is so far away that the plans would lie on each other.
    """
    words = picture_words(lang)
    traces: list[Trace] = []
    plans = [plan for plan in plans if not is_reference(plan)]
    front = pareto_front(plans)
    if len(front) > 1:
        traces.append(
            front_trace(words["front"], [plan.peak_memory_gib for plan in front], [plan.step_time_s for plan in front])
        )
    traces += [_points(plans, words["plan"], words)] if plans else []
    settings: dict[str, Any] = {}
    if plans:
        limit_gib = plans[0].memory_limit_gib
        left = min(limit_gib, *(_memory_ends(plan)[0] for plan in plans))
        right = max(limit_gib, *(_memory_ends(plan)[1] for plan in plans))
        margin = 0.09 * (right - left) or 1.0
        limit = f"{words['limit']} {limit_gib:.1f} GiB"
        settings = limit_line("x", limit_gib, LIMIT, limit, y=1, xanchor="right", yanchor="top", xshift=-4)
        settings["xaxis"] = {"range": [left - margin, right + margin]}
    return quiet_figure(
        traces, x_title=words["peak_memory_gib"], y_title=words["step_time_s"], height_px=380, **settings
    )


def _memory_ends(plan: Plan) -> tuple[float, float]:
    """The 80 % interval of the peak; without one the peak itself."""
    interval, peak_gib = plan.memory_interval, plan.peak_memory_gib
    return (
        (peak_gib, peak_gib)
        if interval is None
        else (min(interval.low_gib, peak_gib), max(interval.high_gib, peak_gib))
    )


def _ranks(plans: Sequence[Plan]) -> list[str]:
    """The rank beside each point; points that would write over each other share one text, such as `1, 3, 4`."""
    memory = [*(plan.peak_memory_gib for plan in plans), plans[0].memory_limit_gib]
    wide = NEAR_SHARE * (max(memory) - min(memory))
    high = NEAR_SHARE * (max(p.uncertainty.high_s for p in plans) - min(p.uncertainty.low_s for p in plans))
    names: dict[int, list[str]] = {}
    for index, plan in enumerate(plans):
        near = (
            n
            for n in names
            if abs(plans[n].peak_memory_gib - plan.peak_memory_gib) <= wide
            and abs(plans[n].step_time_s - plan.step_time_s) <= high
        )
        names.setdefault(next(near, index), []).append(str(plan.rank))
    return [", ".join(names.get(index, ())) for index in range(len(plans))]


def _whiskers(values: Sequence[float], ends: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Intervals around values."""
    both = list(zip(values, ends, strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - value) for value, (_, high) in both],
        "arrayminus": [max(0.0, value - low) for value, (low, _) in both],
        "thickness": 1,
        "width": 4,
        "color": REFERENCE,
    }


def _points(plans: Sequence[Plan], name: str, words: dict[str, str]) -> Trace:
    colours = [BEST if plan.rank == 1 else OTHER for plan in plans]
    return point_trace(
        name=name,
        x=[plan.peak_memory_gib for plan in plans],
        y=[plan.step_time_s for plan in plans],
        mode="markers+text",
        text=_ranks(plans),
        textposition="top left",  # the limit is on the right
        marker={"size": 13, "color": colours, "line": {"width": 1.5, "color": "#ffffff"}},
        error_x=_whiskers([p.peak_memory_gib for p in plans], [_memory_ends(p) for p in plans]),
        error_y=_whiskers([p.step_time_s for p in plans], [(p.uncertainty.low_s, p.uncertainty.high_s) for p in plans]),
        customdata=[
            [degrees(p.strategy), f"{words['interval_80']} {p.uncertainty.low_s:.2f}–{p.uncertainty.high_s:.2f} s"]
            for p in plans
        ],
        hovertemplate="%{customdata[0]}<br>%{y:.2f} s, %{x:.1f} GiB<br>%{customdata[1]}<extra></extra>",
    )
