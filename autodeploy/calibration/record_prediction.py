"""Prediction of one record and its intervals, as plans have them: of the strategy that was run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import Field

from autodeploy.calibration.overlays import covariance_of
from autodeploy.costs.inputs.build_context import device_of, profile_of, spec_context
from autodeploy.costs.inputs.context import PRETRAINING
from autodeploy.costs.prediction_spread import FEW_ITERATIONS, STEADY, memory_spread, run_in_context, spread_of
from autodeploy.costs.stages.stage_memory import communication_bytes, on_card_bytes
from autodeploy.costs.steps.one_strategy import candidate_of, layout_of
from autodeploy.costs.steps.scenarios import estimate_and_slopes, host_range
from autodeploy.costs.workload.flops import forward_flops_per_token
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.base import Document
from autodeploy.specs.diagnostics import Text
from autodeploy.specs.record import Diagnoses
from autodeploy.specs.rl import ResponseLength
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.software import features_of, release_of
from autodeploy.specs.spec import Spec
from autodeploy.specs.training import TRAINED_IMBALANCE
from autodeploy.stack.frameworks import UNRESTRICTED
from cost_models.hbm import GIB
from cost_models.schedule import chunks_in_words, kinds, schedule_problem
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.prediction_spread import MemorySpread, Spread
    from autodeploy.costs.stages.step_classes import StepClasses
    from autodeploy.costs.steps.estimate import Estimate, Layout
    from autodeploy.costs.steps.scenarios import Perturbation
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.measurements import GenerationRecord, RlRecord
    from autodeploy.specs.record import MemoryCounts, Record
    from autodeploy.specs.strategy import Strategy
    from cost_models.arrays import Floats
    from hardware_profiles.covariance import FittedFactor
    from hardware_profiles.profile import Profile


class ComparedRow(Document):
    """One record: measured, predicted, error, the parts that matter, and what is to say.

    Errors are predicted / measured - 1, of times on the speeds that they are.
    """

    id: str
    model: str
    measured: Any
    predicted: Any = None
    error: Any = None
    parts: Annotated[dict[str, float], Field(description="shares of the time")] = Field(default_factory=dict)
    diagnoses: Annotated[tuple[Text, ...], Field(description="what was read otherwise than it was written")] = ()
    warnings: tuple[Text, ...] = ()
    skipped: Text | None = None

    @classmethod
    def of(cls, record: Record | GenerationRecord | RlRecord, **rest: Any) -> Self:
        """The row of a record: with its prediction, or with why it is skipped."""
        return cls(id=record.id, model=record.model.name, measured=record.measured, **rest)


# What a record measured, in the terms of a prediction.
FORWARD_AND_BACKWARD = 3.0


def measured_step_s(record: Record) -> float | None:
    """Seconds of a step, from tokens per second where they are published; None for a record of memory alone."""
    measured = record.measured
    if measured.tokens_per_s_per_npu is not None:
        return tokens_of(record) / measured.tokens_per_s_per_npu / int(record.cluster.num_npus or 1)
    return measured.step_time_s if measured.step_time_s is not None else _step_of_flops_s(record)


def memory_regime(record: Record) -> str:
    """FEW_ITERATIONS where a log shows the memory of the first step alone, else STEADY.

    Megatron-LM logs it after the first step and never again (training.py, report_memory_flag); NeMo and Megatron-Bridge
    log it again and again.
    """
    return FEW_ITERATIONS if record.memory_regime == "first_step" else STEADY


def memory_counts(record: Record) -> MemoryCounts:
    """Scope of a record's memory, from what it says, else from what its stack logs: as Megatron-LM does what is
    allocated (training.py, report_memory), unless its document says otherwise.
    """
    if record.measured.memory_counts is not None:
        return record.measured.memory_counts
    return "reserved" if release_of(record).settings.get("memory_log") == "reserved" else "allocated"


def tokens_of(record: Record) -> int:
    """Tokens of a step."""
    return record.training.global_batch_size.value * record.training.seq_length


def _step_of_flops_s(record: Record) -> float | None:
    """Seconds of a step from a rate of model FLOPs: every query against the whole sequence, nothing computed again.

    Source of the convention: Megatron-LM num_floating_point_operations before March 2025, and MindSpeed-LLM's tables.
    """
    rate = record.measured.tflops_per_npu
    if rate is None and record.measured.mfu is not None:
        profile = load_profile(record.cluster.profile, calibrated=False)
        peak = profile.device(record.cluster.device).peak_flops.get(record.training.precision, 0.0)
        rate = record.measured.mfu * peak * profile.devices_per_npu / 1e12
    if not rate:
        return None
    flops = FORWARD_AND_BACKWARD * forward_flops_per_token(record.model, record.training.seq_length, causal=False)
    return flops * tokens_of(record) / (rate * 1e12 * int(record.cluster.num_npus or 1))


def counts_for_time(record: Record) -> bool:
    """Whether a record's time says something: a few iterations of a small model don't."""
    return measured_step_s(record) is not None and not record.short_run


def is_update_phase(record: Record) -> bool:
    """Whether a record is of the update phase of reinforcement learning: packed answers of unequal lengths."""
    return record.training.kind != "pretrain" or release_of(record).stack.trains == "updates"


def kind_of_record(record: Record) -> str:
    """The kind of run that a record is, as the coverage table tells them apart."""
    trains = release_of(record).stack.trains
    if trains:
        return trains
    if record.training.kind != "pretrain":
        return "tuning"
    return "sharded" if record.strategy.fsdp else PRETRAINING


def fits_time(record: Record) -> bool:
    """Whether fits see a record's time: of pre-training, and of a run whose configuration its source is sure of.

    Fully sharded runs, and those by kernels that no formula describes, have software of their own, which no plan is
    launched with: their prediction is reported, and says nothing of the others' rates.
    """
    return kind_of_record(record) == PRETRAINING and record.confidence != "low" and counts_for_time(record)


# A record as a run that can be priced.
def runnable(record: Record, profile: Profile) -> Record:
    """The record without contradictions, each a diagnosis more.

    Raises SpecError if most of its stages would hold nothing: such a run has not been.
    """
    _refuse_empty_stages(record)
    diagnoses = Diagnoses()
    training, cluster = dict[str, Any](), dict[str, Any]()
    peaks, precision = profile.device(record.cluster.device).peak_flops, record.training.precision
    if precision not in peaks and "bf16" in peaks:
        diagnoses.say("/training/precision", f"the chip has no {precision} peak; read as bf16")
        training["precision"] = "bf16"
    training |= _real_router(record, diagnoses) | _real_lengths(record, diagnoses)
    ranks = int(record.cluster.num_npus or 1) * profile.devices_per_npu
    needed = record.strategy.tp * record.strategy.pp * record.strategy.cp
    if record.cluster.num_npus is not None and ranks < needed:
        cluster["num_npus"] = cards = -(-needed // profile.devices_per_npu)
        diagnoses.say("/cluster/num_npus", f"tp x pp x cp is {needed} on {ranks} ranks; read as {cards} cards")
        ranks = cards * profile.devices_per_npu
    strategy = _strategy(record, ranks, diagnoses) | _every_second_product(record, diagnoses)
    strategy |= _own_dispatcher(record, diagnoses)
    changes = {"training": training, "cluster": cluster, "strategy": strategy}
    sections = {name: getattr(record, name).model_copy(update=fields) for name, fields in changes.items()}
    return record.model_copy(update={**sections, "diagnoses": (*record.diagnoses, *diagnoses.found)})


def _real_router(record: Record, diagnoses: Diagnoses) -> dict[str, Any]:
    """Loads of experts of an update phase, whose record counts as pre-training: its weights are trained ones."""
    training = record.training
    named = training.router == "forced" or training.imbalance.value != 1.0 or training.expert_load_file is not None
    if not record.model.is_moe or release_of(record).stack.trains != "updates" or named:
        return {}
    sustained, peak = TRAINED_IMBALANCE
    text = f"of trained weights; read as {sustained.value} at EP {sustained.at_ep}"
    diagnoses.say("/training/routing_imbalance", text, widens=False)
    return {"routing_imbalance": sustained, "routing_imbalance_peak": peak}


def _real_lengths(record: Record, diagnoses: Diagnoses) -> dict[str, Any]:
    """Lengths of packed answers of which a record has the mean alone: real ones are unequal, and ranks wait for each
    other's longest.
    """
    histogram, longest = record.training.sequence_length_histogram, record.training.seq_length
    if not is_update_phase(record) or histogram is None or len(histogram) != 1:
        return {}
    (mean,) = map(int, histogram)
    if 2 * mean > longest:
        return {}
    lengths = ResponseLength(mean=mean, max=longest).distribution()
    shares: dict[str, float] = {}
    for tokens, share in zip(lengths.tokens.tolist(), lengths.share.tolist(), strict=True):
        name = str(max(1, round(tokens)))
        shares[name] = shares.get(name, 0.0) + share
    text = f"one length of {mean}; read as answers of unequal lengths with this mean"
    diagnoses.say("/training/sequence_length_histogram", text, widens=False)
    return {"sequence_length_histogram": shares}


def _every_second_product(record: Record, diagnoses: Diagnoses) -> dict[str, Any]:
    """Selective recomputation of a stack that chooses by operator (`autodeploy.costs.workload.operators`).

    Layers of other models than dense ones with grouped-query attention call other products: what is no product is taken
    as computed again.
    """
    recompute = record.strategy.recompute
    chosen = recompute.granularity == "selective" and recompute.per_stage is None
    by_operator = release_of(record).settings.get("selective_recomputation") == "by_operator"
    if not chosen or not by_operator or "by_operator" in recompute.modules:
        return {}
    other = record.model.is_moe or not record.model.attention.own_keys or not record.strategy.fsdp
    text = (
        "by operator; read as norms and activations" if other else "read as by operator, which is what its software has"
    )
    diagnoses.say("/strategy/recompute/modules", text, widens=other)
    modules = ("norm", "activation") if other else ("by_operator",)
    return {"recompute": recompute.model_copy(update={"modules": modules})}


def _own_dispatcher(record: Record, diagnoses: Diagnoses) -> dict[str, Any]:
    """The dispatcher that a release calls All-to-All, where that is another one than today's."""
    given, called = record.strategy.moe_dispatcher, release_of(record).settings.get("alltoall", "alltoall")
    if given != "alltoall" or called == given or record.strategy.tp == 1:
        return {}
    diagnoses.say("/strategy/moe_dispatcher", f"alltoall of a release that means {called}; read as that", widens=False)
    return {"moe_dispatcher": called}


