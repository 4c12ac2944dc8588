"""From a predicted step of reinforcement learning to the plan that users read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.evidence import evidence_of_generation
from autodeploy.costs.workload.flops import mfu
from autodeploy.messages import Message
from autodeploy.search.ranking.explanation import headroom
from autodeploy.search.ranking.one_strategy import described
from autodeploy.search.ranking.plans import plan_id
from autodeploy.specs.plan_details import BatchPoint, RlGeneration, RlPeakMemory, RlPhase, RlPlan, RlTokensPerS
from autodeploy.specs.planset import Breakdown, Uncertainty
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from autodeploy.costs.post_training.generation import Series
    from autodeploy.costs.post_training.step import RlStep
    from autodeploy.search.ranking.plans import Identity
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.rl import RlStrategy
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile

MOST_POINTS = 64  # of the batch over time, in a document


def plan_of_step(
    spec: Spec,
    profile: Profile,
    strategy: Strategy,
    layout: RlStrategy,
    step: RlStep,
    identity: Identity,
    *,
    cards: int,
) -> Plan:
    """The plan of a strategy of the update, a layout of generation and the step that they make.

    Stages, memory choices, evidence and the probability to fit are the update's, on its fullest packs; times,
    breakdown, tokens and the interval are the whole step's.

    Parameters
    ----------
    strategy : with its `dp`. cards : that train and generate.
    """
    rl = spec.training.rl
    assert rl is not None
    layout = layout.model_copy(update={"generation_npus": step.generation_npus})
    context = step.fullest.context
    update = described(step.fullest, strategy, spec, identity)
    whole = update.strategy.model_copy(update={"rl": layout})
    seconds = step.step_time_s
    breakdown = Breakdown(**{name: step.breakdown.get(name, 0.0) for name in Breakdown.model_fields})
    tokens = step.tokens_per_s[rl.token_count]
    mean_tokens = rl.prompt_length.mean_tokens + rl.response_length.distribution().mean
    trained = rl.samples * mean_tokens / seconds
    share = mfu(spec.model, round(mean_tokens), trained / (cards * profile.devices_per_npu), context.machine.peak_flops)
    peak = max(step.peak_memory_bytes.values()) / GIB
    limit = update.memory_limit_gib
    low, high = step.interval_s
    return update.model_copy(
        update={
            "rank": 1,
            "plan_id": plan_id(identity, whole),
            "strategy": whole,
            "step_time_s": seconds,
            "tokens_per_s": tokens,
            "tokens_per_s_per_npu": tokens / cards,
            "mfu": share,
            "peak_memory_gib": peak,
            "allocator_peak_gib": max(update.allocator_peak_gib, step.peak_memory_bytes["generation"] / GIB),
            "memory_interval": update.memory_interval if peak == update.peak_memory_gib else None,
            "fits": update.fits and peak <= limit * (1.0 + 1e-9),
            "num_npus_used": cards,
            "breakdown": breakdown,
            "headroom": headroom(seconds, share, breakdown),
            "uncertainty": Uncertainty(
                low_s=low,
                high_s=high,
                basis=Message("rl_planning.combined_interval"),
                nearest_record=update.uncertainty.nearest_record,
                extrapolated=update.uncertainty.extrapolated,
            ),
            "rl": _rl_plan(step, cards),
            "evidence": (
                *update.evidence,
                *evidence_of_generation(layout, profile.document.family, moe=spec.model.is_moe),
            ),
            "assumptions": (*update.assumptions, *(note.text for note in step.notes)),
            "provenance": "assumed",
        }
    )


def _rl_plan(step: RlStep, cards: int) -> RlPlan:
    generating = step.generation_npus
    return RlPlan(
        phases=tuple(
            RlPhase(
                name=phase.name,
                start_s=phase.start_s,
                end_s=phase.end_s,
                exposed_s=phase.exposed_s,
                devices=phase.devices,
                bound_by=phase.bound_by,
            )
            for phase in step.phases
        ),
        generation=RlGeneration(
            **step.generation, batch_over_time=_points(step.series), tail_starts_s=_tail_starts_s(step.series)
        ),
        hand_over_s=step.hand_over_s,
        samples_in_flight=step.samples_in_flight,
        blocked_s=step.blocked_s,
        generation_npus=generating or cards,
        training_npus=cards - (generating or 0),
        tokens_per_s=RlTokensPerS(**step.tokens_per_s),
        peak_memory_gib=RlPeakMemory(**{name: size / GIB for name, size in step.peak_memory_bytes.items()}),
        notes=tuple(note.text for note in step.notes),
    )


def _tail_starts_s(series: Series) -> float:
    return max(0.0, float(series.ends_s[-1]) - series.tail_s)


def _points(series: Series) -> tuple[BatchPoint, ...]:
    """The series at even instants of decoding, no more than a chart shows."""
    ends = np.asarray(series.ends_s, dtype=np.float64)
    at = np.linspace(ends[-1] / MOST_POINTS, ends[-1], MOST_POINTS)
    where = np.minimum(np.searchsorted(ends, at - 1e-12 * ends[-1]), len(ends) - 1)
    return tuple(
        BatchPoint(until_s=float(end), batch=float(series.batch[row]), mean_batch=float(series.mean_batch[row]))
        for end, row in zip(at, where, strict=True)
    )
