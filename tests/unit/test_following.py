"""A growing log against its launch's prediction, and what a reported run moved."""

from __future__ import annotations

import pytest

from autodeploy.analysis.following import following
from autodeploy.formats.measurements.measured_file import read_measured_text
from autodeploy.reports.following import followed_page, followed_table, last_line
from autodeploy.specs.measured_run import MeasuredRun
from tests.support.rehearsed_plans import searched

pytestmark = pytest.mark.unit
# As Megatron-LM core_v0.12.1 prints them: training.py, training_log; megatron/core/timers.py.
ITERATION = (
    " [2026-11-29 01:0{n}:00] iteration {n:8d}/     500 | consumed samples: {samples:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.0E-06 | global batch size:   256 | "
    "number of skipped iterations:   0 |\n"
)
TIMERS = (
    "(min, max) time across ranks (ms):\n"
    "    forward-backward ...............................: ({0:.2f}, {1:.2f})\n"
    "    all-grads-sync .................................: (10.00, {2:.2f})\n"
    "    optimizer ......................................: (55.00, 60.00)\n"
)
MEMORY = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 9000.0 | max allocated: 48128.0 | reserved: 50000.0\n"
OUT_OF_MEMORY = (
    "[rank3]: RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.97 GiB total capacity)\n"
)


def log_of(step_s: float, steps: int) -> str:
    """So many iterations, with their timers."""
    text = ""
    for n in range(1, steps + 1):
        ms = 1e3 * step_s * (2.0 if n == 1 else 1.0)
        text += ITERATION.format(n=n, samples=256 * n, ms=ms) + TIMERS.format(0.9 * ms, 0.96 * ms, 0.02 * ms)
    return text + MEMORY


def followed(text: str) -> MeasuredRun:
    """The run in a log."""
    (run,) = read_measured_text(text)
    return run


def test_parts_of_a_log_stand_beside_the_prediction():
    _, plan = searched("dense A2")
    said = following(plan, followed(log_of(plan.step_time_s, 8)))
    assert (said.verdict, said.iterations) == ("inside", 7)
    pipeline, behind = said.parts
    assert pipeline.measured_s == pytest.approx(0.96 * plan.step_time_s, rel=1e-3)
    assert pipeline.ranks_s[0] == pytest.approx(0.9 * plan.step_time_s, rel=1e-3)
    breakdown = plan.breakdown
    assert behind.predicted_s == pytest.approx(breakdown.exposed_dp_s + breakdown.optimizer_s)
    assert pipeline.predicted_s + behind.predicted_s == pytest.approx(plan.step_time_s)
    assert behind.measured_s == pytest.approx(0.02 * plan.step_time_s + 0.06, rel=1e-3)
    assert said.peak_memory_gib == pytest.approx(47.0)
    first, *over, last = (row[-1] for row in followed_table(said, "en").rows)
    assert (first, last) == ("", "")
    assert [float(each.removesuffix(" %")) for each in over] == pytest.approx([6.7, 701.6], rel=0.01)


@pytest.mark.parametrize(("share", "verdict"), [(0.7, "faster"), (1.0, "inside"), (1.15, "slower"), (1.3, "stop")])
def test_a_step_is_judged_by_the_interval(share, verdict):
    _, plan = searched("dense A2")
    said = following(plan, followed(log_of(share * plan.step_time_s, 6)))
    assert said.verdict == verdict
    assert last_line(said, "en") != last_line(said, "zh")
    assert 'content="5"' in followed_page(said, 5.0, "en")


def test_nothing_is_said_before_the_first_iteration_and_memory_ends_it():
    _, plan = searched("dense A2")
    assert following(plan, None).verdict == "waiting"
    said = following(plan, followed(log_of(plan.step_time_s, 3) + OUT_OF_MEMORY))
    assert said.verdict == "out_of_memory"


def test_a_measured_run_without_timers_is_the_document_that_it_was():
    assert "timers" not in MeasuredRun(step_time_s=1.0).model_dump(mode="json")
