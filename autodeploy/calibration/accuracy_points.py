"""Every shipped record as measured and as predicted by a fit that left its family out: what the accuracy plot shows."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from autodeploy.figures.accuracy_svg import Point

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = "accuracy_points.json"


@cache
def shipped_points() -> tuple[Point, ...]:
    """The points of the shipped records, as `make accuracy` wrote them."""
    text = files("autodeploy.calibration").joinpath(FILE).read_text(encoding="utf-8")
    return tuple(Point(**point) for point in json.loads(text))


def points_text(points: Sequence[Point]) -> str:
    """The file's text, six significant digits, one point a line."""
    rows = [
        json.dumps(
            {"name": p.name, "group": p.group, "measured": _rounded(p.measured), "predicted": _rounded(p.predicted)}
        )
        for p in points
    ]
    return "[\n" + ",\n".join(rows) + "\n]\n"


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
