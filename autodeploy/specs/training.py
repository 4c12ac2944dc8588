"""The training: sequence, batch, precision and how evenly the router spreads tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticKnownError

from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault, fault_of
from autodeploy.specs.base import Document, omitted
from autodeploy.specs.recipe import NOTHING_TOLD_OF_TRAINING, TrainingRecipe
from autodeploy.specs.rl import LENGTH, RlTraining
from autodeploy.specs.strategy import OptimizerName
from autodeploy.specs.tuning import SEQUENCES_OF_A_PAIR, TUNINGS, DpoSpec, LoraSpec, Tuning
from cost_models.optimizers import OPTIMIZERS
from hardware_profiles.magnitudes import Factor as CapacityFactor
from hardware_profiles.magnitudes import TokenCount

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec


# How the router is kept from sending all tokens to a few experts.
RouterKind = Literal["auxiliary_loss", "bias", "grouped", "forced"]

# What a plain number is stated for. The published runs that the default is of have 32 expert parallel ranks.
STATED_AT_EP = 32

Factor = Annotated[float, Field(ge=1.0, le=64.0)]


class StatedImbalance(Document):
    """A factor, max / mean tokens over the ranks of an expert group, and the size of the group that it is of."""

    value: Factor
    at_ep: Annotated[int, Field(ge=2, le=8192)]


# Assumed where nobody states a factor: (sustained, at its peak). A router that learns is kept even; one of trained
# weights sees prompts of one domain, and nothing corrects it. Trained, measured: tokens of each of 16 ranks over 1,000
# iterations, Qwen3-30B-A3B with its published weights on GSM8K, layers 0, 20 and 47: max / mean 1.57, 1.84 and 1.61,
# their mean and their largest. Source: cann-recipes-train @93819a7, section 2.3.2 of docs/llm_rl/
# qwen3_235B_32k_longseq_rl_train_optimization.md.
LEARNING_IMBALANCE = 1.3, 2.0
TRAINED_IMBALANCE = StatedImbalance(value=1.67, at_ep=16), StatedImbalance(value=1.84, at_ep=16)
ROUTER_FIELDS = ("routing_imbalance", "routing_imbalance_peak", "router", "expert_load_file", "expert_load_sha256")

_FACTOR: TypeAdapter[float] = TypeAdapter(Factor)


def as_imbalance(value: Any) -> Any:
    """A number, or a factor with its group, which can't be above the ranks of that."""
    if isinstance(value, Mapping):
        value = StatedImbalance.model_validate(value)
    if not isinstance(value, StatedImbalance):
        try:
            return _FACTOR.validate_python(value)
        except ValidationError as error:
            raise FieldFault(fault_of(error.errors()[0])[0], Message("specs.imbalance_format")) from None
    if value.value > value.at_ep:
        raise FieldFault(Message("common.exceeds", one=f"{value.value:g}", other=f"at_ep {value.at_ep}"))
    return value


def stated(given: float | StatedImbalance) -> StatedImbalance:
    """A factor with its group."""
    return given if isinstance(given, StatedImbalance) else StatedImbalance(value=given, at_ep=STATED_AT_EP)


def router_of(model: ModelSpec, training: TrainingSpec) -> RouterKind:
    """The kind of the router: as the run says it, else as the model does.

    Every token takes equally many experts of each group where all groups are reached and no word says that groups only
    limit the choice. Source: mixture of grouped experts, Pangu Pro MoE, arXiv:2505.21411, section 2.
    """
    if training.router is not None:
        return training.router
    groups, topk = model.n_group or 1, model.num_experts_per_tok or 1
    if groups > 1 and model.topk_group == groups and topk % groups == 0 and model.recipe_or_default.topk_method is None:
        return "grouped"
    return "bias" if model.recipe_or_default.has_expert_bias else "auxiliary_loss"


def even_groups(model: ModelSpec, router: RouterKind) -> int:
    """Groups of experts that receive equally many tokens whatever the router prefers: 1, or a grouped router's."""
    if router != "grouped":
        return 1
    return model.n_group or model.n_routed_experts or 1


