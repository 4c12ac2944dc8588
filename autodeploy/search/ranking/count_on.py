"""The step time to count on where measured runs contradict the predicted one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autodeploy.costs.prediction_spread import nearest_log_error
from autodeploy.messages import Message
from autodeploy.search.ranking.uncertainty import run_of
from autodeploy.specs.planset import CountOn

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import Plan


def count_on(plan: Plan, candidate: Candidates, context: Context) -> CountOn | None:
    """What the step takes if the nearest record's error holds, or if no run of the class exceeds its highest MFU.

    The slower one of those outside the plan's interval; None where measured runs agree with it.
    """
    told: list[CountOn] = []
    error, mfu = nearest_log_error(context.family, run_of(candidate, context)), plan.best_measured_mfu
    if error is not None:
        why = Message("ranking.if_nearest_record_s_error_holds", record=plan.uncertainty.nearest_record or "")
        told.append(CountOn(step_time_s=plan.step_time_s * math.exp(-error), why=why))
    if mfu is not None and plan.mfu > mfu.highest:
        why = Message("ranking.if_highest_measured_mfu_is_limit", mfu=100.0 * mfu.highest, record=mfu.record)
        told.append(CountOn(step_time_s=plan.step_time_s * plan.mfu / mfu.highest, why=why))
    given = plan.uncertainty
    outside = [each for each in told if not given.low_s <= each.step_time_s <= given.high_s]
    return max(outside, key=lambda each: each.step_time_s, default=None)
