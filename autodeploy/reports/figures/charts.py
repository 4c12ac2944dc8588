"""Parts of the time of a step: one stacked bar a plan."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from autodeploy.messages import label, text_of
from autodeploy.reports.figures.layout import (
    BEST,
    LIMIT,
    MEMORY_COLOURS,
    OTHER,
    PART_COLOURS,
    REFERENCE,
    REST,
    RL_COLOURS,
    bar_trace,
    front_trace,
    limit_line,
    point_trace,
    quiet_figure,
)
from autodeploy.reports.wording import (
    degrees,
    is_reference,
    memory_names,
    part_names,
    phase_name,
    picture_words,
    plan_label,
    short_label,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.messages import Language
    from autodeploy.reports.figures.layout import Figure, Trace
    from autodeploy.specs.answers import ClusterComparison
    from autodeploy.specs.plan_details import RlPlan
    from autodeploy.specs.planset import Plan


SPEED_FILE, MEMORY_FILE = "accuracy_points.json", "memory_points.json"
WIDTH, HEIGHT = 700, 520
LEFT, RIGHT, TOP, BOTTOM = 72, 210, 40, 52
COLOURS = ("#3f74b8", "#dd7a3c", "#4a978c", "#7c62b3", "#c4574d", "#8c8c8c")
BAND = 1.10  # lines 10 % off the diagonal


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of paper and ink; a page that may be dark lends its own ink."""

    ground: str = "#ffffff"
    ink: str = "#222222"
    quiet: str = "#444444"
    grid: str = "#e2e2e2"


PAPER = Theme()
PAGE = Theme("none", "currentColor", "currentColor", "#80869048")


@dataclass(frozen=True, slots=True)
class Point:
    """One measured run: tokens per second and card."""

    name: str
    group: str
    measured: float
    predicted: float


@cache
def shipped_points(file: str = SPEED_FILE) -> tuple[Point, ...]:
    """The shipped records: tokens per second and card by a fit that left the record's family out; of MEMORY_FILE peaks
    of memory [GiB], as each source counts them. `make accuracy` writes them.
    """
    text = files("autodeploy.calibration").joinpath(file).read_text(encoding="utf-8")
    return tuple(Point(**point) for point in json.loads(text))


def axis_titles(lang: Language) -> tuple[str, str]:
    """Of the measured and the predicted speed."""
    speed = label(lang, "tokens_per_s_per_npu")
    return text_of(lang, "figure.measured_of", quantity=speed), text_of(lang, "figure.predicted_of", quantity=speed)


def groups_of(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points by group, in the order in which groups first appear."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    return groups


def predicted_against_measured_svg(
    points: Sequence[Point], title: str, *, lang: Language = "en", theme: Theme = PAPER
) -> str:
    """A scatter on logarithmic axes with the diagonal and lines 10 % off it.

    Raises ValueError without points.
    """
    if not points:
        raise ValueError("a plot needs at least one point")
    values = [v for p in points for v in (p.measured, p.predicted)]
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    groups = groups_of(points)
    counts = text_of(lang, "list.semicolon").join(f"{name} ({len(members)})" for name, members in groups.items())
    measured, predicted = axis_titles(lang)
    described = text_of(lang, "figure.logarithmic", vertical=predicted, horizontal=measured, groups=counts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(described)}</desc>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{theme.ground}"/>',
        f'<text x="{LEFT}" y="22" font-weight="bold" fill="{theme.ink}">{escape(title)}</text>',
        *_axes(low, high, (measured, predicted), theme),
        *_diagonals(low, high),
    ]
    for number, (name, members) in enumerate(groups.items()):
        parts += _group(name, members, number, low, high, theme.ink)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(value: float, low: float, high: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(value) - low) / (high - low)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(value) - low) / (high - low)


