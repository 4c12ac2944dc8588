"""Predicted against measured, record by record and class by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from autodeploy.calibration.post_training import RlRow, validate_rl
from autodeploy.calibration.record_prediction import (
    ComparedRow,
    Prediction,
    counts_for_time,
    factors_of,
    is_update_phase,
    kind_of_record,
    measured_step_s,
    predict_record,
    record_memory_spread,
    record_spread,
)
from autodeploy.calibration.unmeasured import UnmeasuredReport, unmeasured, uses_of
from autodeploy.costs.post_training.generator import Generator, generator_of
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.space.rules import broken_rules
from autodeploy.specs.base import Document
from autodeploy.specs.diagnostics import TranslatedDocument
from autodeploy.specs.measurements import GenerationRecord, RlRecord, ServedMeasured, read_measurements
from autodeploy.specs.plan_details import MemoryInterval
from autodeploy.specs.record import Measured, Record, Unread
from autodeploy.specs.rl import EngineMode
from autodeploy.specs.software import release_of, stack_of
from autodeploy.stack.frameworks import ENGINES, UNRESTRICTED
from cost_models.hbm import GIB
from cost_models.serving import Service, served
from hardware_profiles.errors import ProfileError
from hardware_profiles.loader import load_profile
from hardware_profiles.reading import read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from autodeploy.calibration.unmeasured import Use
    from hardware_profiles.generation import GenerationNumbers
    from hardware_profiles.profile import Profile


class Predicted(Document):
    """The prediction of one run of training, in the terms of what it measured."""

    tokens_per_s_per_npu: float
    step_time_s: float
    step_time_interval_s: Annotated[tuple[float, float], Field(description="80 %")]
    peak_memory_gib: Annotated[float, Field(description="counted as measured.peak_memory_gib is")]
    memory_interval: MemoryInterval


class Errors(Document):
    """`time` on tokens per second where they are published."""

    time: float | None = None
    memory: float | None = None


class Row(ComparedRow):
    """One run of training; `fits`: the model says that it fits its card."""

    measured: Measured
    predicted: Predicted | None = None
    error: Errors = Errors()
    counts_for_time: bool = True
    fits: bool | None = None

    @property
    def speed_error(self) -> float | None:
        """Error of the speed, where the time says something."""
        return self.error.time if self.counts_for_time else None


class ServedPredicted(Document):
    """The prediction of one measurement, in the terms of what it measured."""

    tpot_ms: float
    tpot_interval_ms: Annotated[tuple[float, float], Field(description="80 %")]
    ttft_ms: float
    decode_tokens_per_s_per_die: float
    running: Annotated[float, Field(description="requests that decode at once on a data-parallel rank")]
    mode: EngineMode


class ServedErrors(Document):
    """`tpot` of 1 / TPOT, `time` of tokens per second, `ttft` of 1 / TTFT."""

    tpot: float | None = None
    time: float | None = None
    ttft: float | None = None


class ServedRow(ComparedRow):
    """One measurement of serving; parts of a step of decoding."""

    kind: str = "generation"
    measured: ServedMeasured
    predicted: ServedPredicted | None = None
    error: ServedErrors = ServedErrors()

    @property
    def speed_error(self) -> float | None:
        """Of the time per output token, where it was measured; else of tokens per second."""
        return self.error.tpot if self.error.tpot is not None else self.error.time


# Measured serving against its prediction.
@dataclass(frozen=True)
class Batch:
    """Records of one model, system and layout, and the model that generates; `index`: their places in the whole."""

    generator: Generator
    index: npt.NDArray[np.int64]
    records: tuple[GenerationRecord, ...]


def alike_records(records: Sequence[GenerationRecord]) -> Iterable[list[int]]:
    """Places of the records of each model, system and layout."""
    groups: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        layout = record.generation.model_dump_json(exclude={"input_length", "output_length", "concurrency"})
        key = f"{record.model.model_dump_json()}{record.cluster.model_dump_json()}{layout}"
        groups.setdefault(key, []).append(place)
    return groups.values()


def batch_of(records: Sequence[GenerationRecord], places: list[int], numbers: GenerationNumbers | None = None) -> Batch:
    """Those of the records at `places`, which are alike; `numbers`: of generation, the system's without.

    Raises ProfileError if the profile is not known, SpecError if the device has no peak for the precision.
    """
    record = records[places[0]]
    profile = load_profile(record.cluster.profile)
    device = profile.device(record.cluster.device)
    generator = generator_of(record.model, profile, device, record.generation, numbers=numbers)
    return Batch(generator, np.array(places, dtype=np.int64), tuple(records[place] for place in places))


def service_of(batch: Batch) -> Service:
    """Service that clients of the records measure."""
    layouts = [record.generation for record in batch.records]
    first = layouts[0]
    replicas = batch.records[0].cluster.num_dies / first.tp
    return served(
        batch.generator.model,
        np.array([layout.concurrency / replicas for layout in layouts]),
        np.array([float(layout.input_length) for layout in layouts]),
        np.array([float(layout.output_length) for layout in layouts]),
        most_running=float(first.max_num_seqs or np.inf),
        prefill_batch_tokens=ENGINES[first.engine].prefill_batch_tokens,
        together=ENGINES[first.engine].together,
    )


def validate_generation(records: Sequence[GenerationRecord]) -> list[ServedRow]:
    """Every measurement beside its prediction, in order; one that can't be predicted is skipped with its reason."""
    served: dict[int, ServedRow] = {}
    for places in alike_records(records):
        members = [records[place] for place in places]
        try:
            batch = batch_of(records, places)
            service = service_of(batch)
            rows = [_served_row(batch, service, at, record) for at, record in enumerate(members)]
        except (SpecError, ProfileError) as error:
            rows = [ServedRow.of(record, skipped=str(error)) for record in members]
        served.update(zip(places, rows, strict=True))
    return [served[place] for place in range(len(records))]


