"""A plan with every predicted time multiplied by what a measured run of the same work says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message
from autodeploy.ranking.headroom import headroom
from autodeploy.specs.planset import PARTS, Breakdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.planset import Plan, Rescaled
    from autodeploy.specs.timeline import PipelineTimeline

# Steps that differ by less take as long.
STEP_TIME_TOLERANCE = 1e-6


def rescaled(plan: Plan, rescaling: Rescaled | None) -> Plan:
    """The plan with its times multiplied by the ratio and its rates divided by it; the plan itself without one.

    Shares, memory and what a single operator or event takes on the host stay.
    """
    if rescaling is None:
        return plan
    ratio = rescaling.ratio
    breakdown = Breakdown(**{part: ratio * getattr(plan.breakdown, part) for part in PARTS})
    step, mfu = ratio * plan.step_time_s, plan.mfu / ratio
    return plan.model_copy(
        update={
            "rescaled": rescaling,
            "step_time_s": step,
            "tokens_per_s": plan.tokens_per_s / ratio,
            "tokens_per_s_per_npu": plan.tokens_per_s_per_npu / ratio,
            "mfu": mfu,
            "breakdown": breakdown,
            "headroom": headroom(step, mfu, breakdown),
            "expected_step_time_s": _times(ratio, plan.expected_step_time_s),
            "days": _times(ratio, plan.days),
            "npu_hours": _times(ratio, plan.npu_hours),
            "uncertainty": plan.uncertainty.model_copy(
                update={"low_s": ratio * plan.uncertainty.low_s, "high_s": ratio * plan.uncertainty.high_s}
            ),
            "stages": tuple(
                stage.model_copy(update={"forward_s": ratio * stage.forward_s, "backward_s": ratio * stage.backward_s})
                for stage in plan.stages
            ),
            "memory_menu": tuple(
                item.model_copy(
                    update={
                        "added_ms": ratio * item.added_ms,
                        "gib_per_ms": None if item.gib_per_ms is None else item.gib_per_ms / ratio,
                    }
                )
                for item in plan.memory_menu
            ),
        }
    )


def at_level(plan: Plan, rescaling: Rescaled | None) -> Plan:
    """A plan of other cards at the level of the measured run, where nobody measured on its own: see `rescaled`."""
    return rescaled(plan, rescaling) if plan.rescaled is None else plan


SLOT_TIMES = ("start_s", "end_s", "compute_s", "communication_s", "host_s")


def rescaled_timeline(timeline: PipelineTimeline, rescaling: Rescaled | None) -> PipelineTimeline:
    """The timeline with every instant multiplied by the ratio."""
    if rescaling is None:
        return timeline
    slots = (
        slot.model_copy(update={name: rescaling.ratio * getattr(slot, name) for name in SLOT_TIMES})
        for slot in timeline.slots
    )
    stages = (
        stage.model_copy(update={name: rescaling.ratio * seconds for name, seconds in stage})
        for stage in timeline.stages
    )
    times = {"makespan_s": rescaling.ratio * timeline.makespan_s, "step_time_s": rescaling.ratio * timeline.step_time_s}
    return timeline.model_copy(update={**times, "slots": tuple(slots), "stages": tuple(stages)})


def slower_than_measured(plans: Sequence[Plan], rescaling: Rescaled | None) -> tuple[str, ...]:
    """That the measured run is faster than the first of the plans is predicted to be, where it is."""
    if (
        rescaling is None
        or not plans
        or plans[0].step_time_s <= (1.0 + STEP_TIME_TOLERANCE) * rescaling.measured_step_time_s
    ):
        return ()
    took, first = rescaling.measured_step_time_s, plans[0].step_time_s
    return (Message("ranking.measured_run_took_s_step_less_than_s", run=rescaling.run, took=took, first=first),)


def _times(ratio: float, value: float | None) -> float | None:
    return None if value is None else ratio * value