Precision = Literal["bf16", "fp16", "fp32", "fp8"]


Sequences = Annotated[int, Field(ge=1, le=10_000_000)]
_BATCH: TypeAdapter[int] = TypeAdapter(Sequences)


class BatchSize(Document):
    """Sequences in a global batch, and by how many percent the planner may move it."""

    value: Sequences
    tolerance_pct: Annotated[float, Field(ge=0.0, le=50.0)] = 0.0


def _as_batch(value: Any) -> Any:
    """A plain number is a batch without tolerance; one out of range is reported where the user wrote it."""
    if isinstance(value, Mapping | BatchSize):
        return value
    try:
        return {"value": _BATCH.validate_python(value, strict=not isinstance(value, float))}
    except ValidationError as error:
        raise FieldFault(fault_of(error.errors()[0])[0], Message("specs.batch_format")) from None


TrainingKind = Literal["pretrain", "sft", "dpo", "rl_post_training"]
# What a spec of reinforcement learning does not say: it follows from what a step generates.
FROM_RL = ("seq_length", "global_batch_size")


def _not_given() -> Any:
    return None


class TrainingSpec(Document):
    """The training run whose step is planned."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"kind": {"const": "rl_post_training"}}, "required": ["kind"]},
            "then": {
                "required": ["rl"],
                "properties": {"rl": {"type": "object"}, **dict.fromkeys(FROM_RL, False)},
            },
            "else": {"required": list(FROM_RL), "properties": {"rl": {"type": "null"}}},
        }
    )

    kind: TrainingKind = "pretrain"
    rl: Annotated[
        RlTraining | None,
        omitted("rl_post_training only: prompts, responses and updates of a step", validate_default=True),
    ] = None
    lora: Annotated[
        LoraSpec | None, omitted("SFT and DPO only: adapters are trained, the model is frozen; absent: all is trained")
    ] = None
    dpo: Annotated[
        DpoSpec | None,
        omitted("DPO only: the loss over pairs of a chosen and a rejected sequence; absent: its defaults"),
    ] = None
    optimizer: Annotated[
        OptimizerName,
        omitted("muon: momentum of matrices is orthogonalised; embedding, head and norms keep Adam", at="adam"),
    ] = "adam"
    seq_length: Annotated[
        int,
        Field(
            ge=1,
            le=16_777_216,
            examples=[4096],
            validate_default=True,
            description="required; absent for rl_post_training: the longest prompt and response",
        ),
    ] = Field(default_factory=_not_given)
    global_batch_size: Annotated[
        BatchSize,
        BeforeValidator(_as_batch),
        Field(validate_default=True, description="required; absent for rl_post_training: the responses of an update"),
    ] = Field(default_factory=_not_given)
    tokens: Annotated[TokenCount, Field(examples=[14.8e12])] | None = None
    precision: Precision = "bf16"
    routing_imbalance: Annotated[
        StatedImbalance | Factor,
        BeforeValidator(as_imbalance),
        Field(
            validate_default=True,
            description="max / mean tokens over expert parallel ranks, sustained; a number: at EP 32; absent: 1.3, of "
            "trained weights (sft, dpo, rl_post_training) 1.67 at EP 16",
        ),
    ] = Field(default_factory=_not_given)
    routing_imbalance_peak: Annotated[
        StatedImbalance | Factor,
        BeforeValidator(as_imbalance),
        Field(
            validate_default=True,
            description="the same at its peak; determines memory; absent: 2.0, of trained weights 1.84 at EP 16",
        ),
    ] = Field(default_factory=_not_given)
    expert_capacity_factor: Annotated[
        CapacityFactor | None,
        omitted("of the mean expert's tokens, with capacity_drop: tokens above it are dropped; absent: 1.5"),
    ] = None
    router: Annotated[
        RouterKind | None,
        omitted("how experts are balanced; absent: as the model defines; forced: tokens are distributed evenly"),
    ] = None
    expert_load_file: Annotated[
        str | None,
        Field(description="expert loads over time: .csv, .json or a MindSpeed log; replaces the two factors"),
    ] = None
    expert_load_sha256: Annotated[
        str | None, Field(pattern="^[0-9a-f]{64}$", description="of that file; set when the spec is read")
    ] = None
    sequence_length_histogram: Annotated[
        dict[str, Annotated[float, Field(ge=0.0, le=1e15)]] | None,
        Field(
            description="document length in tokens: share of documents; absent: sequences are full",
            json_schema_extra={"propertyNames": {"pattern": LENGTH.pattern}},
        ),
    ] = None
    pads_samples: Annotated[
        bool, omitted("sft and dpo only; false: samples keep their lengths, seq_length is the longest", at=True)
    ] = True
    norm_precision: Literal["bf16", "fp32"] = "bf16"
    recipe: Annotated[TrainingRecipe | None, omitted("optimizer and learning rate for the launch")] = None

    @field_validator("rl")
    @classmethod
    def _with_its_kind(cls, value: RlTraining | None, info: ValidationInfo) -> RlTraining | None:
        kind = info.data.get("kind")
        if value is None and kind == "rl_post_training":
            raise FieldFault(Message("common.is_required", name="rl"), "rl: {prompts_per_step: 512, ...}")
        if value is not None and kind in {"pretrain", "sft", "dpo"}:
            raise FieldFault.needs("kind: rl_post_training")
        return value

    @field_validator("lora", "dpo")
    @classmethod
    def _of_tuning(cls, value: LoraSpec | DpoSpec | None, info: ValidationInfo) -> LoraSpec | DpoSpec | None:
        kind, kinds = info.data.get("kind"), ("sft", "dpo") if info.field_name == "lora" else ("dpo",)
        if value is not None and kind not in {*kinds, None}:
            instead = f"kind: {', '.join(kinds)}"
            message = Message("common.it_needs_field", name=instead)
            if info.field_name == "lora":
                message = Message("specs.not_modelled_with", one="lora", other=f"kind: {kind}")
            raise FieldFault(message, Message("common.leave_it_out_or", instead=instead))
        return value

    @field_validator(*FROM_RL, mode="before")
    @classmethod
    def _given_or_from_rl(cls, value: Any, info: ValidationInfo) -> Any:
        name, rl = str(info.field_name), info.data.get("rl")
        if info.data.get("kind") != "rl_post_training":
            if value is None and "rl" not in info.data:  # what is wrong with that is told already
                return 1
            if value is None:
                raise PydanticKnownError("missing")
            return value
        if value is not None:
            raise FieldFault(
                Message("common.excludes_it", what="kind: rl_post_training"), Message("common.leave_it_out")
            )
        if rl is None:  # that it is wrong or absent is told of itself
            return 1
        return rl.longest_tokens if name == "seq_length" else rl.samples // rl.updates_per_step

    @field_validator("routing_imbalance", "routing_imbalance_peak", mode="before")
    @classmethod
    def _given_or_of_its_kind(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            return value
        usual = LEARNING_IMBALANCE if info.data.get("kind") == "pretrain" else TRAINED_IMBALANCE
        return usual[info.field_name == "routing_imbalance_peak"]

    @property
    def routed(self) -> dict[str, Any]:
        """Fields that say how evenly the router spreads tokens."""
        return {name: getattr(self, name) for name in ROUTER_FIELDS}

    @field_validator("sequence_length_histogram")
    @classmethod
    def _lengths_of_rl_are_its_own(
        cls, value: dict[str, float] | None, info: ValidationInfo
    ) -> dict[str, float] | None:
        if value is not None and info.data.get("kind") == "rl_post_training":
            raise FieldFault(
                Message("common.excludes_it", what="kind: rl_post_training"),
                "rl.response_length: {histogram: ...}",
            )
        if value is not None and info.data.get("kind") == "dpo":
            raise FieldFault(
                Message("specs.not_modelled_with", one="kind: dpo", other="sequence_length_histogram"),
                Message("common.leave_it_out"),
            )
        return value

    @field_validator("pads_samples")
    @classmethod
    def _single_samples_keep_lengths(cls, value: bool, info: ValidationInfo) -> bool:
        if value or "kind" not in info.data:
            return value
        if info.data["kind"] not in {"sft", "dpo"}:
            raise FieldFault(Message("common.it_needs_field", name="kind: sft, dpo"), Message("common.leave_it_out"))
        if info.data.get("sequence_length_histogram") is not None:  # samples of several, as long as the sequence
            raise FieldFault(Message("common.excludes_it", what="sequence_length_histogram"))
        return value

    @model_serializer(mode="wrap")
    def _without_what_follows(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        written = write(self)
        if self.kind == "rl_post_training":
            return {name: value for name, value in written.items() if name not in FROM_RL}
        return written

    @field_validator("sequence_length_histogram")
    @classmethod
    def _lengths_are_tokens(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        if value is None:
            return None
        bad = [length for length in value if not LENGTH.fullmatch(length)]
        if bad:
            raise FieldFault(
                Message("field_fault.is_no_whole_number", value=repr(bad[0][:40])),
                Message("field_fault.at_least", bound=1),
            )
        if not any(share > 0.0 for share in value.values()):
            raise ValueError(Message("specs.no_positive_share"))
        return value

    @field_validator("recipe", mode="after")
    @classmethod
    def _empty_is_absent(cls, value: TrainingRecipe | None) -> TrainingRecipe | None:
        return None if value == NOTHING_TOLD_OF_TRAINING else value

    @property
    def recipe_or_default(self) -> TrainingRecipe:
        """The recipe; where the document has none, one that says nothing."""
        return self.recipe or NOTHING_TOLD_OF_TRAINING

    @property
    def tunings(self) -> tuple[Tuning, ...]:
        """Kinds of tuning of a frozen model; empty where all of it is trained."""
        return tuple(each for each in TUNINGS if each.asked(self))

    @property
    def has_reference(self) -> bool:
        """Presence of a frozen copy of the model that reads every sequence, too."""
        return any(each.reference for each in self.tunings)

    @property
    def in_part(self) -> bool:
        """Training of adapters alone, beside frozen weights of the model."""
        return any(each.in_part for each in self.tunings)

    @property
    def adapters(self) -> tuple[int, tuple[str, ...]]:
        """Rank and targets of adapters; rank 0 without."""
        return (0, ()) if self.lora is None else (self.lora.rank, self.lora.target_modules)

    @model_validator(mode="after")
    def _modelled_together(self) -> Self:
        own, precision = OPTIMIZERS[self.optimizer], f"precision: {self.precision}"
        unmodelled = [(each.title, precision) for each in self.tunings if self.precision not in each.precisions]
        unmodelled += [(f"optimizer: {own.name}", precision)] if self.precision not in own.precisions else []
        tuned = self.tunings or self.kind != "pretrain"
        unmodelled += [(f"optimizer: {own.name}", f"kind: {self.kind}")] if tuned and not own.tunes else []
        for one, other in unmodelled:
            hint = "optimizer: adam" if own.name in one else "precision: bf16"
            raise FieldFault(Message("specs.not_modelled_with", one=one, other=other), hint)
        return self

    @model_validator(mode="after")
    def _peak_is_the_larger(self) -> Self:
        sustained, peak = self.imbalance, self.imbalance_peak
        if peak.at_ep == sustained.at_ep and peak.value < sustained.value:
            raise ValueError(
                Message(
                    "common.exceeds",
                    one=f"routing_imbalance {sustained.value}",
                    other=f"routing_imbalance_peak {peak.value}",
                )
            )
        return self

    @property
    def sample_tokens(self) -> int:
        """Tokens of one of the global batch: a sequence, or a pair of them."""
        return self.seq_length * (SEQUENCES_OF_A_PAIR if self.has_reference else 1)

    @property
    def imbalance(self) -> StatedImbalance:
        """The sustained factor, and the group that it is of."""
        return stated(self.routing_imbalance)

    @property
    def imbalance_peak(self) -> StatedImbalance:
        """The factor at the worst moment, and the group that it is of."""
        return stated(self.routing_imbalance_peak)
