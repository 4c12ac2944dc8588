"""Kinds of tuning as records: what is trained beside a frozen model, of adapters (LoRA) or of preferences (DPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Field, field_validator

from autodeploy.messages import Message
from autodeploy.specs.attention import Flags
from autodeploy.specs.base import Document
from hardware_profiles.magnitudes import EPSILON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.training import TrainingSpec


LoraTarget = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
TARGETS: Final[tuple[LoraTarget, ...]] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


class LoraSpec(Document):
    """Adapters of a frozen model: beside a matrix of `in` x `out`, two of `in` x rank and rank x `out`.

    Source: arXiv 2106.09685, section 4.1. Names of targets are Megatron-LM's.
    """

    rank: Annotated[int, Field(ge=1, le=4096, examples=[16], description="inner width of an adapter")]
    alpha: Annotated[
        int | None, Field(ge=1, le=1_000_000, description="adapters count alpha / rank; absent: twice the rank")
    ] = None
    target_modules: Annotated[
        tuple[LoraTarget, ...], Field(min_length=1, description="matrices that have an adapter; absent: all four")
    ] = TARGETS

    # MindSpeed-LLM's, of a launch that names targets alone: features_manager/finetune/lora.py.
    flags: ClassVar[Flags] = {"rank": ("--lora-r", 16), "alpha": ("--lora-alpha", 32)}

    @field_validator("target_modules")
    @classmethod
    def _each_once(cls, value: tuple[LoraTarget, ...]) -> tuple[LoraTarget, ...]:
        return tuple(name for name in TARGETS if name in value)

    @property
    def told_alpha(self) -> int:
        """Alpha, or twice the rank."""
        return self.alpha if self.alpha is not None else 2 * self.rank


def adapter_params(model: ModelSpec, rank: int, targets: Iterable[str], *, active: bool = False) -> int:
    """Parameters of all adapters of a model: rank x (in + out) of each target in each layer.

    active : of experts those that a token is sent to.
    """
    names = tuple(targets)
    layers = range(model.num_hidden_layers)
    return rank * sum(_layer_widths(model, names, moe=model.is_moe_layer(layer), active=active) for layer in layers)


def _layer_widths(model: ModelSpec, names: tuple[str, ...], *, moe: bool, active: bool) -> int:
    """In + out of the targets of one layer. Latents come from one matrix, of queries, of keys and values."""
    h, heads, width = model.hidden_size, model.num_attention_heads, model.attention.joined(model)
    experts = (model.num_experts_per_tok if active else model.n_routed_experts) or 0
    inner = (model.moe_intermediate_size or 0, model.shared_expert_width) if moe else (model.intermediate_size or 0,)
    counts = (experts, 1 if model.shared_expert_width else 0) if moe else (1,)
    gates = 2 if model.is_gated else 1
    sizes = {
        "linear_qkv": h + width,
        "linear_proj": heads * model.value_head_dim + h,
        "linear_fc1": sum(n * (h + gates * each) for n, each in zip(counts, inner, strict=True)),
        "linear_fc2": sum(n * (each + h) for n, each in zip(counts, inner, strict=True)),
    }
    return sum(sizes[name] for name in names)


# Fields of a model that no adapters are modelled for where they say something.
_UNMODELLED_WITH_ADAPTERS: Final = (
    *("sparse_attention", "linear_attention", "compressed_attention", "hyper_connections", "shortcut_moe"),
    *("n_zero_experts", "sliding_attention_heads", "attention_head_gate", "num_nextn_predict_layers"),
)
EXPERT_TARGETS: Final = frozenset({"linear_fc1", "linear_fc2"})


def unmodelled_with_adapters(value_of: Callable[[str], object], targets: Iterable[str] = TARGETS) -> str | None:
    """Why no adapters of a model are modelled yet; None where they are. value_of : a field of the model.

    Experts have adapters beside both of their matrices, whatever the targets are (MindSpeed-LLM @c77308a1,
    tasks/posttrain/lora/moe/experts.py): targets have to say so.
    """
    unmodelled = next((field for field in _UNMODELLED_WITH_ADAPTERS if value_of(field)), None)
    if unmodelled is None and value_of("kv_lora_rank") and not value_of("q_lora_rank"):
        unmodelled = "kv_lora_rank, q_lora_rank: null"
    if unmodelled is None and value_of("n_routed_experts") and not set(targets) >= EXPERT_TARGETS:
        return Message("common.needs", one="lora + n_routed_experts", other="target_modules linear_fc1, linear_fc2")
    return unmodelled and Message("specs.not_modelled_with", one="lora", other=unmodelled)


# Direct preference optimisation.
DpoLoss = Literal["sigmoid", "hinge", "ipo"]
DEFAULT_BETA: Final = 0.1
SEQUENCES_OF_A_PAIR: Final = 2  # a chosen one and a rejected one


class DpoSpec(Document):
    """The loss over pairs of a chosen and a rejected sequence, beside a frozen reference model.

    It changes no time or memory. Source: arXiv 2305.18290; its names are MindSpeed-LLM's (features_manager/dpo).
    """

    beta: Annotated[float, Field(ge=EPSILON, le=100, description="weight of the log ratios against the reference")] = (
        DEFAULT_BETA
    )
    loss: Annotated[DpoLoss, Field(description="of the difference of log ratios")] = "sigmoid"


# Fields of a model that no reference is modelled for where they say something.
_UNMODELLED_WITH_REFERENCE: Final = (
    "n_routed_experts",
    "linear_attention",
    "num_nextn_predict_layers",
    "tie_word_embeddings",
)


def unmodelled_with_reference(value_of: Callable[[str], object], targets: Iterable[str] = ()) -> str | None:
    """Why preference tuning of a model is not modelled yet; None where it is. value_of : a field of the model."""
    unmodelled = next((field for field in _UNMODELLED_WITH_REFERENCE if value_of(field)), None)
    return unmodelled and Message("specs.not_modelled_with", one="kind: dpo", other=unmodelled)


@dataclass(frozen=True, slots=True)
class Tuning:
    """A way to train beside a frozen model.

    name : as releases and records of runs say it. title : as errors say it. path : of the field that asks for it.
    fact : by which legality rules know it. instead : what to say where it is not modelled.
    reference : a frozen copy of the model reads every sequence, of which there are pairs.
    in_part : the model's own weights are not trained. precisions : number formats that it is modelled in.
    excludes, excludes_experts : mechanisms that it is not modelled with, and of models with experts. asked : whether a
    training is one.
    problem : why a model's is not modelled, of how to read its fields and of targets; or None.
    """

    name: str
    title: str
    path: str
    fact: str
    instead: Message
    asked: Callable[[TrainingSpec], bool]
    problem: Callable[[Callable[[str], object], Iterable[str]], str | None]
    reference: bool = False
    in_part: bool = False
    precisions: tuple[str, ...] = ("bf16", "fp16")
    excludes: tuple[str, ...] = ("fsdp",)
    excludes_experts: tuple[str, ...] = ()


ADAPTERS: Final = Tuning(
    "lora",
    "lora",
    "/training/lora",
    "trains_adapters",
    Message("common.leave_it_out"),
    lambda training: training.lora is not None,
    unmodelled_with_adapters,
    in_part=True,
    excludes=(),
    excludes_experts=("fsdp",),
)
PREFERENCES: Final = Tuning(
    "dpo",
    "kind: dpo",
    "/training/kind",
    "compares_pairs",
    Message("common.one_of", names="pretrain, sft"),
    lambda training: training.kind == "dpo",
    unmodelled_with_reference,
    reference=True,
)
TUNINGS: Final = (ADAPTERS, PREFERENCES)


def trained_and_frozen(model: ModelSpec, training: TrainingSpec) -> tuple[int, int]:
    """Parameters that are trained, and those that stay as they are."""
    whole, (rank, targets) = model.total_params(include_mtp=True), training.adapters
    return (adapter_params(model, rank, targets), whole) if rank else (whole, 0)
