"""The shipped records as measured and as predicted, for the accuracy page; `make accuracy` writes them.

Times are predicted by a fit that left the record's family out; nothing of the memory model is fitted.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from autodeploy.figures.accuracy_svg import Point

SPEED_FILE = "accuracy_points.json"
MEMORY_FILE = "memory_points.json"


@cache
def shipped_points(file: str = SPEED_FILE) -> tuple[Point, ...]:
    """Tokens per second and card; of MEMORY_FILE peaks of memory [GiB], as each source counts them."""
    text = files("autodeploy.calibration").joinpath(file).read_text(encoding="utf-8")
    return tuple(Point(**point) for point in json.loads(text))
