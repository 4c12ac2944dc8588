"""Nobody is sent away from a public launch to anything predicted to take longer than it was measured to take."""

from __future__ import annotations

from pathlib import Path

import pytest

from autodeploy import calibration
from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.formats.import_document import import_file
from autodeploy.search import planner

LAUNCHES = Path(calibration.__file__).parent / "records" / "launches"
CASES = {
    "MSF01": ("cloudmatrix-384", 67.15),
    "MSF02": ("cloudmatrix-384", 8.604),
    "MSF03": ("ascend-800t-a2", 28.27),
}


@pytest.mark.parametrize("name", CASES)
def test_a_check_of_a_measured_launch_names_nothing_slower(name: str) -> None:
    profile, measured_s = CASES[name]
    report = check(launch_of(import_file(LAUNCHES / f"{name}.sh"), profile), planner=planner)
    assert report.plan is not None
    assert report.plan.step_time_s == pytest.approx(measured_s, abs=0.005)
    assert report.best is not None
    assert report.best.slowdown <= 0.0 or report.best.plan.step_time_s < report.plan.step_time_s
    for remedy in report.remedies:
        assert remedy.step_time_s < report.plan.step_time_s
