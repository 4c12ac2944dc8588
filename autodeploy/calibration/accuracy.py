"""`python -m autodeploy.calibration.accuracy`: make docs/accuracy.md, its plot and the plot's points."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.accuracy_measures import A100, ASCEND, H100, Measures, measure
from autodeploy.calibration.accuracy_page import page
from autodeploy.calibration.accuracy_points import FILE, points_text
from autodeploy.calibration.shipped import shipped_records
from autodeploy.figures.accuracy_svg import Point, predicted_against_measured_svg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.calibration.accuracy_errors import Runs

ROOT = Path(__file__).resolve().parents[2]
TITLES = {ASCEND: "800T A2", A100: "A100", H100: "H100"}


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


def write_accuracy(docs: Path, points_file: Path, measures: Measures) -> None:
    """Write the page, its plot and the plot's points; the same bytes for the same records and code."""
    points = points_of(measures)
    points_file.write_text(points_text(points), encoding="utf-8")
    picture = docs / "images" / "accuracy.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    title = "Each family predicted by a fit that left it out"
    picture.write_text(predicted_against_measured_svg(points, title), encoding="utf-8")
    (docs / "accuracy.md").write_text(page(measures), encoding="utf-8")


def main() -> None:
    """Write docs/accuracy.md."""
    points_file = ROOT / "autodeploy" / "calibration" / FILE
    write_accuracy(ROOT / "docs", points_file, measure(shipped_records()))
    sys.stdout.write(f"written: docs/accuracy.md, docs/images/accuracy.svg, {points_file.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
