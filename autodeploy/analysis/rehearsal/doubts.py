"""Doubts about a plan on a cluster of which nothing is known, and what a smaller launch would leave of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.cluster_fit import cluster_parameters
from autodeploy.calibration.families import work_digest
from autodeploy.calibration.fit import STEP
from autodeploy.calibration.overlays import unfitted_beside
from autodeploy.calibration.uncertain_numbers import prior_numbers
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.prediction_spread import coverage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.steps.scenarios import Perturbation, Scenario
    from autodeploy.search.planner import Planner
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from cost_models.arrays import Floats


@dataclass(frozen=True, eq=False)
class Doubts:
    """Uncertain numbers of a cluster and how a plan's step follows them.

    sigmas : standard deviation of each log factor before any run [numbers]. slopes : d log(step time) / d log(factor)
    of the plan [numbers]. work : digest of a rank's work under the plan.
    """

    numbers: tuple[Perturbation, ...]
    sigmas: Floats
    slopes: Floats
    work: str

    def left_by(self, spec: Spec, launch: Plan, planner: Planner) -> float:
        """Standard deviation of the plan's log step time that is not the launch's too: what a run of it cannot tell.

        Where the work of a rank is another, the model's error between two works is in it.
        """
        apart = log_slopes(spec, launch, self.numbers, planner) - self.slopes
        of_work = 0.0 if work_of(spec, launch) == self.work else float(coverage()["pair_log_sigma"])
        return math.sqrt(float(np.square(apart * self.sigmas).sum()) + of_work**2)


def doubts_of(spec: Spec, plan: Plan, planner: Planner) -> Doubts:
    """All that runs of the plan's cluster may move, and what no run moves but a plan rests on."""
    profile = profile_of(spec.cluster)
    context, _ = planner.lowered(spec, plan)
    fitted = cluster_parameters(profile, {})
    numbers: list[Perturbation] = [*fitted, *unfitted_beside(profile, fitted)]
    sigmas = [number.prior_sigma for number in (*fitted, *unfitted_beside(profile, fitted))]
    known = {name for number in numbers for name in number.multiplies}
    for prior in prior_numbers(profile, context):
        if not known.intersection(prior.multiplies):
            numbers.append(prior)
            sigmas.append(prior.log_sigma)
    return Doubts(tuple(numbers), np.array(sigmas), log_slopes(spec, plan, numbers, planner), work_of(spec, plan))


def work_of(spec: Spec, plan: Plan) -> str:
    """Digest of a rank's work under a plan."""
    return work_digest(spec.model, spec.training.seq_length, plan.strategy.model_dump())


def log_slopes(spec: Spec, plan: Plan, numbers: Sequence[Perturbation], planner: Planner) -> Floats:
    """d log(step time) / d log(factor) of a plan [numbers]; of a number that is shifted, per unit of its shift."""
    worlds: list[Scenario] = [{}, *({number.name: STEP} for number in numbers)]
    steps = np.array([each.step_time_s for each in planner.breakdowns_in(spec, plan, numbers, worlds)])
    return np.asarray(np.log(steps[1:] / steps[0]) / STEP)
