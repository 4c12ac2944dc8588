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
