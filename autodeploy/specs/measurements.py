"""Files of measurements: runs of training, of serving and of post-training, one JSON object a line, in any order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.record import MAX_NAME, Diagnoses, ReadOtherwise, Record, Unread, record_of
from autodeploy.specs.record_words import key, profile_named
from autodeploy.specs.rl import EngineName, GenerationLayout, RlStrategy, RlTraining, TokenCount
from autodeploy.specs.strategy import Strategy
from hardware_profiles.magnitudes import Milliseconds, Requests, Seconds, TokensPerSecond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# A measurement of generation.
Tokens = Annotated[int, Field(ge=1, le=16_777_216)]


class ServedLayout(GenerationLayout):
    """A layout and the load under which it was measured."""

    input_length: Annotated[Tokens, Field(description="mean tokens of a prompt")]
    output_length: Annotated[Tokens, Field(description="mean tokens of an answer")]
    concurrency: Annotated[Requests, Field(description="requests in flight across all replicas")]


class GenerationCluster(Document):
    """Cluster of a measurement. Serving counts dies."""

    profile: Annotated[str, Field(min_length=1, max_length=4096)]
    device: Annotated[str, Field(max_length=64)] | None = None
    num_dies: Annotated[int, Field(ge=1, le=400_000)]


class ServedMeasured(Document):
    """Measurements by clients."""

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
        log, read = Diagnoses(), dict(value)
        if isinstance(layout := read.get("generation"), Mapping):
            read["generation"] = layout_read(layout, log, "/generation")
        _read_profile(read, log)
        return _diagnosed(read, log)

    @model_validator(mode="after")
    def _dies_are_used(self) -> Self:
        dies, tp = self.cluster.num_dies, self.generation.tp
        if dies % tp:
            raise FieldFault(Message("common.does_not_divide", part=f"tp {tp}", whole=f"num_dies {dies}"))
        return self


def _read_profile(read: dict[str, Any], log: Diagnoses) -> None:
    """The name of a measurement's cluster becomes that of a profile."""
    if isinstance(cluster := read.get("cluster"), Mapping) and isinstance(name := cluster.get("profile"), str):
        read["cluster"] = {**cluster, "profile": profile_read(name, log)}


def _diagnosed(read: dict[str, Any], log: Diagnoses) -> dict[str, Any]:
    """A measurement with all that was read otherwise."""
    return {**read, "diagnoses": (*read.get("diagnoses", ()), *log.found)} if log.found else read


def layout_read(layout: Mapping[str, Any], log: Diagnoses, path: str) -> dict[str, Any]:
    """A layout of a measurement in the vocabulary's words; what was read otherwise is added to `log`.

    path : of the layout in its document.
    """
    return {
        **layout,
        "precision": _precision(layout.get("precision", "bf16"), log, path),
        "engine": _engine(layout.get("engine", "vllm"), log, path),
        "ep": _expert_ranks(layout, log, path),
    }


def _engine(given: Any, log: Diagnoses, path: str) -> Any:
    """The engine that a name means, the commonest where none is known."""
    if not isinstance(given, str):
        return given
    word = _ENGINES.get(key(given))
    if word is None:
        log.say(f"{path}/engine", f"{given!r} is not modelled; read as the nearest, vllm")
    return word or "vllm"


def _expert_ranks(layout: Mapping[str, Any], log: Diagnoses, path: str) -> Any:
    """Ranks over which experts lie: all of a replica, where a run says some of them."""
    given, degrees = layout.get("ep", 1), [layout.get(name, 1) for name in ("tp", "dp")]
    if not all(isinstance(each, int) and each >= 1 for each in (given, *degrees)):
        return given
    whole = degrees[0] * degrees[1]
    if given in (1, whole):
        return given
    log.say(f"{path}/ep", Message("specs.read_as_nearest", name=f"ep {given}", word=whole))
    return whole


def _precision(given: Any, log: Diagnoses, path: str) -> Any:
    """The vocabulary's word for a format; what has none stays as it is and is refused."""
    if not isinstance(given, str):
        return given
    name = key(given)
    for start, word in _PRECISIONS.items():
        if name.startswith(start):
            return word
    for start, word in _NEAREST_PRECISIONS.items():
        if name.startswith(start):
            log.say(f"{path}/precision", Message("specs.read_as_nearest", name=repr(given), word=word))
            return word
    return given


def profile_read(given: str, log: Diagnoses) -> str:
    """The profile of a name, the nearest where none is of this system."""
    named, same = profile_named(given)
    if named is not None and not same:
        log.say("/cluster/profile", Message("specs.read_as_nearest", name=repr(given), word=named))
    return named or given


