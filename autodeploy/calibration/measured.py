"""What a record measured, in the terms of a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.specs.record import Record


def measured_step_s(record: Record) -> float | None:
    """Seconds of a step, from tokens per second where they are published; None for a record of memory alone."""
    measured = record.measured
    if measured.tokens_per_s_per_npu is not None:
        tokens = record.training.global_batch_size.value * record.training.seq_length
        return tokens / measured.tokens_per_s_per_npu / int(record.cluster.num_npus or 1)
    return measured.step_time_s


def counts_for_time(record: Record) -> bool:
    """Whether a record's time says something: a few iterations of a small model don't."""
    return measured_step_s(record) is not None and not record.short_run