def _served_row(batch: Batch, service: Service, at: int, record: GenerationRecord) -> ServedRow:
    tpot, wide = 1e3 * float(service.tpot_s[at]), 1.0 + batch.generator.half_width
    predicted = ServedPredicted(
        tpot_ms=tpot,
        tpot_interval_ms=(tpot / wide, tpot * wide),
        ttft_ms=1e3 * float(service.ttft_s[at]),
        decode_tokens_per_s_per_die=float(service.tokens_per_s[at]) / record.generation.tp,
        running=float(service.running[at]),
        mode=batch.generator.mode,
    )
    measured, rate = record.measured, record.measured.decode_tokens_per_s_per_die
    return ServedRow.of(
        record,
        predicted=predicted,
        error=ServedErrors(
            tpot=None if measured.tpot_ms is None else measured.tpot_ms / tpot - 1.0,
            time=None if rate is None else predicted.decode_tokens_per_s_per_die / rate - 1.0,
            ttft=None if measured.ttft_ms is None else measured.ttft_ms / predicted.ttft_ms - 1.0,
        ),
        parts=_parts(batch, record, predicted),
        diagnoses=tuple(f"{each.path}: {each.text}" for each in record.diagnoses),
        warnings=_served_warnings(batch, record, predicted),
    )


def _parts(batch: Batch, record: GenerationRecord, predicted: ServedPredicted) -> dict[str, float]:
    """Shares of the time per output token: the parts of a step, and prompts of other requests."""
    layout = record.generation
    context = layout.input_length + layout.output_length / 2.0
    parts = batch.generator.model.parts_s(predicted.running, context)
    shares = {name: 1e3 * float(part.max()) / predicted.tpot_ms for name, part in parts.items()}
    shares["prompts_s"] = 1.0 - sum(shares.values())
    return {name: share for name, share in shares.items() if share > 0.01}


