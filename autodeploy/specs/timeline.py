"""The pipeline of one step slot by slot, as the schedule's simulation has it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autodeploy.specs.base import Document

SlotKind = Literal["forward", "backward", "pair"]


class Slot(Document):
    """What one device does without a pause: a forward, a backward, or a fused pair of both.

    Micro batches and chunks (virtual stages) count from 0; seconds count from the step's first forward. `compute_s`,
    `communication_s` (what no work hides) and `host_s` (waiting for the host or its link) add up to its length.
    """

    stage: Annotated[int, Field(ge=0)]
    kind: SlotKind
    start_s: Annotated[float, Field(ge=0)]
    end_s: Annotated[float, Field(ge=0)]
    forward_micro_batch: int | None = None
    forward_chunk: int | None = None
    backward_micro_batch: int | None = None
    backward_chunk: int | None = None
    compute_s: Annotated[float, Field(ge=0)] = 0.0
    communication_s: Annotated[float, Field(ge=0)] = 0.0
    host_s: Annotated[float, Field(ge=0)] = 0.0


class StageTime(Document):
    """What one device does between the step's first forward and its last backward: slots by lane, and gaps."""

    compute_s: Annotated[float, Field(ge=0)]
    communication_s: Annotated[float, Field(ge=0)]
    host_s: Annotated[float, Field(ge=0)]
    idle_s: Annotated[float, Field(ge=0)]


class PipelineTimeline(Document):
    """All slots of a step, by stage and time; what is left out of a very long one is counted, and part of `stages`.

    After `makespan_s` the pipeline is empty; the rest of the step is gradient reduction and the optimizer.
    """

    pp: Annotated[int, Field(ge=1)]
    vpp: Annotated[int, Field(ge=1)]
    micro_batches: Annotated[int, Field(ge=1)]
    makespan_s: Annotated[float, Field(ge=0)]
    step_time_s: Annotated[float, Field(ge=0)]
    slots: tuple[Slot, ...]
    slots_left_out: Annotated[int, Field(ge=0)] = 0
    stages: tuple[StageTime, ...] = ()
