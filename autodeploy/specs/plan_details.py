"""Where the time of a step goes, down to the operators of each kind of layer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autodeploy.specs.base import Document


class OperatorRow(Document):
    """One operator of a layer, for one micro batch on one rank under even load.

    uneven_s: what the busiest rank takes beyond that, by uneven experts or packed documents. flops, moved_bytes: of
    both passes; of matrix operators the bytes are operands and results. roofline_s: the least that peak FLOP/s and
    memory bandwidth allow; bound: which of the two it is. roofline_pct: that of the predicted time. step_s: of the
    busiest rank, all layers of its stage and micro batches of a step; beyond_s: of these what the roofline leaves.
    """

    name: str
    kind: Literal["gemm", "grouped_gemm", "attention", "vector", "movement"]
    forward_s: float
    backward_s: float
    uneven_s: float
    flops: float
    moved_bytes: float
    roofline_s: float
    bound: Literal["compute", "memory"] = "memory"
    roofline_pct: float
    step_s: float
    beyond_s: float = 0.0


class ExchangeRow(Document):
    """One exchange of a layer: its group, message and times for one micro batch.

    message_bytes: output of a gather, input of a scatter or reduce, all copies of the tokens of a dispatch or combine.
    once_s: of a single one, uneven load included. forward_count, backward_count: in each pass. exposed_s: of both
    passes, what nothing hides; hidden_pct: the rest, of all of them. bytes_per_s: message over `once_s`. step_s:
    exposed seconds of all layers of a stage and micro batches of a step, before a schedule pairs any.
    """

    name: str
    group: str
    ranks: int
    tier: Annotated[str, Field(description="the outermost tier that the group spans")]
    message_bytes: float
    once_s: float
    forward_count: float
    backward_count: float
    exposed_s: float
    hidden_pct: float
    bytes_per_s: float
    step_s: float


class LayerOperators(Document):
    """The operators and exchanges of one kind of layer. layers: of the model; beside_s: vector work that runs beside
    matrix work in one layer, which its operators' times don't have off.
    """

    name: str
    layers: float
    operators: tuple[OperatorRow, ...]
    exchanges: tuple[ExchangeRow, ...]
    beside_s: float


class OperatorReport(Document):
    """All kinds of layers of a plan, without what is recomputed. layers_per_stage: mean; a step runs each of them
    `micro_batches` times.
    """

    plan_id: str
    step_time_s: float
    micro_batches: int
    layers_per_stage: float
    peak_flops: float
    hbm_bytes_per_s: float
    layers: tuple[LayerOperators, ...]


# The pipeline of one step slot by slot, as the schedule's simulation has it.
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
