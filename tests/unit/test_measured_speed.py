"""Measured beats predicted: all times of an answer are multiplied where its work has been measured, and say so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy import calibration
from autodeploy.analysis.launch_checks.launch import Launch, launch_of
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.analysis.what_if.improve import improve
from autodeploy.analysis.what_if.recommend import recommend
from autodeploy.analysis.what_if.scaling import scaling
from autodeploy.cli.what_if import improve_text
from autodeploy.formats.import_document import import_file
from autodeploy.messages import in_language
from autodeploy.reports.check_report import render_check
from autodeploy.reports.comparison import compare_plans
from autodeploy.reports.plan_report import render_plan, render_plan_set
from autodeploy.search import planner
from autodeploy.search.ranking.measured_speed import (
    MEASURED,
    level_of,
    measured_ratio,
    rescaled,
    slower_than_measured,
    work_of,
)
from autodeploy.service.clusters.calibration import StoredRun, calibrate_cluster
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.planset import PARTS, Plan, PlanSet, Rescaled
from autodeploy.specs.questions import Budget
from autodeploy.specs.spec import Spec
from autodeploy.specs.training import BatchSize
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.answers import CheckReport, ImproveReport

LAUNCHES = Path(calibration.__file__).parent / "records" / "launches"
MEASURED_S = 8.60391  # 128 sequences of 4,096 tokens at 7,617 tokens a second on each of eight cards
FOUND = Rescaled(ratio=1.25, measured_step_time_s=10.0, predicted_step_time_s=8.0, run="R1", source="somewhere")


@cache
def launch() -> Launch:
    """Qwen3-8B on eight cards of A3, as the framework's script has it."""
    return launch_of(import_file(LAUNCHES / "MSF02.sh"), "cloudmatrix-384")


@cache
def predicted() -> Plan:
    return planner.estimate(launch().spec)


def spec_with(**training: Any) -> Spec:
    spec = launch().spec
    return spec.model_copy(update={"training": spec.training.model_copy(update=training)})


def on_cluster(spec: Spec, **cluster: Any) -> Spec:
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update=cluster)})


def ratio_of(spec: Spec) -> Rescaled | None:
    prepared = planner.prepare(spec)
    return measured_ratio(spec, prepared.profile, prepared.context)


# -- the ratio -------------------------------------------------------------------------------------------------------


def test_a_launch_that_was_measured_takes_what_was_measured() -> None:
    found = predicted()
    assert found.step_time_s == pytest.approx(MEASURED_S, rel=1e-5)
    assert found.rescaled is not None
    assert found.rescaled.run == "MSF02"
    assert found.rescaled.source.endswith("examples/mcore/qwen3/pretrain_qwen3_8b_4K_ptd_A3.sh")
    assert found.rescaled.ratio == pytest.approx(MEASURED_S / found.rescaled.predicted_step_time_s, rel=1e-5)
    assert found.rescaled.ratio != 1.0


def test_any_strategy_of_the_same_work_is_multiplied_alike() -> None:
    spec = launch().spec
    assert spec.strategy is not None
    other = spec.model_copy(update={"strategy": spec.strategy.model_copy(update={"tp": 4})})
    there = planner.estimate(other)
    plain = planner.breakdowns_in(other, there, (), [{}])[0].step_time_s
    ratio = predicted().rescaled.ratio if predicted().rescaled else None
    assert planner.estimate(other).step_time_s == pytest.approx((ratio or 0.0) * plain)


@pytest.mark.parametrize(
    "spec",
    [
        spec_with(global_batch_size=BatchSize(value=256)),
        spec_with(seq_length=8192),
        spec_with(precision="fp16"),
        on_cluster(launch().spec, num_npus=16),
        on_cluster(launch().spec, profile="ascend-800t-a2", device=None),
        on_cluster(launch().spec, overlay={"profile": "cloudmatrix-384"}),
    ],
    ids=["batch", "length", "precision", "cards", "chips", "own overlay"],
)
def test_other_work_is_predicted_as_the_model_has_it(spec: Spec) -> None:
    spec = Spec.model_validate(spec.model_dump(mode="json"))
    assert ratio_of(spec) is None


def test_a_run_on_even_experts_says_nothing_of_uneven_ones() -> None:
    """The recipe is predicted with its own routing: the user's imbalance still costs what it costs."""
    spec = launch_of(import_file(LAUNCHES / "MSF03.sh"), "ascend-800t-a2").spec
    even = spec.training.model_copy(update={"routing_imbalance": 1.0, "routing_imbalance_peak": 1.0})
    first, second = ratio_of(spec), ratio_of(spec.model_copy(update={"training": even}))
    assert first is not None
    assert second is not None
    assert first.ratio == pytest.approx(second.ratio)


