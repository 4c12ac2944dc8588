"""Post-training by reinforcement learning: what a step generates and trains on, and where each of both runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, joined
from autodeploy.messages.field_faults import FieldFault, fault_of
from autodeploy.specs.base import Document
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset
from cost_models.response_lengths import Lengths, equal_lengths, histogram_lengths, lognormal_lengths
from hardware_profiles.magnitudes import Share

# The layout of the replicas that generate.
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
            raise FieldFault(Message("specs.ep_not_allowed", ep=self.ep, whole=whole))
        return self


Algorithm = Literal["grpo", "dapo", "ppo"]
RolloutPrecision = Literal["bf16", "int8", "fp8"]
TokenCount = Literal["mean", "max", "response"]
Placement = Literal["colocated", "separate", "async"]
Offload = Literal["optimizer", "gradients", "parameters"]

Tokens = Annotated[int, Field(ge=1, le=16_777_216)]
MeanTokens = Annotated[float, Field(ge=1.0, le=16_777_216.0)]

ASSUMED_CV = 0.8  # of response lengths where only a mean is known


def _not_below_mean(greatest: int | None, info: ValidationInfo) -> int | None:
    """Refuses a greatest length that contradicts the mean."""
    mean = info.data.get("mean")
    if mean is not None and greatest is not None and mean > greatest:
        raise FieldFault(
            Message("common.exceeds", one=f"mean {mean:g}", other=f"max {greatest}"),
            Message("field_fault.at_least", bound=f"{mean:g}"),
        )
    return greatest


Greatest = Annotated[Tokens | None, AfterValidator(_not_below_mean)]


class PromptLength(Document):
    """Tokens of a prompt: their mean, their greatest number, or both; one stands in for the other."""

    mean: MeanTokens | None = None
    max: Greatest = None

    @model_validator(mode="after")
    def _something_is_known(self) -> Self:
        if self.mean is None and self.max is None:
            raise FieldFault(Message("common.at_least_one_of", names="mean, max"))
        return self

    @property
    def mean_tokens(self) -> float:
        """The mean; where it is not known, the greatest number."""
        return float(self.max or 1) if self.mean is None else self.mean

    @property
    def max_tokens(self) -> int:
        """The greatest number; where it is not known, the mean, rounded up."""
        return -int(-(self.mean or 1.0) // 1) if self.max is None else self.max


LENGTH: Final = re.compile(r"^[1-9][0-9]{0,6}$")
"""A length in tokens, as the key of a mapping."""


def _as_histogram(value: Any) -> Any:
    """Lengths written as text become numbers; what is none is told where it stands."""
    if not isinstance(value, Mapping):
        return value
    histogram: dict[int, Any] = {}
    for length, share in value.items():
        text = str(length)
        if isinstance(length, bool) or not LENGTH.fullmatch(text):
            raise FieldFault(
                Message("field_fault.is_no_whole_number", value=repr(text[:40])),
                Message("field_fault.at_least", bound=1),
            )
        if int(text) in histogram:
            raise FieldFault(Message("common.given_twice", name=int(text)))
        histogram[int(text)] = share
    return histogram


class ResponseLength(Document):
    """Tokens of a response: a lognormal by mean after the cut, cv before it, and cut; or a histogram."""

    mean: Annotated[MeanTokens | None, Field(description="after truncation; absent: all have the maximum length")] = (
        None
    )
    max: Annotated[Greatest, Field(description="where the engine stops")] = None
    cv: Annotated[
        float | None, Field(ge=0.0, le=10.0, description=f"deviation over mean before the cut; absent: {ASSUMED_CV}")
    ] = None
    histogram: Annotated[
        dict[int, Annotated[float, Field(ge=0.0, le=1e15)]] | None,
        BeforeValidator(_as_histogram),
        Field(
            description="length in tokens: share of responses; instead of mean, max and cv",
            json_schema_extra={"propertyNames": {"pattern": LENGTH.pattern}},
        ),
    ] = None

    @field_validator("cv")
    @classmethod
    def _spread_around_a_mean(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and "mean" in info.data and info.data["mean"] is None:
            raise FieldFault.needs("mean")
        return value

    @field_validator("histogram")
    @classmethod
    def _histogram_alone(cls, value: dict[int, float] | None, info: ValidationInfo) -> dict[int, float] | None:
        if value is None:
            return None
        beside = [name for name in ("mean", "max", "cv") if info.data.get(name) is not None]
        if beside:
            raise FieldFault(
                Message("common.excludes_it", what=beside[0]),
                Message("specs.leave_out", names=", ".join(beside)),
            )
        if not any(share > 0.0 for share in value.values()):
            raise ValueError(Message("specs.no_positive_share"))
        return value

    @model_validator(mode="after")
    def _something_is_known(self) -> Self:
        if self.histogram is None and self.max is None:
            raise FieldFault(Message("common.at_least_one_of", names="max, histogram"))
        return self

    @property
    def mean_is_assumed(self) -> bool:
        """Whether all responses count as the longest, for want of a mean."""
        return self.histogram is None and self.mean is None

    @property
    def max_tokens(self) -> int:
        """The greatest length."""
        if self.histogram is not None:
            return max(length for length, share in self.histogram.items() if share > 0.0)
        return self.max or 1

    def distribution(self) -> Lengths:
        """The lengths with their shares."""
        if self.histogram is not None:
            return histogram_lengths(self.histogram)
        longest = float(self.max or 1)
        if self.mean is None:
            return equal_lengths(longest)
        return lognormal_lengths(self.mean, ASSUMED_CV if self.cv is None else self.cv, longest)


def _model_of(value: Mapping[Any, Any]) -> ModelSpec:
    """An inline model, or {preset: name, ...changes}."""
    changes = {key: each for key, each in value.items() if key != "preset"}
    base = load_preset(str(value["preset"])).model_dump(exclude_unset=True) if "preset" in value else {}
    try:
        return ModelSpec.model_validate(base | changes)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FieldFault(
            Message("common.place", place=where, message=fault_of(first)[0]), Message("specs.model_as_under_model")
        ) from None


def _word_or_model(word: str) -> BeforeValidator:
    """Reads a fixed word, or a model by its preset's name or inline."""

    def read(value: Any) -> Any:
        try:
            if isinstance(value, Mapping):
                return _model_of(value)
            return load_preset(value) if isinstance(value, str) and value != word else value
        except SpecError as error:
            first = error.errors[0]
            hint = Message("specs.word_or_model", word=word)
            raise FieldFault(first.message, joined([hint, first.hint], "semicolon") if first.hint else hint) from None

    return BeforeValidator(read)


