"""Prediction of one record and its intervals, as plans have them: of the strategy that was run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.coverage import run_in_context
from autodeploy.calibration.measured import memory_counts, memory_regime, tokens_of
from autodeploy.calibration.overlays import covariance_of
from autodeploy.calibration.record_run import runnable
from autodeploy.calibration.release_defaults import features_of, release_of
from autodeploy.calibration.spreads import STEADY, memory_spread, spread_of
from autodeploy.evaluation.inputs.build_context import device_of, profile_of, spec_context
from autodeploy.evaluation.stages.stage_memory import communication_bytes, on_card_bytes
from autodeploy.evaluation.steps.one_strategy import candidate_of, layout_of
from autodeploy.evaluation.steps.worlds import estimate_and_slopes
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.spec import Spec
from autodeploy.stack.frameworks import UNRESTRICTED
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from autodeploy.calibration.spreads import MemorySpread, Spread
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.step_classes import StepClasses
    from autodeploy.evaluation.steps.estimate import Estimate, Layout
    from autodeploy.evaluation.steps.worlds import Moved
    from autodeploy.specs.record import MemoryCounts, Record
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Floats
    from hardware_profiles.covariance import FittedFactor
    from hardware_profiles.profile import Profile

ANY_FRAMEWORK = SearchSpec(target=UNRESTRICTED)


@dataclass(frozen=True)
class Prediction:
    """What the model says about a record's run.

    record : as it was priced, with a diagnosis of all that was read otherwise than written. memory_gib : of the fullest
        rank, counted as the record counts it. slopes : of log step time by log factors, where they were asked for.
    """

    record: Record
    step_time_s: float
    tokens_per_s_per_npu: float
    allocator_peak_gib: float
    memory_gib: float
    estimate: Estimate
    context: Context
    candidate: Candidates
    layout: Layout
    profile: Profile
    slopes: Floats | None = None


def predict_record(
    record: Record,
    *,
    overlay: Path | None = None,
    efficiency: Mapping[str, float] | None = None,
    calibrated: bool = True,
    factors_of: Callable[[Profile], Sequence[Moved]] | None = None,
) -> Prediction:
    """Predict the run of a record, whatever legality rules say of it: it ran.

    Parameters
    ----------
    overlay : calibration overlay over the profile. efficiency : values that replace the profile's.
    calibrated : start from the profile as shipped; without, from its priors.
    factors_of : factors of the profile by which slopes are wanted; None wants none.
    """
    profile = profile_of(record.cluster, overlay=str(overlay) if overlay else None, calibrated=calibrated)
    device_of(profile, record.cluster)
    record = runnable(record, profile)
    release = release_of(record)
    context = spec_context(
        Spec(model=record.model, cluster=record.cluster, training=record.training, search=ANY_FRAMEWORK),
        profile,
        features_of(record) | release.memory | ({"fsdp"} if record.strategy.fsdp else frozenset()),
        distributed_optimizer=record.strategy.distributed_optimizer,
        release=release.band,
        efficiency=efficiency,
    )
    candidate = record_candidate(record, context.world, context.machine.vendor)
    strategy, factors = record.strategy, () if factors_of is None else factors_of(profile)

    def layout_among(classes: StepClasses) -> Layout:
        return layout_of(strategy, tuple(c.count for c in classes.layers))

    priced = estimate_and_slopes(candidate, context, layout_among, factors, at=efficiency)
    estimate = priced.estimate
    steady = memory_regime(record) == STEADY
    peak = estimate.allocator_bytes if steady else estimate.first_step_bytes
    return Prediction(
        record=record,
        step_time_s=estimate.step_time_s,
        tokens_per_s_per_npu=tokens_of(record) / estimate.step_time_s / context.num_npus,
        allocator_peak_gib=float(np.max(peak)) / GIB,
        memory_gib=_counted(float(np.max(peak)), memory_counts(record), candidate, context) / GIB,
        estimate=estimate,
        context=context,
        candidate=candidate,
        layout=priced.layout,
        profile=profile,
        slopes=None if factors_of is None else priced.slopes,
    )


def record_candidate(record: Record, ranks: int, vendor: str) -> Candidates:
    """What a runnable record ran, as a batch of one candidate."""
    strategy = record.strategy
    if strategy.moe_dispatcher is None:
        strategy = strategy.model_copy(update={"moe_dispatcher": release_of(record).dispatcher})
    return candidate_of(
        strategy,
        world=ranks,
        global_batch=record.training.global_batch_size.value,
        moe=record.model.is_moe,
        vendor=vendor,
    )


def factors_of(profile: Profile) -> tuple[FittedFactor, ...]:
    """The fitted factors of a profile, by which `record_spread` needs the slopes."""
    return covariance_of(profile).factors


def record_spread(predicted: Prediction) -> Spread:
    """Spread of a record's prediction that has slopes by `factors_of`. Each thing that the nearest known one stands in
    for counts as a feature that no record vouches for.
    """
    assert predicted.slopes is not None
    variance = covariance_of(predicted.profile).variance_of(predicted.slopes)
    return spread_of(predicted.context.family, _run(predicted), variance)


def record_memory_spread(predicted: Prediction) -> MemorySpread:
    """Spread of a record's predicted peak of memory."""
    maker, record = predicted.context.family.split("-")[0], predicted.record
    on_card = memory_counts(record) != "allocated"
    return memory_spread(maker, _run(predicted), regime=memory_regime(record), on_card=on_card)


def _run(predicted: Prediction) -> dict[str, Any]:
    """A record's run in the axes of the coverage table."""
    open_questions = {f"{d.path.removeprefix('/')}: {d.text}" for d in predicted.record.diagnoses if d.widens}
    return run_in_context(predicted.candidate, predicted.context, features_of(predicted.record) | open_questions)


def _counted(allocated: float, counts: MemoryCounts, candidate: Candidates, context: Context) -> float:
    """Bytes that a rank's peak is, by what is counted."""
    if counts == "allocated":
        return allocated
    outside = 0.0
    if counts == "card":
        outside = float(communication_bytes(candidate, context)[0]) + context.machine.runtime_bytes
    return float(on_card_bytes(np.asarray(allocated), outside, context.machine.fragmentation))
