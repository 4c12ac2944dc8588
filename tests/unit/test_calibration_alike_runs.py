"""What runs leave uncertain about plans whose ranks have the same work."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from autodeploy.analysis.rehearsal.rehearse import rehearse
from autodeploy.calibration.cluster_fit import alike_runs
from autodeploy.calibration.families import work_digest
from autodeploy.calibration.fit import FitParameter, differences, fit
from autodeploy.costs.prediction_spread import REPEAT_NOISE, TimedRuns, coverage, spread_of
from autodeploy.search import planner
from autodeploy.service.clusters.calibration import StoredRun, calibrate_cluster
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.spec import Spec
from hardware_profiles.evidence import AlikeRuns
from tests.support.rehearsed_plans import PLANS, searched

FACTORS = (FitParameter("cards", ("gemm",), 0.15, "rate"), FitParameter("links", ("link_a",), 0.2, "rate"))
# Two runs of one work and one of another; how the log step time of each follows the factors.
SLOPES = np.array([[-0.8, -0.2], [-0.8, -0.2], [-0.4, -0.6]])
SAME = np.array([1.0, 1.0, 0.0])
WORK, REPEAT, OTHER = 0.05, 0.035, 0.06


def entry() -> AlikeRuns:
    found = fit(FACTORS, differences(lambda t: SLOPES @ t), np.full(3, 0.06), degrees=np.inf)
    noise = np.where(SAME > 0.0, REPEAT, OTHER)
    return AlikeRuns.model_validate(alike_runs("0" * 16, found, noise, SAME, "three runs", (), np.zeros((3, 0))))


def test_the_variance_is_that_of_drawn_clusters() -> None:
    draw = np.random.default_rng(7)
    count, plan = 20_000, np.array([-0.7, -0.3])
    theta = draw.normal(0.0, [p.prior_sigma for p in FACTORS], (count, 2))
    of_work = draw.normal(0.0, WORK, count)
    measured = theta @ SLOPES.T + of_work[:, None] * SAME + draw.normal(0.0, 1.0, (count, 3)) * [REPEAT, REPEAT, OTHER]
    weights = np.eye(3) / 0.06**2
    prior = np.diag([p.prior_sigma**-2 for p in FACTORS])
    fitted = measured @ np.linalg.solve(SLOPES.T @ weights @ SLOPES + prior, SLOPES.T @ weights).T
    errors = (fitted - theta) @ plan - of_work
    slopes = {"cards": -0.7, "links": -0.3, "unknown": 9.0}
    assert entry().variance_of(slopes, WORK**2) == pytest.approx(float(np.var(errors)), rel=0.03)


def test_numbers_that_no_fit_has_count_as_far_as_no_run_exercised_them() -> None:
    """Of drawn clusters whose large networks are not as assumed: the fit takes their part of its runs for its own."""
    unfitted = (FitParameter("nodes", ("device_scatter",), 0.9, "growth"),)
    exercised = np.array([[0.01], [0.01], [0.03]])
    found = fit(FACTORS, differences(lambda t: SLOPES @ t), np.full(3, 0.06), degrees=np.inf)
    noise = np.where(SAME > 0.0, REPEAT, OTHER)
    given = alike_runs("0" * 16, found, noise, SAME, "three runs", unfitted, exercised)
    entry = AlikeRuns.model_validate(given)
    draw, count = np.random.default_rng(11), 20_000
    theta = draw.normal(0.0, [p.prior_sigma for p in FACTORS], (count, 2))
    beyond = draw.normal(0.0, 0.9, count)
    measured = theta @ SLOPES.T + beyond[:, None] * exercised.T + draw.normal(0.0, 1.0, (count, 3)) * noise
    gain = found.covariance @ found.jacobian.T * found.weights
    plan, sigmas = np.array([-0.7, -0.3]), {}
    for slope in (0.0, 0.01, 0.05):
        errors = (measured @ gain.T - theta) @ plan - slope * beyond
        slopes = {"cards": -0.7, "links": -0.3, "nodes": slope}
        assert entry.variance_of(slopes, 0.0) == pytest.approx(float(np.var(errors)), rel=0.03)
        sigmas[slope] = entry.variance_of(slopes, 0.0)
    assert sigmas[0.01] < sigmas[0.0] < sigmas[0.05], "what the plan shares with its rehearsal costs it nothing"


@pytest.mark.parametrize("name", ["dense A2"])
def test_a_rehearsal_tells_what_it_exercised_of_large_networks(name: str) -> None:
    plan_set, plan = searched(name)
    spec = Spec.model_validate(plan_set.search.spec)
    small = rehearse(plan_set, plan, "2nodes", planner)
    run = StoredRun("small", small.spec, small.plan, MeasuredRun(step_time_s=small.plan.step_time_s))
    overlay, _ = calibrate_cluster("here", [run], planner)
    (entry,) = (AlikeRuns.model_validate(each) for each in overlay["evidence"]["alike"])
    names = [factor.name for factor in entry.covariance.factors]
    assert {"nodes", "small_messages"} <= set(names)
    cluster = spec.cluster.model_copy(update={"overlay": overlay})
    slopes = planner.reestimate(spec.model_copy(update={"cluster": cluster}), plan).uncertainty.sensitivity
    own = planner.reestimate(small.spec.model_copy(update={"cluster": cluster}), small.plan).uncertainty.sensitivity
    assert slopes["nodes"] > own["nodes"] > 0.0, "the full plan has more nodes"
    known = {name: value for name, value in slopes.items() if name != "nodes"}
    more = entry.variance_of(slopes, 0.0) - entry.variance_of(known | {"nodes": own["nodes"]}, 0.0)
    assert more > 0.0


def test_a_model_that_errs_on_the_work_costs_only_what_the_fit_has_not_absorbed() -> None:
    slopes = {"cards": -0.8, "links": -0.2}
    exact, wrong = (entry().variance_of(slopes, of_work) for of_work in (0.0, WORK**2))
    assert 0.0 < wrong - exact < 0.05 * WORK**2


@pytest.mark.parametrize("name", PLANS)
def test_a_rehearsal_has_the_work_of_its_plan(name: str) -> None:
    plan_set, plan = searched(name)
    spec = Spec.model_validate(plan_set.search.spec)
    small = rehearse(plan_set, plan, "2nodes", planner)
    axes, there = plan.strategy.model_dump(), small.plan.strategy.model_dump()
    own = work_digest(spec.model, spec.training.seq_length, axes)
    assert work_digest(small.spec.model, small.spec.training.seq_length, there) == own
    for other in ({"tp": 2 * axes["tp"]}, {"micro_batch_size": 7}, {"vpp": 9}, {"schedule": "gpipe"}):
        assert work_digest(spec.model, spec.training.seq_length, axes | other) != own
    assert work_digest(spec.model, 2 * spec.training.seq_length, axes) != own


def test_a_plan_that_was_rehearsed_is_known_better_than_others_of_its_cluster() -> None:
    run = {"moe": False, "ranks": 64, "shares_node": False, "tp": 8, "pp": 2, "cp": 1, "ep": 1, "seq_length": 4096}
    run |= {"features": (), "vpp": 1, "etp": 1, "micro_batch_size": 1, "schedule": "1f1b", "moe_dispatcher": "alltoall"}
    none, timed, alike = (
        spread_of("ascend-910b", run, cluster=cluster).log_sigma
        for cluster in (TimedRuns(), TimedRuns(timed=True), TimedRuns(timed=True, alike_variance=0.02**2))
    )
    assert alike < timed < none
    assert alike**2 == pytest.approx(0.02**2 + float(coverage()["alike_log_sigma"]) ** 2 + REPEAT_NOISE**2)
    # Runs that missed their intervals widen the others; what was rehearsed rests on its own run.
    missed = [spread_of("ascend-910b", run, cluster=TimedRuns(True, 2.0, each)).log_sigma for each in (None, 0.02**2)]
    assert missed == pytest.approx([2.0 * timed, alike])


def test_shares_that_fit_no_factors_are_refused() -> None:
    document = entry().model_dump()
    with pytest.raises(ValidationError, match="absorbed: expected"):
        AlikeRuns.model_validate(document | {"absorbed": (0.1,)})


def test_a_number_that_a_step_hardly_knows_may_follow_the_work_far() -> None:
    document = entry().model_dump()
    far = (5.2, *document["absorbed"][1:])
    assert AlikeRuns.model_validate(document | {"absorbed": far}).absorbed == far
