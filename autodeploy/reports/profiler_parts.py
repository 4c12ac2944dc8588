"""Our parts of a step in the terms of the Ascend profiler, so that both can stand side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.specs.measured_run import ProfilerTimes
    from autodeploy.specs.planset import Breakdown

# The profiler counts waiting for a pipeline's receive as bubble, and copies by the host link as free time.
GROUPS: dict[str, tuple[str, ...]] = {
    "computing": ("compute_s", "recompute_s", "imbalance_s", "optimizer_s"),
    "communication": ("exposed_tp_s", "exposed_ep_s", "exposed_cp_s", "exposed_dp_s"),
    "bubble": ("pipeline_bubble_s", "exposed_pp_s"),
    "free": ("host_bound_s", "exposed_swap_s"),
}


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """One part of the step: seconds predicted and profiled."""

    name: str
    predicted_s: float
    measured_s: float


def compared_parts(breakdown: Breakdown, times: ProfilerTimes) -> tuple[ComparedPart, ...]:
    """The four parts of the profiler; each side adds up to its step time."""
    predicted, measured = predicted_parts(breakdown), profiled_parts(times)
    return tuple(ComparedPart(name, predicted[name], measured[name]) for name in GROUPS)


def predicted_parts(breakdown: Breakdown) -> dict[str, float]:
    """Seconds of the profiler's parts as predicted; their sum is the step."""
    return {name: sum(getattr(breakdown, part) for part in parts) for name, parts in GROUPS.items()}


def profiled_parts(times: ProfilerTimes) -> dict[str, float]:
    """Seconds of the profiler's parts as measured; their sum is the step."""
    return {name: getattr(times, f"{name}_s") for name in GROUPS}
