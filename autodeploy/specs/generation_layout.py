"""The layout of the replicas that generate: how they are cut, and with which engine and numbers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault
from autodeploy.specs.base import Document
from hardware_profiles.magnitudes import Share

EngineName = Literal["vllm", "sglang", "trtllm", "vllm-ascend"]
EngineMode = Literal["eager", "graph"]
GenerationPrecision = Literal["bf16", "fp8", "int8", "w8a8"]
Degree = Annotated[int, Field(ge=1, le=4096)]
Requests = Annotated[int, Field(ge=1, le=1_048_576)]


class GenerationLayout(Document):
    """The replicas that generate and their engine. Without experts each data-parallel rank is a replica of its own."""

    tp: Annotated[Degree, Field(description="ranks over which every layer is sharded")] = 1
    dp: Annotated[Degree, Field(description="data-parallel ranks, each with its own sequences")] = 1
    ep: Annotated[
        Degree, Field(description="ranks over which experts are distributed: tp x dp, or 1: experts are sharded by tp")
    ] = 1
    precision: Annotated[
        GenerationPrecision, Field(description="of linear layers; keys and values stay in 16 bits")
    ] = "bf16"
    engine: EngineName = "vllm"
    mode: Annotated[
        EngineMode | None, Field(description="eager: the host launches every operator; absent: not published")
    ] = None
    memory_fraction: Annotated[
        Share | None, Field(description="of a device's memory; absent: the engine's default")
    ] = None
    max_num_seqs: Annotated[Requests | None, Field(description="sequences decoded at once on a data-parallel rank")] = (
        None
    )

    @model_validator(mode="after")
    def _experts_lie_over_all_or_none(self) -> Self:
        whole = self.tp * self.dp
        if self.ep not in (1, whole):
            raise FieldFault(Message("specs.ep_is_neither_1_nor_tp_x_dp", ep=self.ep, whole=whole))
        return self
