"""Commissioning: launches before a plan's own, what each would narrow, and what came back of them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from autodeploy.analysis.rehearsal.rehearse import rehearse
from autodeploy.kit.errors import UnsupportedError
from autodeploy.reports.commissioning import commissioning_blocks, rule_of
from autodeploy.search import planner
from autodeploy.service.clusters.calibration import StoredRun
from autodeploy.service.clusters.commissioning import commission
from autodeploy.specs.commissioning import STOP, Commissioning
from autodeploy.specs.measured_run import MeasuredRun, OutOfMemory
from tests.support.rehearsed_plans import searched

pytestmark = pytest.mark.unit
_MADE: dict[str, Commissioning] = {}


def commissioned(name: str) -> Commissioning:
    """The commissioning of a named plan on a cluster of which nothing is known, made once."""
    if name not in _MADE:
        _MADE[name] = commission(*searched(name), [], planner)
    return _MADE[name]


def half_width(low_s: float, high_s: float) -> float:
    """Of an interval, in the logarithm."""
    return 0.5 * math.log(high_s / low_s)


@pytest.mark.parametrize("name", ["dense A2", "experts A2"])
def test_every_launch_that_passes_narrows_the_whole_plan(name):
    made = commissioned(name)
    assert [launch.name for launch in made.launches] == ["1node", "2nodes", "8nodes"]
    assert [launch.num_npus for launch in made.launches] == [8, 16, 64]
    widths = [half_width(made.low_s, made.high_s)]
    widths += [half_width(launch.whole_low_s, launch.whole_high_s) for launch in made.launches]
    assert all(after < before for before, after in pairwise(widths))
    assert widths[-1] < 0.7 * widths[0]


def test_parts_add_up_and_each_lies_in_its_interval():
    for launch in commissioned("experts A2").launches:
        assert math.fsum(part.seconds for part in launch.parts) == pytest.approx(launch.step_time_s)
        assert all(part.low_s <= part.seconds <= part.high_s for part in launch.parts)
        assert launch.low_s < launch.step_time_s < launch.high_s < launch.stop_above_s


def test_no_cause_is_less_certain_after_a_launch_that_passed():
    for launch in commissioned("experts A2").launches:
        doubts = {each.cause: each for each in launch.doubts}
        assert all(each.after <= each.before * (1.0 + 1e-6) for each in doubts.values())
        assert doubts["imbalance"].after == doubts["imbalance"].before  # no step time tells it
    first = {each.cause: each for each in commissioned("experts A2").launches[0].doubts}
    assert first["memory"].after < 0.92 * first["memory"].before  # its peak was as predicted
    assert first["software"].after < 0.8 * first["software"].before


def test_a_launch_that_came_back_moves_what_follows():
    plan_set, plan = searched("dense A2")
    blank = commissioned("dense A2").launches[0]
    ran = commission_run("dense A2", MeasuredRun(step_time_s=1.1 * blank.step_time_s))
    made = commission(plan_set, plan, [ran], planner)
    assert made.launches[0].measured_s == pytest.approx(1.1 * blank.step_time_s)
    assert made.launches[1].measured_s is None
    assert made.step_time_s > 1.04 * plan.step_time_s


def test_a_launch_that_ran_out_of_memory_is_told():
    plan_set, plan = searched("dense A2")
    met = MeasuredRun(source="out_of_memory", out_of_memory=OutOfMemory(asked_gib=2.0))
    made = commission(plan_set, plan, [commission_run("dense A2", met)], planner)
    assert made.launches[0].out_of_memory
    (table, *_) = [block.table for block in commissioning_blocks(made, "en")]
    assert table is not None
    assert [row[-1] for row in table.rows] == ["ran out of memory", "", ""]


def commission_run(name: str, measured: MeasuredRun) -> StoredRun:
    """A run of a plan's launch on one node."""
    launch = rehearse(*searched(name), "1node", planner)
    return StoredRun("run_1", launch.spec, launch.plan, measured)


def test_no_launch_before_a_job_of_one_node():
    plan_set, plan = searched("dense A2")
    with pytest.raises(UnsupportedError, match="no launch before"):
        commission(plan_set, plan.model_copy(update={"num_npus_used": 8}), [], planner)


def test_one_run_in_a_hundred_is_slower_than_the_stop():
    _, plan = searched("dense A2")
    interval = plan.uncertainty
    assert interval.quantile_s(0.9) == pytest.approx(interval.high_s)
    assert interval.quantile_s(0.1) == pytest.approx(interval.low_s)
    assert f"{interval.quantile_s(STOP):.4g} s" in rule_of(plan)
