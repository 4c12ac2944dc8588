"""How a cluster's overlay moves one stored plan, and which of its factors do it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autodeploy.services.run_views import MovedPlan
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from autodeploy.jobs.planning import Planner
    from autodeploy.services.run_views import ClusterView
    from autodeploy.specs.planset import Plan, PlanSet

MIN_TOLD_LOG_CHANGE = 5e-4  # of the logarithm of the step time: less is not told


def moved_plan(plan_set: PlanSet, plan: Plan, cluster: ClusterView, planner: Planner) -> MovedPlan:
    """The plan predicted anew under the overlay, beside how it was found.

    What a factor alone moves is its slope under the overlay times its logarithm; slopes of large factors differ between
    both ends, so that these add up to the whole only roughly.
    """
    spec = Spec.model_validate(plan_set.search.spec)
    spec = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"overlay": dict(cluster.overlay)})})
    after = planner.reestimate(spec, plan)
    slopes, factors = after.uncertainty.sensitivity, cluster.report.get("factors", {})
    parts = {name: slopes.get(name, 0.0) * math.log(factor) for name, factor in factors.items()}
    changed = (name for name in parts if abs(parts[name]) >= MIN_TOLD_LOG_CHANGE)
    largest = sorted(changed, key=lambda name: (-abs(parts[name]), name))
    return MovedPlan(
        plan_id=plan.plan_id,
        old_step_time_s=plan.step_time_s,
        old_low_s=plan.uncertainty.low_s,
        old_high_s=plan.uncertainty.high_s,
        step_time_s=after.step_time_s,
        low_s=after.uncertainty.low_s,
        high_s=after.uncertainty.high_s,
        moved_by={name: round(parts[name], 6) for name in largest},
        old_p_fits=plan.p_fits,
        p_fits=after.p_fits,
    )
