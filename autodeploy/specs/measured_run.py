"""A measured run of a plan, or of its cluster, whichever file it came from; and a growing one beside its prediction."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault
from autodeploy.specs.base import Document
from hardware_profiles import magnitudes

RunSource = Literal[
    "stated", "step_times", "training_log", "profiler", "gemm_benchmark", "collective_benchmark", "out_of_memory"
]
Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
Verdict = Literal["waiting", "inside", "faster", "slower", "stop", "out_of_memory"]

Seconds = Annotated[magnitudes.Seconds, Field(le=1e6)]
PartSeconds = Annotated[float, Field(ge=0, le=1e6)]
Size = Annotated[int, Field(ge=1, le=10**12)]


class ProfilerTimes(Document):
    """One step as the Ascend profiler splits it, on the device that computes longest; medians over the steps.

    `communication_s` is not overlapped and without the pipeline's receives, which are `bubble_s`; `free_s` is neither
    computing nor communicating. The four add up to the step. `overlapped_s` lies inside `computing_s`.
    """

    computing_s: PartSeconds
    communication_s: PartSeconds
    bubble_s: PartSeconds
    free_s: PartSeconds
    overlapped_s: PartSeconds = 0.0
    steps: Annotated[int, Field(ge=1)] = 1
    devices: Annotated[int, Field(ge=1)] = 1

    @property
    def step_time_s(self) -> float:
        """Seconds of the step."""
        return self.computing_s + self.communication_s + self.bubble_s + self.free_s


Timer = Literal["forward-backward", "all-grads-sync", "optimizer"]
"""Timers of Megatron-LM (training.py, training_log) that divide a step: the pipeline, and what follows it."""


class GemmPoint(Document):
    """One measured matrix multiplication C[m, n] = A[m, k] B[k, n]."""

    m: Size
    n: Size
    k: Size
    seconds: Seconds


class CollectivePoint(Document):
    """One measured collective over `ranks` adjacent ranks.

    `message_bytes` counts as nccl-tests does: the output of an all-gather, the input of a reduce-scatter, the payload
    of an all-reduce, a rank's whole buffer of an all-to-all.
    """

    op: Collective
    ranks: Annotated[int, Field(ge=2, le=200_000)]
    message_bytes: Size
    seconds: Seconds


Gib = Annotated[magnitudes.Gibibytes, Field(le=1e5)]
NoGib = Annotated[float, Field(ge=0, le=1e5)]


class OutOfMemory(Document):
    """A run that ended because a card had no memory left: what was asked for and what the framework's allocator held.

    `rank` or `stage`: where; without either it was some rank. `reserved_gib`: what the allocator held of the card.
    """

    asked_gib: Gib | None = None
    allocated_gib: NoGib | None = None
    reserved_gib: NoGib | None = None
    free_gib: NoGib | None = None
    capacity_gib: Gib | None = None
    rank: Annotated[int, Field(ge=0, lt=1_000_000)] | None = None
    stage: Annotated[int, Field(ge=0, lt=131_072)] | None = None


class MeasuredRun(Document):
    """Measurements of a run. Throughput per card; memory is the framework allocator's maximum.

    `step_time_spread` is the robust relative standard deviation over the steady iterations. `strategy` holds what the
    file says of how it ran; it has to agree with the plan. `original` keeps the values as they stand in the file.
    """

    source: RunSource = "stated"
    step_time_s: Seconds | None = None
    step_time_spread: Annotated[float, Field(ge=0, le=10)] | None = None
    iterations: Annotated[int, Field(ge=1)] | None = None
    warm_up_iterations: Annotated[int, Field(ge=0)] = 0
    tokens_per_s_per_npu: magnitudes.TokensPerSecond | None = None
    tflops_per_npu: magnitudes.Teraflops | None = None
    peak_memory_gib: Gib | None = None
    strategy: Annotated[dict[str, int], Field(max_length=32)] = {}
    profiler: ProfilerTimes | None = None
    gemm: Annotated[tuple[GemmPoint, ...], Field(max_length=10_000)] = ()
    collectives: Annotated[tuple[CollectivePoint, ...], Field(max_length=10_000)] = ()
    original: dict[str, Any] = {}
    note: Annotated[str, Field(max_length=4000)] = ""
    out_of_memory: OutOfMemory | None = None
    timers: Annotated[
        dict[Timer, tuple[PartSeconds, PartSeconds]],
        Field(
            description="seconds of a step by the framework's own timers: least and most of the ranks",
            exclude_if=lambda value: not value,
        ),
    ] = {}

    @model_validator(mode="after")
    def _something_was_measured(self) -> Self:
        figures = (self.step_time_s, self.tokens_per_s_per_npu, self.peak_memory_gib, self.gemm, self.collectives)
        if not any(figures) and self.out_of_memory is None:
            raise FieldFault(
                Message("common.at_least_one_of", names="step_time_s, tokens_per_s_per_npu, peak_memory_gib")
            )
        return self

    @property
    def is_benchmark(self) -> bool:
        """Whether it measured the cluster and not a plan."""
        return bool(self.gemm or self.collectives)


class FollowedPart(Document):
    """One part of the step, s: as the framework times it on its slowest rank, and as predicted; ranks: least, most."""

    name: Literal["pipeline", "after_pipeline"]
    predicted_s: float
    measured_s: float
    ranks_s: tuple[float, float]


class Following(Document):
    """A launch so far. verdict: `stop` above the time that one run in a hundred exceeds."""

    plan_id: str
    num_npus: int
    iterations: int = 0
    step_time_s: float | None = None
    predicted_s: float
    low_s: float
    high_s: float
    stop_above_s: float
    peak_memory_gib: float | None = None
    predicted_gib: float
    parts: tuple[FollowedPart, ...] = ()
    verdict: Annotated[Verdict, Field(description="where the step lies")] = "waiting"