# A measured step of post-training, in the words of a spec and of what its source says.
class RlMeasured(Document):
    """Measurements of a step. Throughput per card, counted by the record's `token_count`."""

    step_time_s: Seconds | None = None
    tokens_per_s_per_npu: TokensPerSecond | None = None
    generation_s: Seconds | None = None
    log_probabilities_s: Seconds | None = None
    reference_s: Seconds | None = None
    update_s: Seconds | None = None
    hand_over_s: Seconds | None = None


class RlRecordTraining(Document):
    """Samples that the step generated and trained on."""

    kind: Literal["rl_post_training"]
    precision: Literal["bf16", "fp16", "fp8"] = "bf16"
    rl: RlTraining


class RlRecord(Document):
    """One step of post-training that somebody measured.

    What its source leaves out is as its framework has it, or the best that fits: see
    autodeploy/costs/post_training/framework_defaults.yaml.
    """

    id: str
    source: str
    framework: str = "unknown"
    date: str | None = None
    confidence: str = "unknown"
    model: ModelSpec
    cluster: ClusterSpec
    training: RlRecordTraining
    strategy: Strategy
    measured: RlMeasured
    token_count: TokenCount = "mean"
    notes: str = ""
    software: ClassVar[None] = None  # its stack is that of its framework
    diagnoses: ReadOtherwise = ()

    @model_validator(mode="before")
    @classmethod
    def _in_our_words(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        log, read = Diagnoses(), dict(value)
        _read_profile(read, log)
        if isinstance(strategy := read.get("strategy"), Mapping) and isinstance(rl := strategy.get("rl"), Mapping):
            if isinstance(layout := rl.get("generation"), Mapping):
                rl = {**rl, "generation": layout_read(layout, log, "/strategy/rl/generation")}
            read["strategy"] = {**strategy, "rl": rl}
        for part, field_names in (("", cls.model_fields), ("measured", RlMeasured.model_fields)):
            fields = read.get(part) if part else read
            if isinstance(fields, Mapping):
                for name in sorted(str(name) for name in fields if name not in field_names):
                    log.say(f"/{part}/{name}".replace("//", "/"), Message("specs.not_read"))
                kept = {name: each for name, each in fields.items() if name in field_names}
                read = {**read, part: kept} if part else kept
        return _diagnosed(read, log)

    @model_validator(mode="after")
    def _says_how_it_generates(self) -> RlRecord:
        if self.strategy.rl is None:
            raise FieldFault(Message("common.is_required", name="strategy.rl"), "strategy: {rl: {generation: ...}}")
        if self.measured.step_time_s is None and self.measured.tokens_per_s_per_npu is None:
            raise FieldFault(
                Message("common.at_least_one_of", names="measured.step_time_s, measured.tokens_per_s_per_npu")
            )
        return self

    @property
    def layout(self) -> RlStrategy:
        """Placement and generation."""
        assert self.strategy.rl is not None
        return self.strategy.rl


GENERATION = "generation"


def read_measurements(path: Path) -> Iterator[Record | GenerationRecord | RlRecord | Unread]:
    """Every line of a JSON Lines file that isn't blank: a measurement of its kind, or why it is none."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            yield _other_kind(number, line) or record_of(number, line)


def generation_records(path: Path) -> list[GenerationRecord]:
    """Measurements of serving in a file; other kinds are left out.

    Raises SpecError with the line number in the path of each bad field.
    """
    return [each for each in _readable(path) if isinstance(each, GenerationRecord)]


def rl_records(path: Path) -> list[RlRecord]:
    """Measured steps of post-training in a file; as `generation_records`."""
    return [each for each in _readable(path) if isinstance(each, RlRecord)]


def _readable(path: Path) -> Iterator[Record | GenerationRecord | RlRecord]:
    for each in read_measurements(path):
        if isinstance(each, Unread):
            raise each.error
        yield each


def _other_kind(number: int, line: str) -> GenerationRecord | RlRecord | Unread | None:
    """The measurement of serving or of post-training that a line is, or why it is none; None for runs of training and
    for what is no JSON.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    training = value.get("training")
    of_rl = isinstance(training, dict) and "rl" in training
    if value.get("kind") != GENERATION and not of_rl:
        return None
    try:
        return RlRecord.model_validate(value) if of_rl else GenerationRecord.model_validate(value)
    except ValidationError as error:
        name = str(value["id"])[:MAX_NAME] if value.get("id") else f"line {number}"
        return Unread(name, SpecError(errors=field_errors(error, prefix=f"/{number}")))
