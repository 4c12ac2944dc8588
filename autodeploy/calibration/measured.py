"""What a record measured, in the terms of a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.calibration.release_defaults import stack_of
from autodeploy.calibration.spreads import FEW_ITERATIONS, STEADY
from autodeploy.workload.flops import forward_flops_per_token
from hardware_profiles.errors import ProfileError
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from autodeploy.specs.record import MemoryCounts, Record

FORWARD_AND_BACKWARD = 3.0
# Frameworks that train from rollouts: their records are of the update phase of a step.
UPDATES = frozenset({"verl", "nemorl", "openrlhf", "areal", "slime", "mindspeedrl"})


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
    """What a record's memory counts, from what it says, else from what its stack logs.

    Megatron-LM logs what is allocated (training.py, report_memory). torchtitan and NeMo log what the allocator has
    reserved (torchtitan/components/metrics.py, max_reserved_gib; nemo/lightning/pytorch/strategies, log_memory_usage:
    peak_memory_usage is torch.cuda.max_memory_reserved).
    """
    if record.measured.memory_counts is not None:
        return record.measured.memory_counts
    if stack_of(record).lower() in {"torchtitan", "nemo"}:
        return "reserved"
    return "allocated"


def tokens_of(record: Record) -> int:
    """Tokens of a step."""
    return record.training.global_batch_size.value * record.training.seq_length


def _step_of_flops_s(record: Record) -> float | None:
    """Seconds of a step from a rate of model FLOPs: every query against the whole sequence, nothing computed again.

    Source of the convention: Megatron-LM num_floating_point_operations before March 2025, and MindSpeed-LLM's tables.
    """
    rate = record.measured.tflops_per_npu
    if rate is None and record.measured.mfu is not None:
        rate = record.measured.mfu * _card_peak_tflops(record)
    if not rate:
        return None
    flops = FORWARD_AND_BACKWARD * forward_flops_per_token(record.model, record.training.seq_length, causal=False)
    return flops * tokens_of(record) / (rate * 1e12 * int(record.cluster.num_npus or 1))


def _card_peak_tflops(record: Record) -> float:
    """Peak of all dies of a card in the run's number format; 0 where the profile has no such device or format."""
    try:
        profile = load_profile(record.cluster.profile, calibrated=False)
        peaks = profile.device(record.cluster.device).peak_flops
    except ProfileError:
        return 0.0
    return peaks.get(record.training.precision, 0.0) * profile.devices_per_npu / 1e12


def counts_for_time(record: Record) -> bool:
    """Whether a record's time says something: a few iterations of a small model don't."""
    return measured_step_s(record) is not None and not record.short_run


def is_update_phase(record: Record) -> bool:
    """Whether a record is of the update phase of reinforcement learning: packed answers of unequal lengths."""
    framework = "".join(c for c in record.framework.lower() if c.isalnum())
    return record.training.kind != "pretrain" or framework.startswith(tuple(UPDATES))


def fits_time(record: Record) -> bool:
    """Whether fits see a record's time: of pre-training, and of a run whose configuration its source is sure of.

    Fully sharded runs have software of their own, which no plan is launched with: their prediction is reported, and
    says nothing of the others' rates.
    """
    if record.strategy.fsdp or record.confidence == "low":
        return False
    return counts_for_time(record) and not is_update_phase(record)