def _served_warnings(batch: Batch, record: GenerationRecord, predicted: ServedPredicted) -> tuple[str, ...]:
    model, layout, said = batch.generator.model, record.generation, [*batch.generator.assumed().values()]
    if model.cache_space_bytes <= 0.0:
        needed, room = model.weights_bytes / GIB, (model.cache_space_bytes + model.weights_bytes) / GIB
        said.append(Message("calibration.weights_do_not_fit", needed=needed, room=room))
    asked, running = layout.concurrency * layout.tp / record.cluster.num_dies, predicted.running
    if asked > running and running < (layout.max_num_seqs or asked):
        said.append(Message("calibration.more_requests_than_cache", asked=asked, running=running))
    return tuple(said)


LONG_SEQUENCE = 32_768


class Statistics(Document):
    """Errors of one set of records; percentiles by linear interpolation."""

    n: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float


class Summary(Document):
    """Time over records whose time counts, update phases only where there is nothing else; memory over all that have
    one; time by class.
    """

    time: Statistics | None
    memory: Statistics | None
    tpot: Annotated[
        Statistics | None, Field(description="measurements of serving, on 1 / TPOT or tokens per second")
    ] = None
    rl: Annotated[Statistics | None, Field(description="steps of post-training, on their speed")] = None
    by_class: dict[str, Statistics]
    skipped: int


class ValidationReport(TranslatedDocument):
    """Everything that `autodeploy validate` prints."""

    rows: tuple[Row | ServedRow | RlRow, ...]
    summary: Summary
    unmeasured: UnmeasuredReport = UnmeasuredReport()


def validate(
    lines: Iterable[Record | GenerationRecord | RlRecord | Unread], overlay: Path | None = None
) -> ValidationReport:
    """Predict every record and compare. One that can't be predicted, or read, is skipped with its reason.

    Rows of runs of training come first, then of serving, of steps of post-training, and of what is no record.
    """
    lines = tuple(lines)
    served = [line for line in lines if isinstance(line, GenerationRecord)]
    steps = [line for line in lines if isinstance(line, RlRecord)]
    judged: list[tuple[Record, Row]] = []
    used: list[tuple[Profile, Profile, frozenset[Use]]] = []
    for record in (line for line in lines if isinstance(line, Record)):
        try:
            predicted = predict_record(record, overlay=overlay, factors_of=factors_of)
        except SpecError as error:
            judged.append((record, Row.of(record, skipped=str(error))))
            continue
        judged.append((record, _row(record, predicted)))
        prior = load_profile(record.cluster.profile, calibrated=False)
        used.append((predicted.profile, prior, uses_of(predicted.context, predicted.candidate)))
    generated = zip(served, validate_generation(served), strict=True)
    compared: list[tuple[Record | GenerationRecord | RlRecord, Row | ServedRow | RlRow]]
    compared = [*judged, *generated, *zip(steps, validate_rl(steps), strict=True)]
    speeds = [(record, row.speed_error) for record, row in compared if row.speed_error is not None]
    by_class: dict[str, list[float]] = {}
    for measured, far in speeds:
        for name in classes_of(measured):
            by_class.setdefault(name, []).append(far)
    timed = [(record, far) for record, far in speeds if isinstance(record, Record)]
    training = [far for record, far in timed if not is_update_phase(record)]
    unread = (line for line in lines if isinstance(line, Unread))
    lost = (Row(id=line.name, model="", measured=Measured(), skipped=str(line.error)) for line in unread)
    rows = (*(row for _, row in compared), *lost)
    summary = Summary(
        time=_statistics(training or [far for _, far in timed]),
        memory=_statistics([row.error.memory for _, row in judged if row.error.memory is not None]),
        tpot=_statistics([far for record, far in speeds if isinstance(record, GenerationRecord)]),
        rl=_statistics([far for record, far in speeds if isinstance(record, RlRecord)]),
        by_class={k: s for k, v in sorted(by_class.items()) if (s := _statistics(v)) is not None},
        skipped=sum(bool(row.skipped) for row in rows),
    )
    return ValidationReport(rows=rows, summary=summary, unmeasured=unmeasured(used))


