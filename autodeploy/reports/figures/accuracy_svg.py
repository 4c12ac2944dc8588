"""Predicted against measured speed as SVG text: the same text for the same numbers, readable without scripts."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from autodeploy.messages import label, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.messages import Language

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

    Raises
    ------
    ValueError
        without points.
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
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#888888"{dash}/>',
        )
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
