"""The recipe of a model's launch besides its shape, in the names of Hugging Face `config.json`.

Rotary positions, norms, initialisation, biases and the router's scores and losses: none of it changes the time or the
memory of a step that is modelled, but for what balances the router (`specs/training.py`). It travels with the model so
that a launch script can say it. A field that is absent was told by nobody; documents without a recipe are the same as
before there was one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault
from autodeploy.specs.base import Document
from hardware_profiles.magnitudes import EPSILON

RopeType = Literal["linear", "dynamic", "yarn", "llama3", "longrope", "plm"]
ScoringFunction = Literal["softmax", "sigmoid", "sqrtsoftplus"]
TopkMethod = Literal["greedy", "group_limited_greedy", "noaux_tc"]
LoadBalancing = Literal[
    "none",
    "aux_loss",
    "seq_aux_loss",
    "global_aux_loss",
    "sinkhorn",
    "group_limited_greedy",
    "softmax_topk",
    "pai_megatron_aux_loss",
    "sparsemixer_topk",
    "quantile_balancing",
]

FlagName = Annotated[str, Field(pattern=r"^--[a-z][a-z0-9-]{0,99}$")]
FlagWords = tuple[FlagName] | tuple[FlagName, Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x1f]*$")]]

MAX_CONTEXT_LENGTH = 16_777_216


def _without_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else value


def _absent(value: Any) -> bool:
    return value is None


def _told(description: str, **limits: Any) -> Any:
    """An optional field that leaves no trace in a document where nobody gave it."""
    return Field(default=None, description=description, exclude_if=_absent, **limits)


def _positive(description: str, most: float) -> Any:
    return _told(description, ge=EPSILON, le=most)


def _share(description: str) -> Any:
    return _told(description, ge=0, le=1)


class RopeScaling(Document):
    """Scaling of rotary positions beyond the context that the model was first trained with."""

    rope_type: Annotated[RopeType, Field(description="also read under its older name `type`")]
    factor: float | None = _positive("how many times longer the context becomes", 1_000_000)
    original_max_position_embeddings: int | None = _told("the context before", ge=1, le=MAX_CONTEXT_LENGTH)
    beta_fast: float | None = _positive("yarn", 1024)
    beta_slow: float | None = _positive("yarn", 1024)
    mscale: float | None = _told("yarn", ge=0, le=1024)
    mscale_all_dim: float | None = _told("yarn", ge=0, le=1024)
    low_freq_factor: float | None = _positive("llama3", 1024)
    high_freq_factor: float | None = _positive("llama3", 1024)
    short_factor: tuple[float, ...] | None = _told("longrope, one number a pair of dimensions", max_length=4096)
    long_factor: tuple[float, ...] | None = _told("longrope, one number a pair of dimensions", max_length=4096)
    short_mscale: float | None = _positive("longrope", 1024)
    long_mscale: float | None = _positive("longrope", 1024)
    freqs_type: Literal["mul", "outer"] | None = _told("longrope, how MindSpeed-LLM applies the numbers")

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "type" in value:
            value = {"rope_type": value["type"], **{key: item for key, item in value.items() if key != "type"}}
        return _without_nulls(value)


class Recipe(Document):
    """Settings of a launch that cost little or no time or memory. Absent: not given."""

    rope_theta: float | None = _positive("base of rotary positions", 1e12)
    compress_rope_theta: float | None = _positive("base of rotary positions in layers with compressed keys", 1e12)
    rope_scaling: RopeScaling | None = _told("absent: no scaling")
    rope_interleave: bool | None = _told("rotary pairs stand side by side")
    partial_rotary_factor: float | None = _told("share of a head's dimensions that is rotated", ge=EPSILON, le=1)
    max_position_embeddings: int | None = _told("longest context", ge=1, le=MAX_CONTEXT_LENGTH)

    normalization: Literal["RMSNorm", "LayerNorm"] | None = _told("absent: RMSNorm, with learned positions LayerNorm")
    rms_norm_eps: float | None = _told("epsilon of every norm, also of layer norms", ge=EPSILON, le=1)
    initializer_range: float | None = _told("standard deviation of the first weights", ge=EPSILON, le=100)
    attention_bias: bool | None = _told("queries, keys and values have biases")
    attention_out_bias: bool | None = _told("the output projection of attention has a bias")
    mlp_bias: bool | None = _told("the matrices of the MLP have biases")
    attention_dropout: float | None = _share("dropout of attention scores")
    hidden_dropout: float | None = _share("dropout of what a layer adds")
    embedding_multiplier: float | None = _told("the embedding is scaled by it")
    logits_multiplier: float | None = _told("the logits are scaled by it")
    final_logit_softcapping: float | None = _positive("cap of the logits", 1e6)
    attn_logit_softcapping: float | None = _positive("cap of the attention scores", 1e6)
    query_pre_attn_scalar: float | None = _positive("attention scores are divided by its root", 1e6)

    scoring_func: ScoringFunction | None = _told("scores of the router")
    topk_method: TopkMethod | None = _told("noaux_tc: per-expert biases balance the load")
    norm_topk_prob: bool | None = _told("the chosen experts' scores add up to one")
    routed_scaling_factor: float | None = _positive("the routed experts' output is scaled by it", 1e6)
    router_balancing: LoadBalancing | None = _told(
        "as --moe-router-load-balancing-type says it; absent: follows from topk_method and the losses"
    )
    router_aux_loss_coef: float | None = _told("of the loss that balances experts", ge=0, le=1e6)
    seq_aux: bool | None = _told("that loss is taken of every sequence by itself")
    device_aux_loss_coef: float | None = _told("of the loss that balances groups of experts", ge=0, le=1e6)
    communication_aux_loss_coef: float | None = _told("of the loss that balances what is received", ge=0, le=1e6)
    router_z_loss_coef: float | None = _told("of the loss that keeps the router's logits small", ge=0, le=1e6)
    router_bias_update_rate: float | None = _told("step of the experts' biases under noaux_tc", ge=0, le=1e6)
    router_jitter_noise: float | None = _told("noise on the router's input", ge=0, le=1)
    router_dtype: Literal["fp32", "fp64"] | None = _told("number format that the router computes in")
    shared_expert_gate: bool | None = _told("the shared experts' output has a gate of its own")
    mtp_loss_scaling_factor: float | None = _told("weight of the loss of multi-token prediction", ge=0, le=1e6)
    layer_spec: str | None = _told(
        "module and name of the layer specification, as `--spec` says it",
        max_length=200,
        pattern=r"^[A-Za-z_][\w.]*( [A-Za-z_]\w*)?$",
    )
    more_flags: tuple[FlagWords, ...] | None = _told("further flags of the model, each with its values", max_length=100)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return _without_nulls(value)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: Any) -> Any:
        if isinstance(value, bool) and info.field_name not in SWITCHES:
            raise ValueError(Message("field_fault.is_no_number", value=value))
        return value

    @model_validator(mode="after")
    def _frequencies_agree(self) -> Self:
        scaling = self.rope_scaling
        if scaling is not None and scaling.rope_type in {"yarn", "llama3", "linear"} and scaling.factor is None:
            needed = Message("common.needs_it", what=f"rope_type: {scaling.rope_type}")
            raise FieldFault(Message("common.place", place="factor", message=needed), "factor: 40.0")
        return self

    @property
    def has_expert_bias(self) -> bool:
        """Whether per-expert biases balance the load, instead of a loss alone."""
        return self.topk_method == "noaux_tc"


class TrainingRecipe(Document):
    """Optimizer and learning rate, which cost no time or memory that is modelled. Absent: nobody told it."""

    lr: float | None = _positive("peak learning rate", 1e6)
    min_lr: float | None = _told("final learning rate", ge=0, le=1e6)
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] | None = _told(
        "absent: cosine"
    )
    lr_decay_iters: int | None = _told("iterations until the final learning rate", ge=1, le=10**9)
    lr_warmup_iters: int | None = _told("iterations of learning-rate warm-up", ge=0, le=10**9)
    lr_warmup_fraction: float | None = _share("share of the decay that is warm-up")
    weight_decay: float | None = _told("absent: 0.1", ge=0, le=1e6)
    clip_grad: float | None = _told("absent: 1", ge=0, le=1e6)
    adam_beta1: float | None = _share("absent: 0.9")
    adam_beta2: float | None = _share("absent: 0.95")
    adam_eps: float | None = _positive("absent: the parser's own value", 1)
    initial_loss_scale: float | None = _positive("of 16-bit floating point with five bits of exponent", 2.0**32)
    seed: int | None = _told("of every random number", ge=0, le=2**63 - 1)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return _without_nulls(value)


SWITCHES = frozenset(
    {
        *("rope_interleave", "attention_bias", "attention_out_bias", "mlp_bias", "norm_topk_prob", "seq_aux"),
        "shared_expert_gate",
    }
)
NOTHING_TOLD = Recipe()
NOTHING_TOLD_OF_TRAINING = TrainingRecipe()
