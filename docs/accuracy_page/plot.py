"""docs/accuracy.md, its plot and the plot's points, from the shipped records; `make accuracy` writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.record_prediction import predict_record
from autodeploy.reports.figures.charts import MEMORY_FILE, Point, predicted_against_measured_svg
from docs.accuracy_page.page import page
from docs.accuracy_page.sets import A100, ASCEND, B200, H100
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from autodeploy.specs.record import Record
    from docs.accuracy_page.aims import Line
    from docs.accuracy_page.errors import Runs
    from docs.accuracy_page.measures import Measures

TITLES = {ASCEND: "800T A2 and A3", A100: "A100", H100: "H100", B200: "B200"}


def memory_titles(records: Sequence[Record]) -> dict[str, str]:
    """Profile -> title of its group of peaks: its own, else that of a device of the same vendor."""
    vendors = {load_profile(name).vendor: title for name, title in reversed(TITLES.items())}
    profiles = sorted({record.cluster.profile for record in records})
    titles = {name: TITLES.get(name) or vendors.get(load_profile(name).vendor, "") for name in profiles}
    return {name: title for name, title in titles.items() if title}


def points_of(measures: Measures) -> list[Point]:
    """Every record as a left-out prediction: tokens per second and card."""
    return [point for name, runs in measures.runs.items() for point in _points(TITLES[name], runs)]


def _points(title: str, runs: Runs) -> Iterator[Point]:
    for kind in (False, True):
        for record, residual in zip(runs.records, runs.left_out, strict=True):
            if record.model.is_moe is not kind:
                continue
            tokens = record.training.global_batch_size.value * record.training.seq_length
            measured = record.measured.tokens_per_s_per_npu
            if measured is None and record.measured.step_time_s is not None:
                measured = tokens / record.measured.step_time_s / int(record.cluster.num_npus or 1)
            if measured is not None:
                group = f"{title}, {'experts' if kind else 'dense'}"
                yield Point(f"{record.model.name} ({record.id})", group, measured, float(measured * np.exp(-residual)))


def write_accuracy(
    docs: Path,
    points_file: Path,
    measures: Measures,
    records: Sequence[Record],
    *,
    first: Sequence[Line] = (),
    last: Sequence[Line] = (),
    more: Sequence[str] = (),
) -> None:
    """Write the page, its plot and the plot's points; the same bytes for the same records and code.

    first, last : figures before and after those of the records. more : sections after the worst records.
    """
    points = points_of(measures)
    points_file.write_text(points_text(points), encoding="utf-8")
    peaks = memory_points(records, memory_titles(records))
    points_file.with_name(MEMORY_FILE).write_text(points_text(peaks), encoding="utf-8")
    picture = docs / "images" / "accuracy.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    title = "Each family predicted by a fit that left it out"
    picture.write_text(predicted_against_measured_svg(points, title), encoding="utf-8")
    (docs / "accuracy.md").write_text(page(measures, first=first, last=last, more=more), encoding="utf-8")


def memory_points(records: Sequence[Record], titles: Mapping[str, str]) -> list[Point]:
    """Peaks as each source counts them, and as predicted in that way; groups as those of the times.

    Parameters
    ----------
    titles : of the profiles; records on others are left out.
    """
    points = []
    for record in records:
        peak, title = record.measured.peak_memory_gib, titles.get(record.cluster.profile)
        if peak is not None and title is not None:
            group = f"{title}, {'experts' if record.model.is_moe else 'dense'}"
            predicted = predict_record(record, calibrated=False).memory_gib
            points.append(Point(f"{record.model.name} ({record.id})", group, peak, predicted))
    return sorted(points, key=lambda point: (point.group, point.name))


def points_text(points: Sequence[Point]) -> str:
    """The text of a file of points, six significant digits, one point a line."""
    rows = [
        json.dumps(
            {"name": p.name, "group": p.group, "measured": rounded(p.measured), "predicted": rounded(p.predicted)}
        )
        for p in points
    ]
    return "[\n" + ",\n".join(rows) + "\n]\n"
