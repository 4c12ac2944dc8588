"""Predicted against measured, record by record and class by class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from autodeploy.calibration.generation import classes_of_generation, validate_generation
from autodeploy.calibration.measured import counts_for_time, is_update_phase, measured_step_s
from autodeploy.calibration.predict import Prediction, factors_of, predict_record, record_memory_spread, record_spread
from autodeploy.calibration.release_defaults import release_of, stack_of
from autodeploy.calibration.rows import Errors, Predicted, RlRow, Row, ServedRow
from autodeploy.calibration.unmeasured import UnmeasuredReport, unmeasured, uses_of
from autodeploy.errors import SpecError
from autodeploy.specs.base import Document
from autodeploy.specs.record import Measured, Record, Unread
from autodeploy.stack.frameworks import UNRESTRICTED
from autodeploy.strategies.rules import broken_rules
from cost_models.hbm import GIB
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from autodeploy.calibration.unmeasured import Use
    from autodeploy.specs.generation import GenerationRecord
    from hardware_profiles.profile import Profile

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


class ValidationReport(Document):
    """Everything that `autodeploy validate` prints."""

    rows: tuple[Row | ServedRow | RlRow, ...]
    summary: Summary
    unmeasured: UnmeasuredReport = UnmeasuredReport()


def validate(
    records: Iterable[Record],
    overlay: Path | None = None,
    unread: Iterable[Unread] = (),
    served: Sequence[GenerationRecord] = (),
    post_trained: Sequence[tuple[RlRow, tuple[str, ...]]] = (),
) -> ValidationReport:
    """Predict every record and compare. One that can't be predicted, or read, is skipped with its reason.

    Parameters
    ----------
    served : measurements of serving; their rows follow those of runs.
    post_trained : rows of measured steps of post-training, which follow those, and the classes of each.
    unread : lines that are no records; their rows come last.
    """
    judged: list[tuple[Record, Row]] = []
    used: list[tuple[Profile, Profile, frozenset[Use]]] = []
    for record in records:
        try:
            predicted = predict_record(record, overlay=overlay, factors_of=factors_of)
        except SpecError as error:
            skipped = Row(id=record.id, model=record.model.name, measured=record.measured, skipped=str(error))
            judged.append((record, skipped))
            continue
        judged.append((record, _row(record, predicted)))
        prior = load_profile(record.cluster.profile, calibrated=False)
        used.append((predicted.profile, prior, uses_of(predicted.context, predicted.candidate)))
    timed = [(r, row.error.time) for r, row in judged if row.error.time is not None and row.counts_for_time]
    training = [far for r, far in timed if not is_update_phase(r)]
    memory = [row.error.memory for _, row in judged if row.error.memory is not None]
    generated = validate_generation(served)
    compared = zip(served, generated, strict=True)
    speeds = [(classes_of_generation(r), row.speed_error) for r, row in compared if row.speed_error is not None]
    steps = [(names, step.error.time) for step, names in post_trained if step.error.time is not None]
    by_class: dict[str, list[float]] = {}
    for names, far in (*((classes_of(record), far) for record, far in timed), *speeds, *steps):
        for name in names:
            by_class.setdefault(name, []).append(far)
    lost = [Row(id=line.name, model="", measured=Measured(), skipped=str(line.error)) for line in unread]
    rows: list[Row | ServedRow | RlRow] = [row for _, row in judged]
    rows += [*generated, *(step for step, _ in post_trained), *lost]
    summary = Summary(
        time=_statistics(training or [far for _, far in timed]),
        memory=_statistics(memory),
        tpot=_statistics([far for _, far in speeds]),
        rl=_statistics([far for _, far in steps]),
        by_class={k: s for k, v in sorted(by_class.items()) if (s := _statistics(v)) is not None},
        skipped=sum(bool(row.skipped) for row in rows),
    )
    return ValidationReport(rows=tuple(rows), summary=summary, unmeasured=unmeasured(used))


def classes_of(record: Record) -> tuple[str, ...]:
    """Classes that a record counts in."""
    profile = load_profile(record.cluster.profile)
    several = int(record.cluster.num_npus or 1) > profile.npus_per_node
    return (
        *(("update phase",) if is_update_phase(record) else ()),
        "moe" if record.model.is_moe else "dense",
        "long sequence" if record.training.seq_length >= LONG_SEQUENCE else "short sequence",
        "several nodes" if several else "one node",
        f"framework {stack_of(record)}",
        f"device {record.cluster.device or profile.default_device}",
        f"profile {record.cluster.profile}",
        f"release {release_of(record).band}",
    )


def _row(record: Record, predicted: Prediction) -> Row:
    step = predicted.step_time_s
    measured_s = measured_step_s(record)
    time = measured_s / step - 1.0 if measured_s is not None else None
    peak = record.measured.peak_memory_gib
    memory = predicted.memory_gib / peak - 1.0 if peak is not None else None
    parts = {name: seconds / step for name, seconds in predicted.estimate.breakdown.items() if seconds > 0.01 * step}
    return Row(
        id=record.id,
        model=record.model.name,
        measured=record.measured,
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
