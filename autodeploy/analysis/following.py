"""following(plan, measured): a launch so far against its prediction, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autodeploy.specs.commissioning import STOP
from autodeploy.specs.measured_run import FollowedPart, Following

if TYPE_CHECKING:
    from autodeploy.specs.measured_run import MeasuredRun, Verdict
    from autodeploy.specs.planset import Breakdown, Plan

AFTER_PIPELINE: Final = ("exposed_dp_s", "optimizer_s")
"""Parts of a step behind the pipeline: gradients are summed, the optimizer runs."""


def following(plan: Plan, measured: MeasuredRun | None) -> Following:
    """The state of a launch by its log so far; without a first iteration nothing but the prediction."""
    interval = plan.uncertainty
    said = Following(
        plan_id=plan.plan_id,
        num_npus=plan.num_npus_used,
        predicted_s=plan.step_time_s,
        low_s=interval.low_s,
        high_s=interval.high_s,
        stop_above_s=interval.quantile_s(STOP),
        predicted_gib=plan.allocator_peak_gib,
    )
    if measured is None:
        return said
    return said.model_copy(
        update={
            "iterations": measured.iterations or 0,
            "step_time_s": measured.step_time_s,
            "peak_memory_gib": measured.peak_memory_gib,
            "parts": _parts(plan.breakdown, measured),
            "verdict": _verdict(said, measured),
        }
    )


def _verdict(said: Following, measured: MeasuredRun) -> Verdict:
    step_s = measured.step_time_s
    if measured.out_of_memory is not None:
        return "out_of_memory"
    if step_s is None:
        return "waiting"
    if step_s > said.stop_above_s:
        return "stop"
    if step_s > said.high_s:
        return "slower"
    return "faster" if step_s < said.low_s else "inside"


def _parts(breakdown: Breakdown, measured: MeasuredRun) -> tuple[FollowedPart, ...]:
    """The parts that the log's timers tell apart; none where it has no timers."""
    timers = measured.timers
    pipeline = timers.get("forward-backward")
    behind = [timers[name] for name in ("all-grads-sync", "optimizer") if name in timers]
    after_s = sum(getattr(breakdown, part) for part in AFTER_PIPELINE)
    whole_s = sum(value for _, value in breakdown)
    parts = []
    if pipeline is not None:
        parts.append(
            FollowedPart(name="pipeline", predicted_s=whole_s - after_s, measured_s=pipeline[1], ranks_s=pipeline)
        )
    if behind:
        ranks = sum(span[0] for span in behind), sum(span[1] for span in behind)
        parts.append(FollowedPart(name="after_pipeline", predicted_s=after_s, measured_s=ranks[1], ranks_s=ranks))
    return tuple(parts)
