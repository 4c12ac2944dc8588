"""The model that is trained: its shape in the names of Hugging Face `config.json`, and what follows from it.

Parameter counts are of matrices, embeddings and norms; biases are left out (below 0.03 % in every preset).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import gcd
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails

from autodeploy.messages import Message, joined
from autodeploy.messages.field_faults import FieldFault
from autodeploy.specs.attention import (
    AttentionKind,
    AttentionType,
    CompressedAttention,
    HyperConnections,
    LinearAttention,
    SparseAttention,
    StreamParams,
    kind_of_attention,
    no_bool,
)
from autodeploy.specs.base import Document, omitted
from autodeploy.specs.model_rules import MODULE, LayerKind, faults, kind_of_layers
from autodeploy.specs.recipe import NOTHING_TOLD, Recipe
from hardware_profiles.magnitudes import Factor

HiddenAct = Literal["silu", "gelu", "geglu"]
NormLayout = Literal["pre", "sandwich"]

MAX_LAYERS = 1024
NORMS_PER_LAYER: dict[NormLayout, int] = {"pre": 2, "sandwich": 4}

PATTERNS: dict[str, tuple[AttentionType, ...]] = {
    "alternating sliding and full attention": ("sliding_attention", "full_attention"),
    "five sliding layers, then full attention": (*("sliding_attention",) * 5, "full_attention"),
    "three chunked layers, then full attention": (*("chunked_attention",) * 3, "full_attention"),
    "full attention, then three sliding layers": ("full_attention", *("sliding_attention",) * 3),
    "three linear layers, then full attention": (*("linear_attention",) * 3, "full_attention"),
    "sliding attention": ("sliding_attention",),
    "full attention": ("full_attention",),
}


_WHOLE = BeforeValidator(no_bool)


Width = Annotated[int, Field(ge=1, le=1_048_576), _WHOLE]
HeadCount = Annotated[int, Field(ge=1, le=4096), _WHOLE]
HeadDim = Annotated[int, Field(ge=1, le=8192), _WHOLE]
ExpertCount = Annotated[int, Field(ge=1, le=8192), _WHOLE]
LayerIndex = Annotated[int, Field(ge=0, lt=MAX_LAYERS), _WHOLE]


class ModelSpec(Document):
    """A decoder-only transformer, dense or mixture of experts, with grouped, latent, compressed or linear attention.

    `kv_lora_rank` makes attention multi-head latent (MLA, DeepSeek-V2, arXiv 2405.04434); `n_routed_experts` makes
    the layers after the first `first_k_dense_replace`, but not `mlp_only_layers`, mixture-of-experts layers.
    """

    name: Annotated[str, Field(min_length=1, max_length=200, examples=["DeepSeek-V3"])]
    hidden_size: Annotated[int, Field(ge=1, le=262_144, examples=[7168]), _WHOLE]
    num_hidden_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS, examples=[61]), _WHOLE]
    num_attention_heads: Annotated[HeadCount, Field(examples=[128])]
    num_key_value_heads: HeadCount = Field(default_factory=int, description="absent: as many as num_attention_heads")
    vocab_size: Annotated[int, Field(ge=1, le=16_777_216, examples=[129_280]), _WHOLE]

    q_lora_rank: Annotated[Width | None, Field(description="absent under MLA: queries are not compressed")] = None
    kv_lora_rank: Annotated[Width | None, Field(description="present: multi-head latent attention")] = None
    qk_nope_head_dim: HeadDim | None = None
    qk_rope_head_dim: HeadDim | None = None
    v_head_dim: Annotated[HeadDim | None, Field(description="without MLA, absent: head_dim")] = None
    head_dim: HeadDim = Field(default_factory=int, description="absent: hidden_size / num_attention_heads")

    intermediate_size: Annotated[Width | None, Field(description="of the dense layers; absent: there is none")] = None
    hidden_act: Annotated[HiddenAct, Field(description="silu: gated (SwiGLU); gelu: plain; geglu: gated")] = "silu"
    tie_word_embeddings: bool = False
    learned_position_embeddings: Annotated[
        int, Field(ge=0, le=16_777_216, description="rows of a learned position table; 0: rotary"), _WHOLE
    ] = 0
    alibi: Annotated[
        bool,
        Field(description="biases of distances on scores, instead of rotations", exclude_if=lambda value: not value),
    ] = False
    sliding_window: Annotated[
        int | None,
        Field(ge=1, le=16_777_216, description="tokens; applies to every layer if layer_types is absent"),
        _WHOLE,
    ] = None
    layer_types: Annotated[
        tuple[AttentionType, ...] | None,
        Field(max_length=MAX_LAYERS, description="one a layer, or a pattern: " + "; ".join(map(repr, PATTERNS))),
    ] = None
    norm_layout: Annotated[NormLayout, Field(description="sandwich: four norms a layer")] = "pre"
    qk_norm: bool = False
    attention_chunk_size: Annotated[
        int | None, omitted("tokens that see each other in chunked layers", ge=1, le=16_777_216), _WHOLE
    ] = None
    attention_output_gate: Annotated[bool, omitted("the query projection also yields an output gate", at=False)] = False
    attention_head_gate: Annotated[
        bool, omitted("one gate of the output a head, projected from the layer's input", at=False)
    ] = False
    sliding_attention_heads: Annotated[
        HeadCount | None, omitted("of queries in sliding layers; absent: num_attention_heads")
    ] = None
    linear_attention: Annotated[LinearAttention | None, omitted("of layers of the type linear_attention")] = None
    sparse_attention: Annotated[SparseAttention | None, omitted("an indexer chooses keys (DSA); with MLA")] = None

    compressed_attention: Annotated[
        CompressedAttention | None, omitted("DeepSeek-V4's: windows, and entries pooled from tokens beside them")
    ] = None
    hyper_connections: Annotated[HyperConnections | None, omitted("residuals in several streams (mHC)")] = None

    n_routed_experts: ExpertCount | None = None
    num_experts_per_tok: ExpertCount | None = None
    moe_intermediate_size: Annotated[Width | None, Field(description="of one routed expert")] = None
    n_shared_experts: Annotated[int, Field(ge=0, le=256), _WHOLE] = 0
    shared_expert_intermediate_size: Annotated[
        Width | None, Field(description="all shared experts together; absent: n_shared_experts * moe_intermediate_size")
    ] = None
    first_k_dense_replace: Annotated[int, Field(ge=0, le=MAX_LAYERS), _WHOLE] = 0
    mlp_only_layers: Annotated[
        tuple[LayerIndex, ...], Field(max_length=MAX_LAYERS, description="further dense layers, by index from 0")
    ] = ()
    n_zero_experts: Annotated[
        int, omitted("experts that return what they get, chosen among the others", at=0, ge=0, le=8192), _WHOLE
    ] = 0
    shortcut_moe: Annotated[
        bool,
        omitted("a layer has attention and a dense MLP twice, and experts on a shortcut beside them (ScMoE)", at=False),
    ] = False
    num_hash_layers: Annotated[
        int,
        omitted(
            "first layers whose experts a table of token ids chooses; priced as routed ones", at=0, ge=0, le=MAX_LAYERS
        ),
        _WHOLE,
    ] = 0
    n_group: Annotated[ExpertCount | None, Field(description="expert groups of node-limited routing")] = None
    topk_group: Annotated[ExpertCount | None, Field(description="groups a token may reach")] = None
    capacity_factor: Annotated[Factor | None, Field(description="absent: dropless")] = None
    num_nextn_predict_layers: Annotated[
        int, Field(ge=0, le=16, description="multi-token prediction modules"), _WHOLE
    ] = 0

    recipe: Annotated[Recipe | None, omitted("what the launch states besides the model's shape")] = None

    # -- validation ------------------------------------------------------------------------------------------

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value

    @field_validator("layer_types", mode="before")
    @classmethod
    def _expand_pattern(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return value
        pattern = PATTERNS.get(value.strip().lower().replace("_", " "))
        if pattern is None:
            raise FieldFault(
                Message("field_fault.is_invalid", value=repr(value)),
                Message("specs.one_of_patterns", names=joined(map(repr, PATTERNS), "or")),
            )
        layers = info.data.get("num_hidden_layers", len(pattern))
        return tuple(pattern[i % len(pattern)] for i in range(layers))

    @field_validator("recipe", mode="after")
    @classmethod
    def _empty_is_absent(cls, value: Recipe | None) -> Recipe | None:
        return None if value == NOTHING_TOLD else value

    @field_validator("mlp_only_layers", mode="after")
    @classmethod
    def _in_order(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        self._fill_derived()
        broken = faults(self)
        if broken:
            raise ValidationError.from_exception_data("ModelSpec", [_line(self, *fault) for fault in broken])
        return self

    def _fill_derived(self) -> None:
        # Into __dict__: the model is frozen, and what follows from other fields must not count as set by the user.
        if self.num_key_value_heads == 0:
            self.__dict__["num_key_value_heads"] = self.num_attention_heads
        if self.head_dim == 0:
            self.__dict__["head_dim"] = max(1, self.qk_head_dim or self.hidden_size // self.num_attention_heads)

    @property
    def rotates(self) -> bool:
        """Presence of rotary positions: neither learned ones nor biases of distances."""
        return not (self.learned_position_embeddings or self.alibi)

    @property
    def layer_norms(self) -> bool:
        """Norms about the mean (LayerNorm), which PyTorch has one kernel for."""
        norm = self.recipe_or_default.normalization
        return norm == "LayerNorm" or (norm is None and self.learned_position_embeddings > 0)

    @property
    def recipe_or_default(self) -> Recipe:
        """The recipe; where the document has none, one that says nothing."""
        return self.recipe or NOTHING_TOLD

    # -- shape -----------------------------------------------------------------------------------------------

    @property
    def is_moe(self) -> bool:
        """Whether some layers have routed experts."""
        return self.n_routed_experts is not None

    @property
    def attention(self) -> AttentionKind:
        """The kind of attention of layers whose type has none of its own."""
        return kind_of_attention(self, "full_attention")

    @property
    def attention_names(self) -> frozenset[str]:
        """Names of the kinds of attention that layers have."""
        types = self.layer_types or (self.attention_type(0),)
        return frozenset(kind_of_attention(self, attention).name for attention in {*types})

    @property
    def is_gated(self) -> bool:
        """Whether an MLP has three matrices (gate, up, down) instead of two."""
        return self.hidden_act != "gelu"

    @property
    def qk_head_dim(self) -> int:
        """Width of one head's query and key."""
        return self.head_dim if self.qk_nope_head_dim is None else self.qk_nope_head_dim + (self.qk_rope_head_dim or 0)

    @property
    def value_head_dim(self) -> int:
        """Width of one head's value."""
        return self.v_head_dim if self.v_head_dim is not None else self.head_dim

    @property
    def halves(self) -> int:
        """Number of times a layer has attention, a dense or routed MLP's norms and, with a shortcut, a dense MLP."""
        return kind_of_layers(self, "moe" if self.is_moe else "dense").halves

    @property
    def router_choices(self) -> int:
        """Experts among which the router chooses: those that return what they get, too."""
        return (self.n_routed_experts or 0) + self.n_zero_experts

    @property
    def computing_experts_per_tok(self) -> float:
        """Experts with matrices that a token reaches in the mean, where all are chosen equally often.

        What balances the router of LongCat-Flash holds this share: 8 of 12 (arXiv 2509.01322, section 2.1.1).
        """
        chosen = float(self.num_experts_per_tok or 0)
        return chosen * (self.n_routed_experts or 0) / self.router_choices if self.n_zero_experts else chosen

    @property
    def zero_experts_per_tok(self) -> float:
        """Experts that return what they get, of those a token reaches in the mean."""
        return float(self.num_experts_per_tok or 0) - self.computing_experts_per_tok

    @property
    def shared_expert_width(self) -> int:
        """Intermediate width of all shared experts of a layer together; 0 without."""
        if self.shared_expert_intermediate_size is not None:
            return self.shared_expert_intermediate_size
        return self.n_shared_experts * (self.moe_intermediate_size or 0)

    def is_moe_layer(self, layer: int) -> bool:
        """Whether the layer (from 0) has routed experts."""
        return self.is_moe and layer >= self.first_k_dense_replace and layer not in self.mlp_only_layers

    @property
    def num_dense_layers(self) -> int:
        """Layers without routed experts, MTP modules not counted."""
        return self.num_hidden_layers - self.num_moe_layers

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts, MTP modules not counted."""
        if not self.is_moe:
            return 0
        further = sum(layer >= self.first_k_dense_replace for layer in self.mlp_only_layers)
        return max(0, self.num_hidden_layers - self.first_k_dense_replace - further)

    def attention_type(self, layer: int) -> AttentionType:
        """Type of attention of the layer (from 0)."""
        if self.layer_types is not None:
            return self.layer_types[layer]
        return "full_attention" if self.sliding_window is None else "sliding_attention"

    def attention_window(self, layer: int) -> int | None:
        """Tokens a query of the layer (from 0) sees at most, in a chunk those before it; None is all before it."""
        return self.window_of(self.attention_type(layer))

    def window_of(self, attention: AttentionType) -> int | None:
        """Tokens a query sees at most in layers of the type; None is all before it."""
        spans = {"sliding_attention": self.sliding_window, "chunked_attention": self.attention_chunk_size}
        return spans.get(attention)

    @property
    def sliding_shape(self) -> Self:
        """The model as its sliding layers are: with their own number of heads."""
        heads = self.sliding_attention_heads
        return self if heads is None else self.model_copy(update={"num_attention_heads": heads})

    @property
    def shared_index_shape(self) -> Self:
        """The model as its layers are that take the keys another one chose: without an indexer."""
        assert self.sparse_attention is not None
        return self.model_copy(update={"sparse_attention": self.sparse_attention.without_indexer})

    def shares_index(self, layer: int) -> bool:
        """Whether the layer (from 0) takes the keys that a layer before it chose."""
        return self.sparse_attention is not None and not self.sparse_attention.has_indexer(layer)

    @property
    def index_starts(self) -> tuple[int, ...]:
        """Layers (from 0) that choose their keys themselves: with them those begin that share what one chose."""
        return tuple(layer for layer in range(self.num_hidden_layers) if not self.shares_index(layer))

    @property
    def module_like_layer(self) -> int:
        """The layer (from 0) whose kind a prediction module has: the last one, of those that choose keys themselves."""
        layers = range(self.num_hidden_layers)
        return next((layer for layer in reversed(layers) if not self.shares_index(layer)), layers[-1])

    @property
    def module_attention(self) -> AttentionType:
        """Attention of a prediction module's layer: DeepSeek-V4's has a window alone, whatever the last layer has."""
        return "sliding_attention" if self.attention.types else self.attention_type(self.module_like_layer)

    def layer_facts(self, layer: int) -> tuple[bool, bool, AttentionType]:
        """Facts that make the kind of the layer (from 0): whether it has experts and shares an index, its attention."""
        return self.is_moe_layer(layer), self.shares_index(layer), self.attention_type(layer)

    @property
    def residual_streams(self) -> int:
        """Streams of hidden states between layers and stages."""
        return 1 if self.hyper_connections is None else self.hyper_connections.hc_mult

    @property
    def common_heads(self) -> int:
        """Common divisor of all numbers of query heads: degrees that divide it cut all layers into whole heads."""
        return gcd(self.num_attention_heads, self.sliding_attention_heads or 0)

    # -- parameters ------------------------------------------------------------------------------------------

    @property
    def attention_params(self) -> int:
        """Projection matrices of the attention of a layer whose type has no sizes of its own."""
        return self.attention_params_of("full_attention")

    @property
    def indexer_params(self) -> int:
        """Matrices of the indexer of one layer; 0 without."""
        sparse = self.sparse_attention
        return 0 if sparse is None else sparse.matrix_params(self.hidden_size, self.q_lora_rank or self.hidden_size)

    def attention_params_of(self, attention: AttentionType) -> int:
        """Projection matrices of the attention of a layer of the type."""
        return kind_of_attention(self, attention).matrices(self, attention)

    def mlp_params(self, width: int) -> int:
        """Matrices of one MLP with that intermediate width: three where gated, else two."""
        return (3 if self.is_gated else 2) * self.hidden_size * width

    @property
    def dense_mlp_params(self) -> int:
        """The MLP of one dense layer; 0 where there is none."""
        return self.mlp_params(self.intermediate_size or 0)

    @property
    def routed_expert_params(self) -> int:
        """One routed expert; 0 in a dense model."""
        return self.mlp_params(self.moe_intermediate_size or 0)

    @property
    def shared_expert_params(self) -> int:
        """All shared experts of one layer together."""
        return self.mlp_params(self.shared_expert_width)

    @property
    def router_params(self) -> int:
        """The router of one mixture-of-experts layer."""
        return self.hidden_size * self.router_choices

    def vector_params_of(self, attention: AttentionType) -> int:
        """Parameters of such a layer outside of matrices: norms, and short convolutions and decays of linear ones."""
        own = kind_of_attention(self, attention).vectors(self, attention)
        return NORMS_PER_LAYER[self.norm_layout] * self.hidden_size + own

    @property
    def streams(self) -> StreamParams:
        """Parameters that map residual streams; none of one stream."""
        own = self.hyper_connections
        return StreamParams() if own is None else own.params(self.hidden_size)

    def layer_kind(self, layer: int) -> LayerKind:
        """Kind of the layer (from 0): dense, or with experts."""
        return kind_of_layers(self, "moe" if self.is_moe_layer(layer) else "dense")

    def layer_matrix_params(self, layer: int, experts: float | None = None) -> int:
        """Matrices of the layer with that index (from 0), of so many experts; absent: of all."""
        experts = self.n_routed_experts or 0 if experts is None else experts
        mlp = self.layer_kind(layer).matrices(self, experts)
        shared = self.indexer_params * self.shares_index(layer)
        return (
            self.halves * self.attention_params_of(self.attention_type(layer))
            + mlp
            - shared
            + self.streams.layer_matrices
        )

    def layer_params(self, layer: int) -> int:
        """The layer with that index (from 0), all experts."""
        sparse = self.sparse_attention
        shared = 0 if sparse is None else sparse.vector_params * self.shares_index(layer)
        vectors = self.halves * self.vector_params_of(self.attention_type(layer)) + self.streams.layer_vectors
        return self.layer_matrix_params(layer) + vectors - shared

    @property
    def embedding_params(self) -> int:
        """Token embedding and, where positions are learned, their table."""
        return (self.vocab_size + self.learned_position_embeddings) * self.hidden_size

    @property
    def head_params(self) -> int:
        """The output head's own parameters: 0 where it is tied to the embedding."""
        return 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size

    @property
    def final_norm_params(self) -> int:
        """The norm before the output head."""
        return self.hidden_size

    @property
    def mtp_params(self) -> int:
        """All multi-token prediction modules without the embedding and head they share with the model."""
        experts, like = self.n_routed_experts or 0, self.module_like_layer
        own, other = map(self.vector_params_of, (self.module_attention, self.attention_type(like)))
        vectors = self.layer_params(like) - self.layer_matrix_params(like) + own - other
        module = MODULE.matrices(self, experts) + vectors + 3 * self.hidden_size + self.streams.head
        return self.num_nextn_predict_layers * module

    def total_params(self, include_mtp: bool = False) -> int:
        """All parameters; published totals leave multi-token prediction out."""
        facts = [self.layer_facts(layer) for layer in range(self.num_hidden_layers)]
        layers = sum(count * self.layer_params(facts.index(each)) for each, count in Counter(facts).items())
        ends = self.embedding_params + self.head_params + self.final_norm_params + self.streams.head
        return layers + ends + (self.mtp_params if include_mtp else 0)

    def active_params(self, include_embedding: bool = True) -> int:
        """Parameters one token uses, without multi-token prediction.

        Publishers differ: Qwen, Mistral and Kimi count the embedding, DeepSeek and Pangu Ultra MoE do not (a look-up
        multiplies nothing); all but GLM count the head. Each preset says what its published number counts.
        """
        used = round(self.computing_experts_per_tok * self.routed_expert_params)
        idle = self.num_moe_layers * ((self.n_routed_experts or 0) * self.routed_expert_params - used)
        return self.total_params() - idle - (0 if include_embedding else self.embedding_params)


def _line(model: ModelSpec, field: str, message: str, hint: str) -> InitErrorDetails:
    fault = {"error": FieldFault(message, hint)}
    return InitErrorDetails(type="value_error", loc=(field,), input=getattr(model, field), ctx=fault)
