"""Details of a plan: operators, timeline, comparisons, ablated features, phases of reinforcement learning."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import Field

from autodeploy.specs.base import Answer
from autodeploy.specs.diagnostics import Text, TranslatedDocument
from autodeploy.specs.strategy import Strategy

Devices = Literal["all", "generation", "training"]
LEAST_CHANCE, SURE_CHANCE = 0.1, 0.9
"""Chances to fit at which the limit is the lower and the upper end of the 80 % interval of a plan's memory."""


class MemoryInterval(Answer):
    """An 80 % interval of a peak of memory and what it rests on."""

    low_gib: float
    high_gib: float
    basis: Text = ""
    extrapolated: tuple[Text, ...] = ()

    def at_most(self, log_ratio: float) -> float:
        """The probability that the logarithm of the peak exceeds that of the predicted one by no more than this."""
        if self.low_gib >= self.high_gib:
            return float(log_ratio >= 0.0)
        half = 0.5 * math.log(self.high_gib / self.low_gib)
        return NormalDist().cdf(log_ratio * NormalDist().inv_cdf(SURE_CHANCE) / half)


class RlPhase(Answer):
    """One phase of a step, from its start. exposed_s: what of it makes the step longer; that adds up to the step."""

    name: str
    start_s: float
    end_s: float
    exposed_s: float
    devices: Devices
    bound_by: str = ""


class BatchPoint(Answer):
    """Sequences that decode at once until a moment of generation: on the fullest data-parallel rank, on a mean one."""

    until_s: float
    batch: float
    mean_batch: float


class RlGeneration(Answer):
    """Generation of one step.

    tpot_ms: time per output token at the batch of the start. batch_per_replica: sequences that decode at once there.
    waves: responses a slot. kv_gib: of keys and values on a device. longest_s: of the longest response from its first
    token to its last. tail_share: of decoding, in which the last tenth of the responses runs alone.
    """

    tpot_ms: float
    batch_per_replica: float
    waves: float
    kv_gib: float
    longest_s: float
    tail_share: float
    tail_starts_s: Annotated[
        float, Field(description="of decoding, after which only the last tenth of the responses runs")
    ] = 0.0
    batch_over_time: tuple[BatchPoint, ...] = ()


class RlTokensPerS(Answer):
    """Tokens a second of all cards by the three counting rules: prompts and responses at their mean length, at their
    greatest, responses alone.
    """

    mean: float
    max: float
    response: float


class RlPeakMemory(Answer):
    """The fullest card while it generates, and while it trains [GiB]."""

    generation: float
    update: float


class RlPlan(Answer):
    """A step of reinforcement learning: where its time and memory go."""

    phases: tuple[RlPhase, ...]
    generation: RlGeneration
    hand_over_s: float
    samples_in_flight: Annotated[float, Field(description="maximum number of responses started and not yet trained on")]
    blocked_s: Annotated[
        float,
        Field(description="in which everything waits for the longest response, because the staleness bound is reached"),
    ] = 0.0
    generation_npus: Annotated[int, Field(description="cards that generate; colocated: all")]
    training_npus: Annotated[int, Field(description="cards that train; colocated: all")]
    tokens_per_s: RlTokensPerS
    peak_memory_gib: RlPeakMemory
    notes: tuple[Text, ...] = ()


class OperatorRow(Answer):
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


class ExchangeRow(Answer):
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


class LayerOperators(Answer):
    """The operators and exchanges of one kind of layer. layers: of the model; beside_s: vector work that runs beside
    matrix work in one layer, which its operators' times don't have off.
    """

    name: str
    layers: float
    operators: tuple[OperatorRow, ...]
    exchanges: tuple[ExchangeRow, ...]
    beside_s: float


class OperatorReport(Answer):
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


class Slot(Answer):
    """Work of one device without a pause: a forward, a backward, or a fused pair of both.

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


class StageTime(Answer):
    """Time of one device between the step's first forward and its last backward: slots by lane, and gaps."""

    compute_s: Annotated[float, Field(ge=0)]
    communication_s: Annotated[float, Field(ge=0)]
    host_s: Annotated[float, Field(ge=0)]
    idle_s: Annotated[float, Field(ge=0)]


class PipelineTimeline(Answer):
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


Mode = Literal["baseline", "alone", "cumulative", "leave_one_out"]


class AblationRow(Answer):
    """One measurement of one feature.

    `predicted` is in `unit`: what the feature changes the throughput by, against the baseline (alone), against the row
    before (cumulative), or what the whole set loses without it (leave_one_out); null where one of both can't run at
    all, which `reason` says.
    """

    case: str
    feature: str
    mode: Mode
    step_time_s: float | None = None
    peak_memory_gib: float | None = None
    fits: bool | None = None
    predicted: float | None
    unit: str
    reason: Text | None = None
    moved: dict[str, float] = {}  # part of the breakdown -> seconds gained (+ slower), the largest first


class AblationReport(TranslatedDocument):
    """All rows, in the order they were asked for."""

    rows: tuple[AblationRow, ...]
    engine_version: str


Group = Literal["search", "strategy", "time", "breakdown", "stages"]
Cell = str | int | float | bool | None


class ComparedPlan(Answer):
    """One column: its plan, the search that found it and its model."""

    plan_id: str
    search_id: str
    model: str
    layout: str


class Difference(Answer):
    """One row: a field by its path, its value in each plan, and which column is best where that can be said."""

    group: Group
    field: str
    unit: str = ""
    values: tuple[Cell, ...]
    best: int | None = None


class CheckpointChange(Answer):
    """Relation of a plan's checkpoint to another plan that continues from it.

    `how`: loaded as it is; resharded as it is loaded, with the optimizer's states or the weights alone; its weights
    converted by the commands; impossible; or not known. `moved_gb` is read and written, `seconds` at the rate of the
    storage; the restart itself is not among them.
    """

    before: str
    after: str
    how: Literal["loaded", "resharded", "weights_resharded", "weights_converted", "impossible", "unknown"]
    reason: Text
    format: str = ""
    moved_gb: float | None = None
    seconds: float | None = None
    commands: tuple[str, ...] = ()


class Comparison(TranslatedDocument):
    """The plans and the fields in which they differ, in reading order; from the first to each other, what becomes of
    its checkpoints.
    """

    plans: tuple[ComparedPlan, ...]
    differences: tuple[Difference, ...]
    checkpoints: tuple[CheckpointChange, ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """A row a field, a column a plan."""
        names = [f"{number} {plan.plan_id}" for number, plan in enumerate(self.plans, start=1)]
        return [
            {"field": row.field, "unit": row.unit, **dict(zip(names, row.values, strict=True))}
            for row in self.differences
        ]


# What a job becomes with fewer nodes.
class SparePlan(Answer):
    """A plan on the cards that are left. `throughput_pct`: of the tokens a second of the plan on all cards."""

    plan_id: str
    strategy: Strategy
    num_npus: int
    global_batch_size: int
    step_time_s: float
    tokens_per_s: float
    throughput_pct: float
    peak_memory_gib: float
    p_fits: float | None = None
    checkpoint: CheckpointChange


class SpareRow(Answer):
    """`nodes` are lost, and `num_npus` cards are left.

    best: the fastest plan there. same_layout: the fastest with today's degrees and schedule on fewer replicas, with the
    batch lowered to what these divide; absent where none fits. reason: why there is no plan.
    """

    nodes: int
    num_npus: int
    best: SparePlan | None = None
    same_layout: SparePlan | None = None
    reason: Text | None = None