def _refuse_empty_stages(record: Record) -> None:
    """Embedding, head and prediction modules may have stages of their own; nothing else but layers can."""
    model = record.model
    parts = model.num_hidden_layers + model.num_nextn_predict_layers + 2
    for name in ("pp", "vpp"):
        if (count := getattr(record.strategy, name)) > parts:
            raise SpecError(
                Message("calibration.more_stages_than_layers", name=name, count=count, layers=model.num_hidden_layers),
                path=f"/strategy/{name}",
            )


def _strategy(record: Record, ranks: int, diagnoses: Diagnoses) -> dict[str, Any]:
    """Fields of the strategy that give way."""
    strategy = record.strategy
    changes: dict[str, Any] = {}
    cut = strategy.tp * strategy.pp * strategy.cp
    replicas = max(1, ranks // cut)
    if strategy.dp is not None and strategy.dp != replicas:
        diagnoses.say("/strategy/dp", f"{strategy.dp} is not {ranks} ranks over tp x pp x cp; {replicas} follows")
        changes["dp"] = None
    if ranks % cut:
        diagnoses.say("/cluster/num_npus", f"{ranks % cut} of {ranks} ranks are left over by tp x pp x cp {cut}")
    share = strategy.micro_batch_size * replicas
    batch = record.training.global_batch_size.value
    if batch % share:
        text = f"{batch} sequences are no multiple of micro batch x dp {share}; the fullest replica sets the time"
        diagnoses.say("/training/global_batch_size", text)
    changes |= _schedule(strategy, -(-batch // share), diagnoses)
    if strategy.layers_per_stage is not None:
        try:
            layout_of(strategy.model_copy(update=changes), (record.model.num_hidden_layers,))
        except SpecError as error:
            diagnoses.say("/strategy/layers_per_stage", f"{error}; spread evenly")
            changes["layers_per_stage"] = None
    return changes


def _schedule(strategy: Strategy, micro_batches: int, diagnoses: Diagnoses) -> dict[str, Any]:
    """The interleaved schedule, of as many chunks, where the named one can't have this shape."""
    kind = kinds.schedule(strategy.schedule)
    if kind.chunks is None:
        return {}
    problem = schedule_problem(kind.name, strategy.pp, kind.chunks, micro_batches)
    if problem is None and strategy.vpp in (1, kind.chunks):
        return {}
    other = kinds.plain(kind.chunks).name
    said = problem or f"{kind.name} has {chunks_in_words(kind)} a stage"
    diagnoses.say("/strategy/schedule", f"{said}; read as {other}")
    return {"schedule": other, "vpp": max(strategy.vpp, kind.chunks) if strategy.pp > 1 else 1}


ANY_FRAMEWORK = SearchSpec(target=UNRESTRICTED)


@dataclass(frozen=True)
class Prediction:
    """Prediction of a record's run.

    record : as it was priced, with a diagnosis of all that was read otherwise than written. memory_gib : of the fullest
        rank, counted as the record counts it. slopes : of log step time by the log factors that were asked for.
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
    slopes: Floats


def predict_record(
    record: Record,
    *,
    overlay: Path | None = None,
    efficiency: Mapping[str, float] | None = None,
    calibrated: bool = True,
    factors_of: Callable[[Profile], Sequence[Perturbation]] | None = None,
) -> Prediction:
    """Predict the run of a record, whatever legality rules say of it: it ran.

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
        host=release.host.of_strategy(record.strategy.optimizer_offload_fraction),
    )
    candidate = record_candidate(record, context.world, context.machine.vendor)
    strategy, factors = record.strategy, () if factors_of is None else factors_of(profile)

    def layout_among(classes: StepClasses) -> Layout:
        return layout_of(strategy, tuple(c.count for c in classes.layers))

    priced = estimate_and_slopes(candidate, context, layout_among, factors, at=efficiency)
    estimate = priced.estimate
    steady = memory_regime(record) == STEADY
    peak = np.maximum(estimate.allocator_bytes if steady else estimate.first_step_bytes, estimate.start_bytes)
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
        slopes=priced.slopes,
    )


def record_candidate(record: Record, ranks: int, vendor: str) -> Candidates:
    """A batch of one candidate: the strategy of a runnable record."""
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
    variance = covariance_of(predicted.profile).variance_of(predicted.slopes)
    asymmetric = host_range(predicted.candidate, predicted.context, predicted.layout)
    return spread_of(predicted.context.family, _run(predicted), variance, asymmetric=asymmetric)


# Log memory of a launch that its source does not vouch for. Of eleven records that were held against their scripts, the
# strategy as corrected moved the peak by 9 % in the median (2 to 44): over 0.6745, a standard deviation.
NOISE_UNSURE_LAUNCH = 0.13


def record_memory_spread(predicted: Prediction, *, on_card: bool | None = None) -> MemorySpread:
    """Spread of a record's predicted peak of memory: of what the record counts, or of all that is on the card."""
    maker, record = predicted.context.family.split("-")[0], predicted.record
    if on_card is None:
        on_card = memory_counts(record) != "allocated"
    spread = memory_spread(maker, _run(predicted), regime=memory_regime(record), on_card=on_card)
    if record.confidence == "low":
        return replace(spread, log_sigma=math.hypot(spread.log_sigma, NOISE_UNSURE_LAUNCH))
    return spread


def _run(predicted: Prediction) -> dict[str, Any]:
    """A record's run in the axes of the coverage table."""
    open_questions = {f"{d.path.removeprefix('/')}: {d.text}" for d in predicted.record.diagnoses if d.widens}
    run = run_in_context(predicted.candidate, predicted.context, features_of(predicted.record) | open_questions)
    return run | {"kind": kind_of_record(predicted.record)}


def _counted(allocated: float, counts: MemoryCounts, candidate: Candidates, context: Context) -> float:
    """Bytes that a rank's peak is, by what is counted."""
    if counts == "allocated":
        return allocated
    outside = 0.0
    if counts == "card":
        outside = float(communication_bytes(candidate, context)[0]) + context.machine.runtime_bytes
    return float(on_card_bytes(np.asarray(allocated), outside, context.machine.fragmentation))
