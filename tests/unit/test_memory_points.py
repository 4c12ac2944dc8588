"""The peaks of memory that the accuracy page lists are those that the model predicts."""

from __future__ import annotations

import pytest

from api.ui.accuracy_page import group_row
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.reports.figures.charts import MEMORY_FILE, groups_of, shipped_points
from docs.accuracy_page.plot import memory_points, memory_titles


def test_the_shipped_points_are_current() -> None:
    records = shipped_records()
    now, shipped = memory_points(records, memory_titles(records)), shipped_points(MEMORY_FILE)
    assert [(point.name, point.group) for point in now] == [(point.name, point.group) for point in shipped]
    for mine, stored in zip(now, shipped, strict=True):
        assert (stored.measured, stored.predicted) == pytest.approx((mine.measured, mine.predicted), rel=1e-5)
    measured = [record for record in records if record.measured.peak_memory_gib is not None]
    assert len(now) == len(measured), "none is left out"


def test_errors_are_told_by_group() -> None:
    rows = {name: group_row(name, points) for name, points in groups_of(shipped_points(MEMORY_FILE)).items()}
    assert sum(row.runs for row in rows.values()) == len(shipped_points(MEMORY_FILE))
    assert all(0.0 < row.mean_error < 0.3 for row in rows.values())