class RlTraining(Document):
    """Samples that one step generates, scores and trains on."""

    algorithm: Annotated[Algorithm, Field(description="models that are loaded and phases that run")] = "grpo"
    prompts_per_step: Annotated[int, Field(ge=1, le=10_000_000, examples=[512])]
    responses_per_prompt: Annotated[int, Field(ge=1, le=65_536, examples=[16])]
    prompt_length: PromptLength
    response_length: ResponseLength
    prompt_correlation: Annotated[
        float, Field(ge=0.0, le=1.0, description="between the lengths of responses to one prompt; assumed")
    ] = 0.5
    updates_per_step: Annotated[int, Field(ge=1, le=65_536, description="mini batches")] = 1
    reference_model: Annotated[bool, Field(description="for the KL term; false skips its phase")] = True
    critic: Annotated[
        Literal["same"] | ModelSpec | None,
        _word_or_model("same"),
        Field(description="PPO only: a critic of the same shape, or another; absent: the same"),
    ] = None
    reward: Annotated[Literal["rule"] | ModelSpec, _word_or_model("rule")] = "rule"
    generation_precision: RolloutPrecision = "bf16"
    token_count: Annotated[
        TokenCount, Field(description="tokens/s count prompts and responses at their mean, at their max, or responses")
    ] = "mean"

    @field_validator("updates_per_step")
    @classmethod
    def _mini_batches_are_whole(cls, value: int, info: ValidationInfo) -> int:
        prompts = info.data.get("prompts_per_step")
        if prompts is not None and prompts % value:
            raise FieldFault(
                Message("common.does_not_divide", part=value, whole=f"prompts_per_step {prompts}"),
                Message("common.divisor_of", whole="prompts_per_step"),
            )
        return value

    @field_validator("critic")
    @classmethod
    def _critic_of_ppo(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("algorithm") not in {"ppo", None}:
            raise FieldFault.needs("algorithm: ppo")
        return value

    @property
    def samples(self) -> int:
        """Responses of a step."""
        return self.prompts_per_step * self.responses_per_prompt

    @property
    def longest_tokens(self) -> int:
        """The longest prompt and response together."""
        return self.prompt_length.max_tokens + self.response_length.max_tokens


class RlStrategy(Document):
    """Placement of generation and training, and the layout of generation; `Strategy` has the update's own degrees."""

    placement: Placement = "colocated"
    generation_npus: Annotated[
        int | None,
        Field(
            ge=1, le=1_000_000, description="cards that generate, the others train; null: not published, the best split"
        ),
    ] = None
    generation: GenerationLayout
    staleness: Annotated[
        int, Field(ge=0, le=64, description="async only: updates that generation may run ahead; 0 is synchronous")
    ] = 0
    partial_rollout: Annotated[bool, Field(description="unfinished responses continue in the next step")] = False
    offload: Annotated[
        tuple[Offload, ...], Field(description="colocated only: states offloaded during generation")
    ] = ()
    pack_tokens: Annotated[
        Tokens | None, Field(description="per micro batch of packed responses; null: micro_batch_size responses")
    ] = None

    @field_validator("generation_npus")
    @classmethod
    def _cards_of_their_own(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("placement") == "colocated":
            raise FieldFault(
                Message("common.excludes_it", what="placement: colocated"),
                Message("common.leave_it_out_or", instead="rl.placement: separate, async"),
            )
        return value

    @field_validator("staleness")
    @classmethod
    def _stale_only_beside_training(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("placement") not in {"async", None}:
            raise FieldFault.needs("placement: async")
        return value

    @field_validator("offload")
    @classmethod
    def _offload_where_memory_is_shared(cls, value: tuple[Offload, ...], info: ValidationInfo) -> tuple[Offload, ...]:
        twice = [name for name in value if value.count(name) > 1]
        if twice:
            raise ValueError(Message("common.given_twice", name=twice[0]))
        if value and info.data.get("placement") not in {"colocated", None}:
            raise FieldFault.needs("placement: colocated")
        return value
