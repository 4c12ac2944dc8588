"""The peak of memory of every shipped record that has one, measured and predicted [GiB]: what the accuracy page lists.

Nothing of the memory model is fitted, so that every point is of a run that was left out.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from autodeploy.calibration.predict import predict_record
from autodeploy.figures.accuracy_svg import Point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.specs.record import Record

FILE = "memory_points.json"


@cache
def shipped_memory_points() -> tuple[Point, ...]:
    """The points of the shipped records, as `make accuracy` wrote them."""
    text = files("autodeploy.calibration").joinpath(FILE).read_text(encoding="utf-8")
    return tuple(Point(**point) for point in json.loads(text))


def memory_points(records: Sequence[Record], titles: Mapping[str, str]) -> list[Point]:
    """Peaks as each source counts them, and as predicted in that way; groups as those of the times.

    Parameters
    ----------
    titles : of the profiles; records on others are left out.
    """
    found = []
    for record in records:
        peak, title = record.measured.peak_memory_gib, titles.get(record.cluster.profile)
        if peak is not None and title is not None:
            group = f"{title}, {'experts' if record.model.is_moe else 'dense'}"
            predicted = predict_record(record, calibrated=False).memory_gib
            found.append(Point(f"{record.model.name} ({record.id})", group, peak, predicted))
    return sorted(found, key=lambda point: (point.group, point.name))
