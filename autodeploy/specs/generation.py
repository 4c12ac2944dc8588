"""A measurement of generation: the layout that served, its load and what clients measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault
from autodeploy.specs.base import Document
from autodeploy.specs.generation_layout import EngineName, GenerationLayout
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.record_hardware import profile_named
from autodeploy.specs.record_reading import Diagnosis, ReadOtherwise
from autodeploy.specs.record_words import key
from hardware_profiles.magnitudes import Milliseconds, Requests, TokensPerSecond

Tokens = Annotated[int, Field(ge=1, le=16_777_216)]


class ServedLayout(GenerationLayout):
    """A layout and the load under which it was measured."""

    input_length: Annotated[Tokens, Field(description="mean tokens of a prompt")]
    output_length: Annotated[Tokens, Field(description="mean tokens of an answer")]
    concurrency: Annotated[Requests, Field(description="requests in flight across all replicas")]


class GenerationCluster(Document):
    """Where it was measured. Serving counts dies."""

    profile: Annotated[str, Field(min_length=1, max_length=4096)]
    device: Annotated[str, Field(max_length=64)] | None = None
    num_dies: Annotated[int, Field(ge=1, le=400_000)]


class ServedMeasured(Document):
    """What clients measured."""

    tpot_ms: Milliseconds | None = None
    ttft_ms: Milliseconds | None = None
    decode_tokens_per_s_per_die: TokensPerSecond | None = None


# Formats that are not modelled, and the nearest that is: fewer bits than 8 are read as 8.
_NEAREST_PRECISIONS = {"w4a": "w8a8", "int4": "int8", "nvfp4": "fp8", "mxfp4": "fp8", "fp4": "fp8", "awq": "int8"}
_PRECISIONS = {"bfloat16": "bf16", "float16": "bf16", "fp16": "bf16", "w8a8": "w8a8", "fp8": "fp8", "int8": "int8"}


_ENGINES: dict[str, EngineName] = {
    "vllm": "vllm",
    "sglang": "sglang",
    **dict.fromkeys(("trtllm", "trt_llm", "tensorrt_llm", "tensorrtllm"), "trtllm"),
    **dict.fromkeys(("vllm_ascend", "vllmascend", "vllm_npu"), "vllm-ascend"),
}


class GenerationRecord(Document):
    """One serving measurement that somebody published."""

    id: str
    source: str
    kind: Literal["generation"]
    date: str | None = None
    confidence: str = "unknown"
    model: ModelSpec
    cluster: GenerationCluster
    generation: ServedLayout
    measured: ServedMeasured
    notes: str = ""
    diagnoses: ReadOtherwise = ()

    @model_validator(mode="before")
    @classmethod
    def _in_our_words(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        diagnoses: list[Diagnosis] = []
        read = dict(value)
        if isinstance(layout := read.get("generation"), Mapping):
            read["generation"] = layout_read(layout, diagnoses, "/generation")
        if isinstance(cluster := read.get("cluster"), Mapping) and isinstance(name := cluster.get("profile"), str):
            read["cluster"] = {**cluster, "profile": profile_read(name, diagnoses)}
        return {**read, "diagnoses": (*read.get("diagnoses", ()), *diagnoses)} if diagnoses else read

    @model_validator(mode="after")
    def _dies_are_used(self) -> Self:
        dies, tp = self.cluster.num_dies, self.generation.tp
        if dies % tp:
            raise FieldFault(Message("common.does_not_divide", part=f"tp {tp}", whole=f"num_dies {dies}"))
        return self


def layout_read(layout: Mapping[str, Any], diagnoses: list[Diagnosis], path: str) -> dict[str, Any]:
    """A layout of a measurement in the vocabulary's words; what was read otherwise is added to `diagnoses`.

    path : of the layout in its document.
    """
    return {
        **layout,
        "precision": _precision(layout.get("precision", "bf16"), diagnoses, path),
        "engine": _engine(layout.get("engine", "vllm"), diagnoses, path),
        "ep": _expert_ranks(layout, diagnoses, path),
    }


def _engine(given: Any, diagnoses: list[Diagnosis], path: str) -> Any:
    """The engine that a name means, the commonest where none is known."""
    if not isinstance(given, str):
        return given
    word = _ENGINES.get(key(given))
    if word is None:
        text = f"{given!r} is not modelled; read as the nearest, vllm"
        diagnoses.append(Diagnosis(path=f"{path}/engine", text=text))
    return word or "vllm"


def _expert_ranks(layout: Mapping[str, Any], diagnoses: list[Diagnosis], path: str) -> Any:
    """Ranks over which experts lie: all of a replica, where a run says some of them."""
    given, degrees = layout.get("ep", 1), [layout.get(name, 1) for name in ("tp", "dp")]
    if not all(isinstance(each, int) and each >= 1 for each in (given, *degrees)):
        return given
    whole = degrees[0] * degrees[1]
    if given in (1, whole):
        return given
    diagnoses.append(
        Diagnosis(
            path=f"{path}/ep", text=Message("specs.is_not_modelled_read_as_nearest", name=f"ep {given}", word=whole)
        )
    )
    return whole


def _precision(given: Any, diagnoses: list[Diagnosis], path: str) -> Any:
    """The vocabulary's word for a format; what has none stays as it is and is refused."""
    if not isinstance(given, str):
        return given
    name = key(given)
    for start, word in _PRECISIONS.items():
        if name.startswith(start):
            return word
    for start, word in _NEAREST_PRECISIONS.items():
        if name.startswith(start):
            text = Message("specs.is_not_modelled_read_as_nearest", name=repr(given), word=word)
            diagnoses.append(Diagnosis(path=f"{path}/precision", text=text))
            return word
    return given


def profile_read(given: str, diagnoses: list[Diagnosis]) -> str:
    """The profile of a name, the nearest where none is of this system."""
    named, same = profile_named(given)
    if named is not None and not same:
        diagnoses.append(
            Diagnosis(
                path="/cluster/profile",
                text=Message("specs.is_not_modelled_read_as_nearest", name=repr(given), word=named),
            )
        )
    return named or given