# -- what is multiplied ----------------------------------------------------------------------------------------------


def test_times_are_multiplied_and_rates_divided() -> None:
    plan = factories.plan(1, days=100.0, npu_hours=2400.0, expected_step_time_s=150.0)
    found = rescaled(plan, FOUND)
    assert found.rescaled == FOUND
    for name in ("step_time_s", "days", "npu_hours", "expected_step_time_s"):
        assert getattr(found, name) == pytest.approx(1.25 * getattr(plan, name))
    for name in ("tokens_per_s", "tokens_per_s_per_npu", "mfu"):
        assert getattr(found, name) == pytest.approx(getattr(plan, name) / 1.25)
    assert found.uncertainty.low_s == pytest.approx(1.25 * plan.uncertainty.low_s)
    assert sum(getattr(found.breakdown, part) for part in PARTS) == pytest.approx(found.step_time_s)
    assert found.stages[0].forward_s == pytest.approx(1.25 * plan.stages[0].forward_s)
    assert (found.plan_id, found.peak_memory_gib, found.stages[0].memory_gib) == (
        plan.plan_id,
        plan.peak_memory_gib,
        plan.stages[0].memory_gib,
    )
    losses = sum(loss.seconds for loss in found.headroom)
    assert losses + found.mfu * found.step_time_s == pytest.approx(found.step_time_s, rel=1e-6)
    assert rescaled(plan, None) is plan


# -- whole answers ---------------------------------------------------------------------------------------------------


def planned_spec() -> Spec:
    spec = launch().spec.model_copy(update={"strategy": None})
    return spec.model_copy(
        update={"search": spec.search.model_copy(update={"effort": "fast", "fix": {"cp": 1, "vpp": 1}})}
    )


@cache
def planned() -> PlanSet:
    return planner.plan(planned_spec())


@cache
def checked() -> CheckReport:
    return check(launch(), planner=planner)


@cache
def improved() -> ImproveReport:
    search = launch().spec.search.model_copy(update={"risk": "neutral"})
    return improve(replace(launch(), spec=launch().spec.model_copy(update={"search": search})), planner=planner)


def test_a_search_multiplies_every_time_and_says_so() -> None:
    found = planned()
    assert found.rescaled is not None
    assert found.rescaled == predicted().rescaled
    assert all(plan.rescaled == found.rescaled for plan in found.plans)
    assert found.optimality.bound is not None
    assert found.optimality.bound <= found.plans[0].step_time_s * (1 + 1e-9)
    assert found.fastest is not None
    assert found.optimality.gap == pytest.approx(1.0 - found.optimality.bound / found.fastest.step_time_s, abs=1e-9)
    assert found.reference is not None
    assert found.reference.step_time_s == pytest.approx(MEASURED_S, rel=1e-5), "the public recipe itself"
    text = " ".join(render_plan_set(found).split())
    assert "all times are scaled by 1.1: the measured run MSF02 took 8.6" in text
    for point in found.pareto:
        assert point.step_time_s in [plan.step_time_s for plan in found.plans] or point.rank is None


def test_nothing_is_called_better_that_takes_longer_than_what_was_measured() -> None:
    report = checked()
    assert report.plan is not None
    assert report.best is not None
    assert report.plan.step_time_s == pytest.approx(MEASURED_S, rel=1e-5)
    assert (report.best.slowdown > 0.0) == (report.best.plan.step_time_s < MEASURED_S)
    better = improved()
    assert better.improvements
    for each in better.improvements:
        assert each.gain_pct > 0.0
        assert each.step_time_s < MEASURED_S


def test_reports_of_one_launch_say_it_too() -> None:
    told = "all times are scaled by 1.1"
    assert told in " ".join(render_check(checked()).split())
    assert told in " ".join(render_plan(launch().spec, predicted()).split())
    assert told in " ".join(improve_text(improved()).split())


def test_a_comparison_tells_plans_of_measured_work_from_others() -> None:
    plain = factories.plan_set(1)
    here = plain.model_copy(update={"plans": (rescaled(plain.plans[0], FOUND),), "rescaled": FOUND})
    rows = {row.field: row.values for row in compare_plans([(s, s.plans[0]) for s in (plain, here)]).differences}
    assert rows["rescaled"] == (1.0, 1.25)