def validate_file(path: Path, overlay: Path | None = None) -> tuple[ValidationReport, list[Record]]:
    """The comparison with every line of a file of measured runs, and the records of training among them.

    Raises SpecError when the file or the overlay can't be read, or no line is a record.
    """
    if overlay is not None:
        read_yaml_file(overlay)
    lines = list(read_measurements(path))
    unread = [line for line in lines if isinstance(line, Unread)]
    if unread and len(unread) == len(lines):
        raise unread[0].error
    return validate(lines, overlay), [line for line in lines if isinstance(line, Record)]


def classes_of(record: Record | GenerationRecord | RlRecord) -> tuple[str, ...]:
    """Classes that a record counts in."""
    experts, of_profile = "experts" if record.model.is_moe else "dense", f"profile {record.cluster.profile}"
    if isinstance(record, GenerationRecord):
        of_engine = (f"generation engine {record.generation.engine}", f"generation tp {record.generation.tp}")
        return (f"generation {experts}, {of_profile}", *of_engine)
    if isinstance(record, RlRecord):
        placement = f"post-training {record.layout.placement}"
        return (f"post-training {experts}, {of_profile}", placement, f"framework {record.framework}")
    profile = load_profile(record.cluster.profile)
    several = int(record.cluster.num_npus or 1) > profile.npus_per_node
    return (
        *(("update phase",) if is_update_phase(record) else ()),
        "moe" if record.model.is_moe else "dense",
        "long sequence" if record.training.seq_length >= LONG_SEQUENCE else "short sequence",
        "several nodes" if several else "one node",
        f"framework {stack_of(record)}",
        f"device {record.cluster.device or profile.default_device}",
        of_profile,
        f"release {release_of(record).band}",
        f"kind {kind_of_record(record)}",
    )


def _row(record: Record, predicted: Prediction) -> Row:
    step = predicted.step_time_s
    measured_s = measured_step_s(record)
    time = measured_s / step - 1.0 if measured_s is not None else None
    peak = record.measured.peak_memory_gib
    memory = predicted.memory_gib / peak - 1.0 if peak is not None else None
    parts = {name: seconds / step for name, seconds in predicted.estimate.breakdown.items() if seconds > 0.01 * step}
    return Row.of(
        record,
        predicted=Predicted(
            tokens_per_s_per_npu=predicted.tokens_per_s_per_npu,
            step_time_s=step,
            step_time_interval_s=record_spread(predicted).interval(step),
            peak_memory_gib=predicted.memory_gib,
            memory_interval=record_memory_spread(predicted).interval(predicted.memory_gib),
        ),
        error=Errors(time=time, memory=memory),
        parts=dict(sorted(parts.items(), key=lambda item: -item[1])),
        counts_for_time=counts_for_time(record),
        fits=_fits(predicted),
        diagnoses=tuple(f"{d.path.removeprefix('/')}: {d.text}" for d in predicted.record.diagnoses),
        warnings=tuple(_warnings(predicted)),
    )


def _fits(predicted: Prediction) -> bool:
    """Whether the model says that the run fits its card."""
    return bool(np.max(predicted.estimate.card_bytes) <= predicted.context.limit_bytes)


def _warnings(predicted: Prediction) -> list[str]:
    """Rules that the run breaks (it ran all the same), and memory beyond the card."""
    broken = broken_rules(predicted.candidate, predicted.context.facts, UNRESTRICTED)[0]
    warnings = [f"rule {rule.name}: {rule.text}" for rule in broken]
    if not _fits(predicted):
        need = float(np.max(predicted.estimate.card_bytes)) / GIB
        limit = predicted.context.limit_bytes / GIB
        warnings.append(f"memory: {need:.1f} GiB predicted, {limit:.1f} GiB available")
    return warnings


def _statistics(errors: Sequence[float]) -> Statistics | None:
    if not errors:
        return None
    values = np.asarray(errors, dtype=np.float64)
    absolute = np.abs(values)
    return Statistics(
        n=len(values),
        mape=float(absolute.mean()),
        median_ape=float(np.median(absolute)),
        p90_ape=float(np.percentile(absolute, 90)),
        bias=float(values.mean()),
    )
