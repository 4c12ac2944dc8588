"""A line chart as SVG text: the same text for the same numbers on every machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 176, 36, 48
COLOURS = ("#3a6fb7", "#d97a3a", "#4c9a7a", "#7f63b8", "#8c8c8c")


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over common x values; `log2` spaces x by doublings."""

    title: str
    x_title: str
    y_title: str
    x: Sequence[float]
    lines: dict[str, Sequence[float]]
    log2: bool = True
    y_max: float | None = None


def svg(chart: Chart) -> str:
    """The chart with axes, grid, direct labels and a text alternative."""
    top = chart.y_max if chart.y_max is not None else _round_up(max(max(values) for values in chart.lines.values()))
    first, last = (_scale(chart, chart.x[0]), _scale(chart, chart.x[-1]))

    def place_x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (_scale(chart, value) - first) / (last - first)

    def place_y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    alternative = "; ".join(f"{name}: from {values[0]:.3g} to {values[-1]:.3g}" for name, values in chart.lines.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" font-family="sans-serif" font-size="12">',
        f"<title>{escape(chart.title)}</title>",
        f"<desc>{escape(chart.y_title)} over {escape(chart.x_title)}. {escape(alternative)}.</desc>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-weight="bold" fill="#222222">{escape(chart.title)}</text>',
        *_grid(chart, top, place_x, place_y),
    ]
    parts += _curves(chart, place_x, place_y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _scale(chart: Chart, value: float) -> float:
    return math.log2(value) if chart.log2 else value


def _round_up(value: float) -> float:
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if unit * step >= value)


def _grid(chart: Chart, top: float, place_x: Callable[[float], float], place_y: Callable[[float], float]) -> list[str]:
    parts = []
    for value in (top * step / 4 for step in range(5)):
        height = f"{place_y(value):.1f}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height}" y2="{height}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{height}" dy="4" text-anchor="end" fill="#444444">{value:g}</text>')
    every = max(1, len(chart.x) // 8)
    for value in chart.x[::every]:
        x = f"{place_x(value):.1f}"
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="#444444">{value:g}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle" fill="#222222">{escape(chart.x_title)}</text>'
    )
    parts.append(
        f'<text transform="translate(16 {HEIGHT / 2:.1f}) rotate(-90)" text-anchor="middle" '
        f'fill="#222222">{escape(chart.y_title)}</text>'
    )
    return parts


def _curves(chart: Chart, place_x: Callable[[float], float], place_y: Callable[[float], float]) -> list[str]:
    parts = []
    ends = _apart([place_y(values[-1]) for values in chart.lines.values()])
    for (name, values), colour, end in zip(chart.lines.items(), COLOURS, ends, strict=False):
        points = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in zip(chart.x, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{end:.1f}" dy="4" fill="{colour}">{escape(name)}</text>')
    return parts


def _apart(heights: list[float], distance: float = 15.0) -> list[float]:
    """Heights of labels, moved down until none covers another."""
    moved = list(heights)
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + distance)
    return moved