def test_a_best_plan_that_is_slower_than_the_measured_run_is_told() -> None:
    slow = factories.plan(1)
    (told,) = slower_than_measured([slow], FOUND)
    assert told.startswith("the measured run R1 took 10 s per step, less than the ")
    assert in_language(told, "zh").startswith("实测 R1")
    assert slower_than_measured([slow], FOUND.model_copy(update={"measured_step_time_s": slow.step_time_s})) == ()
    assert slower_than_measured([], FOUND) == ()
    assert slower_than_measured([slow], None) == ()


def test_a_timeline_ends_with_the_plans_step() -> None:
    spec = launch_of(import_file(LAUNCHES / "MSF03.sh"), "ascend-800t-a2").spec
    assert spec.strategy is not None
    plan, drawn = planner.estimate(spec), planner.timeline(spec, spec.strategy)
    assert plan.rescaled is not None
    assert drawn.step_time_s == pytest.approx(plan.step_time_s, rel=1e-6)
    assert max(slot.end_s for slot in drawn.slots) <= drawn.makespan_s * (1 + 1e-9)


def test_other_numbers_of_cards_stand_at_the_same_level() -> None:
    spec = planned_spec()
    spec = spec.model_copy(update={"search": spec.search.model_copy(update={"risk": "neutral"})})
    report = scaling(spec, planned().plans[0], planner=planner)
    ratio = planned().rescaled
    assert ratio is not None
    rows = {row.num_npus: row for row in report.rows}
    plain = planner.plan(on_cluster(spec, num_npus=16), alone=True).plans[0]
    assert rows[16].step_time_s == pytest.approx(ratio.ratio * plain.step_time_s, rel=0.05)
    asked = recommend(spec, Budget(days=30.0, tokens=1e11, max_npus=16), planner=planner)
    assert {row.num_npus for row in asked.scaling} >= {8}
    assert level_of(planned_spec()) == ratio


# -- the cluster's own runs ------------------------------------------------------------------------------------------


@cache
def own_overlay(factor: float) -> tuple[Spec, Plan, dict[str, Any], dict[str, Any]]:
    """A plan of work that nobody published, and the overlay after a run of it that took longer than predicted."""
    spec = spec_with(global_batch_size=BatchSize(value=64))
    plan = planner.estimate(spec)
    run = MeasuredRun(step_time_s=factor * plan.step_time_s)
    overlay, report = calibrate_cluster("hall-1", [StoredRun("run_1", spec, plan, run)], planner)
    return on_cluster(spec, overlay=overlay), plan, overlay, report


def test_a_stored_run_counts_and_is_not_corrected_twice() -> None:
    spec, plan, overlay, report = own_overlay(1.3)
    assert plan.rescaled is None
    (kept,) = overlay["report"][MEASURED]
    assert (kept["run"], kept["work"]) == ("run_1", work_of(spec, plan.num_npus_used, 64))
    found = planner.estimate(spec)
    assert found.rescaled is not None
    assert (found.rescaled.run, found.rescaled.source) == ("run_1", "a run stored for this cluster")
    assert found.step_time_s == pytest.approx(1.3 * plan.step_time_s, rel=1e-6)
    # The overlay has moved the prediction most of the way: the ratio is of the rest.
    left = report["runs"][0]["error_after"]
    assert found.rescaled.ratio == pytest.approx(1.0 + left, rel=1e-3)
    assert 1.0 < found.rescaled.ratio < 1.15


def test_of_a_clusters_other_work_its_run_says_nothing() -> None:
    spec, *_ = own_overlay(1.3)
    other = on_cluster(spec, num_npus=16)
    assert ratio_of(spec) is not None
    assert ratio_of(other) is None


def test_a_fit_reads_what_the_model_predicts_by_itself() -> None:
    assert predicted().rescaled is not None
    own = planner.breakdowns_in(launch().spec, predicted(), (), [{}])[0].step_time_s
    assert own == pytest.approx(predicted().rescaled.predicted_step_time_s, rel=1e-6)


@pytest.mark.parametrize("row", [{}, {"work": 1}, {"step_time_s": -1.0}, {"step_time_s": "soon"}, {"strategy": []}, 7])
def test_what_is_no_run_in_a_foreign_overlay_is_passed_over(row: Any) -> None:
    spec, *_ = own_overlay(1.3)
    assert isinstance(spec.cluster.overlay, dict)
    report = spec.cluster.overlay["report"]
    bad = row if isinstance(row, int) else report[MEASURED][0] | row | ({} if row else {"run": None})
    overlay = spec.cluster.overlay | {"report": report | {MEASURED: [bad]}}
    assert ratio_of(on_cluster(spec, overlay=overlay)) is None
