"""What a plan still loses: every second of its step beyond the model's own FLOPs at the device's peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.specs.planset import PARTS, Loss

if TYPE_CHECKING:
    from autodeploy.specs.planset import Breakdown


def headroom(step_time_s: float, mfu: float, breakdown: Breakdown) -> tuple[Loss, ...]:
    """Losses of a step, the largest first; they and the ideal time (mfu * step_time_s) sum to the step.

    The loss of `compute_s` is what operators take beyond peak FLOP/s; every other part is lost whole.
    """
    ideal_s = mfu * step_time_s
    parts = {part: getattr(breakdown, part) for part in PARTS}
    parts["compute_s"] -= ideal_s
    order = sorted((part for part in parts if parts[part] > 0.0), key=lambda part: -parts[part])
    losses, gone_s = [], 0.0
    for part in order:
        gone_s += parts[part]
        losses.append(
            Loss(
                part=part,
                seconds=parts[part],
                mfu_points=100.0 * (ideal_s / (step_time_s - parts[part]) - mfu),
                mfu_up_to_here=ideal_s / max(step_time_s - gone_s, ideal_s),
            )
        )
    return tuple(losses)