def _axes(low: float, high: float, titles: tuple[str, str], theme: Theme) -> list[str]:
    parts = []
    steps = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    for value in (v for v in steps if low <= math.log10(v) <= high):
        x, y = f"{_x(value, low, high):.1f}", f"{_y(value, low, high):.1f}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="{theme.grid}"/>')
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="{theme.grid}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y}" dy="4" text-anchor="end" fill="{theme.quiet}">{_tick(value)}</text>'
        )
        parts.append(
            f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="{theme.quiet}">{_tick(value)}</text>'
        )
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle" fill="{theme.ink}">{titles[0]}</text>')
    parts.append(
        f'<text transform="translate(16 {HEIGHT / 2:.1f}) rotate(-90)" text-anchor="middle" fill="{theme.ink}">'
        f"{titles[1]}</text>"
    )
    return parts


def _tick(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _diagonals(low: float, high: float) -> list[str]:
    parts = []
    for factor, dash in ((1.0, ""), (BAND, ' stroke-dasharray="4 4"'), (1.0 / BAND, ' stroke-dasharray="4 4"')):
        first, last = 10.0**low * max(1.0, 1.0 / factor), 10.0**high / max(1.0, factor)
        ends = [(_x(v, low, high), _y(v * factor, low, high)) for v in (first, last)]
        (x1, y1), (x2, y2) = ends
        parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#888888"{dash}/>')
    return parts


def _group(name: str, members: Sequence[Point], number: int, low: float, high: float, ink: str) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    parts = [
        f'<circle cx="{_x(p.measured, low, high):.1f}" cy="{_y(p.predicted, low, high):.1f}" r="3.5" fill="{colour}" '
        f'fill-opacity="0.7"><title>{escape(p.name)}: {p.predicted / p.measured - 1.0:+.1%}</title></circle>'
        for p in members
    ]
    height = TOP + 12 + 18 * number
    parts.append(f'<circle cx="{WIDTH - RIGHT + 14}" cy="{height}" r="4" fill="{colour}"/>')
    parts.append(f'<text x="{WIDTH - RIGHT + 24}" y="{height}" dy="4" fill="{ink}">{escape(name)}</text>')
    return parts


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


# What fills the memory of each pipeline stage's cards, against what is usable.
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


# Step time against peak memory.
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


def _whiskers(values: Sequence[float], ends: Sequence[tuple[float, float]], colour: str = REFERENCE) -> dict[str, Any]:
    """Intervals around values."""
    both = list(zip(values, ends, strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - value) for value, (_, high) in both],
        "arrayminus": [max(0.0, value - low) for value, (low, _) in both],
        "thickness": 1,
        "width": 4,
        "color": colour,
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


# Days against cost of plans on several clusters.
CLUSTER_COLOURS = tuple(PART_COLOURS[name] for name in ("compute_s", "exposed_ep_s", "optimizer_s", "recompute_s"))
MARGIN = {"l": 8, "r": 16, "t": 30, "b": 8}  # room for the deadline above the points
SYMBOLS = ("circle", "diamond", "square", "triangle-up")


def days_and_cost(comparison: ClusterComparison, titles: Sequence[str], lang: Language = "en") -> Figure:
    """A point a plan with its cards and the 80 % interval of its days, the Pareto front and the deadline.

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
                    "color": CLUSTER_COLOURS[index % len(CLUSTER_COLOURS)],
                    "symbol": SYMBOLS[index % len(SYMBOLS)],
                    "line": {"width": 1.5, "color": "#ffffff"},
                },
                error_x=_whiskers(
                    [point.days for point in points],
                    [(point.days_low, point.days_high) for point in points],
                    CLUSTER_COLOURS[index % len(CLUSTER_COLOURS)],
                ),
                customdata=[[degrees(point.strategy), f"{point.num_npus:,}"] for point in points],
                hovertemplate=f"{titles[index]} \u00d7 %{{customdata[1]}}<br>%{{customdata[0]}}<br>%{{x:.1f}} "
                f"{words['days']}, %{{y:,.0f}}<extra></extra>",
            )
        )
    limit = limit_line(
        "x", comparison.days, LIMIT, f"{words['deadline']} {comparison.days:g}", y=1, yanchor="bottom", xanchor="center"
    )
    return quiet_figure(traces, x_title=words["days"], y_title=words["cost"], height_px=400, margin=MARGIN, **limit)


# A step of reinforcement learning in two pictures.
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


# Predicted against measured speed of many runs.
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
