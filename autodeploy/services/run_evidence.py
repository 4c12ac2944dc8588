"""What stored runs of a cluster have shown beyond the factors of its fit, as its overlay keeps it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.coverage import coverage, shares_node
from autodeploy.calibration.families import configuration_digest, family_digest
from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.spreads import Z80, classes_of_run, widening
from autodeploy.errors import FieldError
from autodeploy.messages import Message
from hardware_profiles.evidence import MOST_LOG, MOST_SCALE, MOST_SEEN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autodeploy.services.cluster_calibration import StoredRun
    from autodeploy.specs.measured_run import OutOfMemory
    from autodeploy.specs.planset import Plan
    from hardware_profiles import Profile

LEAST_FREEDOM = 4
"""Degrees of freedom of a class that next to nobody measured; as many as a class needs to have a spread of its own."""
LEAST_HELD = 0.6
"""Of what a card has to give; what lies beside the allocator (runtime, buffers of communicators) is below 0.4 of it."""


def evidence_of(runs: Sequence[StoredRun], profile: Profile, fitted: Collection[str]) -> dict[str, Any]:
    """The section `evidence` of a cluster's overlay; empty where its runs say nothing of memory or time.

    Parameters
    ----------
    runs : newest first; the newest MOST_SEEN of them that speak of memory count. fitted : ids of those whose times the
        cluster's numbers were fitted to.
    """
    seen = [entry for run in runs for entry in _seen(run, profile)][:MOST_SEEN]
    scale = time_scale(runs, profile)
    timed = dict.fromkeys(family_digest(run.spec.model) for run in runs if run.id in fitted)
    if not seen and scale == 1.0 and not timed:
        return {}
    return {"memory": seen, "time_scale": scale, "timed": list(timed)[:MOST_SEEN]}


def _seen(run: StoredRun, profile: Profile) -> list[dict[str, Any]]:
    spec, plan = run.spec, run.plan
    ranks = _ranks(plan, profile)
    axes = plan.strategy.model_dump() | {"dp": plan.strategy.replicas(ranks)}
    keys = {
        "family": family_digest(spec.model),
        "configuration": configuration_digest(spec.model, spec.training.seq_length, axes),
    }
    rows = []
    if run.measured.out_of_memory is not None:
        least = least_gib(run.measured.out_of_memory, plan)
        predicted = predicted_gib(run.measured.out_of_memory, plan, ranks)
        rows.append({**keys, "log_ratio": _log(least / predicted), "at_least": True})
    elif run.measured.peak_memory_gib is not None:
        rows.append({**keys, "log_ratio": _log(run.measured.peak_memory_gib / plan.allocator_peak_gib)})
    return rows


def _ranks(plan: Plan, profile: Profile) -> int:
    return plan.num_npus_used * profile.devices_per_npu


def least_gib(met: OutOfMemory, plan: Plan) -> float:
    """What the card would have had to hold: more than it has, and what was asked beside all that was there."""
    limit = min(plan.memory_limit_gib, met.capacity_gib or plan.memory_limit_gib)
    asked = (met.asked_gib or 0.0) + (met.allocated_gib or 0.0)
    return max(limit, asked + plan.peak_memory_gib - plan.allocator_peak_gib)


def predicted_gib(met: OutOfMemory, plan: Plan, ranks: int) -> float:
    """The predicted peak on the card where memory ran out: of its stage, or of the fullest where none is said."""
    stage = stage_of(met, plan, ranks)
    return plan.peak_memory_gib if stage is None else plan.stages[stage].total_gib


def stage_of(met: OutOfMemory, plan: Plan, ranks: int) -> int | None:
    """The stage where memory ran out, by Megatron-LM's order of ranks."""
    if met.stage is not None or met.rank is None:
        return met.stage
    return met.rank // plan.strategy.stage_stride(ranks) % plan.strategy.pp


def time_scale(runs: Sequence[StoredRun], profile: Profile) -> float:
    """Factor on the spread of predicted times, from how far runs missed the intervals that they were told.

    Notes
    -----
    `widening` with as many degrees of freedom as the class of the runs has configurations, and one square per
    configuration: runs inside their intervals narrow nothing here.
    """
    squares: dict[str, float] = {}
    freedom = math.inf
    for run in runs:
        if run.step_s is None or run.group in squares:
            continue
        uncertainty = run.plan.uncertainty
        sigma = math.log(uncertainty.high_s / uncertainty.low_s) / (2.0 * Z80)
        middle = 0.5 * math.log(uncertainty.high_s * uncertainty.low_s)
        squares[run.group] = ((math.log(run.step_s) - middle) / sigma) ** 2 if sigma > 0.0 else 1.0
        freedom = min(freedom, _configurations(run, profile))
    if not squares:
        return 1.0
    return rounded(min(MOST_SCALE, widening(freedom, list(squares.values()))))


def _configurations(run: StoredRun, profile: Profile) -> int:
    """That the spread of a run's class rests on; of a class without records LEAST_FREEDOM."""
    shared = shares_node(_ranks(run.plan, profile), run.plan.strategy.tp, profile.ranks_per_node)
    family = profile.document.calibration.spread_of or profile.family
    names = classes_of_run({"moe": run.spec.model.is_moe, "shares_node": shared})
    entries = (coverage()["classes"].get(f"{family}/{name}") for name in names)
    return max(LEAST_FREEDOM, next((int(entry["n"]) for entry in entries if entry), LEAST_FREEDOM))


def _log(ratio: float) -> float:
    return rounded(max(-MOST_LOG, min(MOST_LOG, math.log(ratio))))


def problem_of(met: OutOfMemory, plan: Plan, ranks: int) -> FieldError | None:
    """Why a report can't be of this plan; None where it can."""
    at = "/out_of_memory"
    if met.rank is not None and met.rank >= ranks:
        return FieldError(
            f"{at}/rank",
            Message("field_fault.is_too_big", value=met.rank),
            Message("field_fault.at_most", bound=ranks - 1),
        )
    stage, stages = stage_of(met, plan, ranks), len(plan.stages)
    if stage is not None and stage >= stages:
        return FieldError(
            f"{at}/stage",
            Message("field_fault.is_too_big", value=stage),
            Message("field_fault.at_most", bound=stages - 1),
        )
    reserved, limit = met.reserved_gib, plan.memory_limit_gib
    if reserved is not None and reserved + (met.asked_gib or 0.0) < LEAST_HELD * least_gib(met, plan):
        message = Message("services.run_held_gib_of_gib_something_else_filled", held=reserved, limit=limit)
        return FieldError(f"{at}/reserved_gib", message, Message("services.end_other_processes"))
    return None
