"""Measured steps of post-training against their prediction, record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.calibration.rows import RlErrors, RlPredicted, RlRow
from autodeploy.errors import SpecError
from autodeploy.post_training.record_step import RlPrediction, predict_rl
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.rl_record import RlRecord

LEAST_PART = 0.01  # of the step, that is told


def validate_rl(records: Sequence[RlRecord]) -> list[RlRow]:
    """Every step beside its prediction, in order; one that can't be predicted is skipped with its reason."""
    rows = []
    for record in records:
        try:
            rows.append(_row(predict_rl(record)))
        except SpecError as error:
            rows.append(RlRow(id=record.id, model=record.model.name, measured=record.measured, skipped=str(error)))
    return rows


def speed_error(prediction: RlPrediction) -> float:
    """predicted / measured - 1 of the speed: of tokens per second where they are published, as there they are exact."""
    measured = prediction.record.measured
    if measured.tokens_per_s_per_npu is not None:
        return prediction.tokens_per_s_per_npu / measured.tokens_per_s_per_npu - 1.0
    assert measured.step_time_s is not None
    return measured.step_time_s / prediction.step.step_time_s - 1.0


def _row(prediction: RlPrediction) -> RlRow:
    record, step = prediction.record, prediction.step
    seconds = {phase.name: phase.end_s - phase.start_s for phase in step.phases}
    return RlRow(
        id=record.id,
        model=record.model.name,
        measured=record.measured,
        predicted=RlPredicted(
            step_time_s=step.step_time_s,
            step_time_interval_s=step.interval_s,
            tokens_per_s_per_npu=prediction.tokens_per_s_per_npu,
            generation_s=seconds["generation"],
            log_probabilities_s=seconds["log_probabilities"],
            reference_s=seconds.get("reference"),
            update_s=seconds["update"],
            hand_over_s=step.hand_over_s,
            tpot_ms=step.generation["tpot_ms"],
            tail_share=step.generation["tail_share"],
            peak_memory_gib=max(step.peak_memory_bytes.values()) / GIB,
            generation_npus=step.generation_npus,
            mode=step.mode,
        ),
        error=RlErrors(time=speed_error(prediction)),
        parts={
            name: part / step.step_time_s
            for name, part in sorted(step.breakdown.items(), key=lambda item: (-item[1], item[0]))
            if part > LEAST_PART * step.step_time_s
        },
        diagnoses=tuple(f"{each.path.removeprefix('/')}: {each.text}" for each in prediction.diagnoses),
        warnings=tuple(note.text for note in step.notes),
    )


def classes_of_rl(record: RlRecord) -> tuple[str, ...]:
    """Classes that a measured step counts in."""
    experts = "experts" if record.model.is_moe else "dense"
    profile = f"post-training {experts}, profile {record.cluster.profile}"
    return (profile, f"post-training {record.layout.placement}", f"framework {record.framework}")
