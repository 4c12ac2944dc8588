"""Kinds of attention as records: which fields of a model are theirs, their sizes, parameters and contradictions.

What a kind computes is its `AttentionCosts` in `costs/workload`. Code that reads a model asks attributes of these
records, `ModelSpec.attention` or `attention_of`, never which kind it is.
Sources: gated delta net, arXiv 2412.06464, with the gates of Qwen3-Next (transformers `qwen3_next`); Kimi Delta
Attention (KDA), arXiv 2510.26692, section 4; DeepSeek sparse attention (DSA), arXiv 2512.02556, section 2; attention to
compressed keys (CSA, HCA), DeepSeek-V4: `compressed_attention.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field

from autodeploy.messages import Message
from autodeploy.specs.base import Document, omitted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from autodeploy.specs.model import ModelSpec

AttentionType = Literal[
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
]
LinearKind = Literal["gated_delta_net", "kda"]
USUAL_OFFSET: Final = 2


Flags = Mapping[str, tuple[str, int | None]]
"""Field of a part of a model -> the flag of Megatron-LM or MindSpeed-LLM that says it, and its default there."""


def no_bool(value: object) -> object:
    """The value, unless it is a truth value where a size is wanted."""
    if isinstance(value, bool):
        raise ValueError(Message("field_fault.is_no_number", value=value))
    return value


_Heads = Annotated[int, Field(ge=1, le=4096), BeforeValidator(no_bool)]
_HeadDim = Annotated[int, Field(ge=1, le=8192), BeforeValidator(no_bool)]


class LinearAttention(Document):
    """Layers whose heads keep a state of key_head_dim x value_head_dim instead of keys and values.

    A gated delta net forgets by one factor a head, KDA by one a channel of the key, from a projection of low rank.
    """

    kind: LinearKind
    num_key_heads: _Heads
    num_value_heads: _Heads
    key_head_dim: _HeadDim
    value_head_dim: _HeadDim
    conv_kernel_dim: Annotated[int, Field(ge=1, le=64, description="tokens of the short convolution")] = 4

    flags: ClassVar[Flags] = {
        "num_key_heads": ("--linear-num-key-heads", None),
        "num_value_heads": ("--linear-num-value-heads", None),
        "key_head_dim": ("--linear-key-head-dim", None),
        "value_head_dim": ("--linear-value-head-dim", None),
        "conv_kernel_dim": ("--mamba-d-conv", 4),
    }

    @property
    def key_width(self) -> int:
        """Of all heads' keys, and of their queries."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Of all heads' values, and of the output."""
        return self.num_value_heads * self.value_head_dim

    @property
    def cut_columns(self) -> int:
        """Columns of the projections of hidden states that heads cut.

        Queries, keys, values and a strength of writing a head; a gated delta net also its output gate and a decay.
        """
        whole = 2 * self.key_width + self.value_width + self.num_value_heads
        return whole + (self.value_width + self.num_value_heads if self.kind == "gated_delta_net" else 0)

    @property
    def gate_rank(self) -> int:
        """Inner width of KDA's decay and output gate, each of low rank; 0 without."""
        return self.value_head_dim if self.kind == "kda" else 0

    @property
    def gate_columns(self) -> int:
        """Columns of the gates' second products: decays of every channel, and the output gate."""
        return self.num_value_heads * self.key_head_dim + self.value_width if self.kind == "kda" else 0

    def matrix_params(self, hidden_size: int) -> int:
        """Projections of one layer."""
        low_rank = self.gate_rank * (2 * hidden_size + self.gate_columns)
        return hidden_size * (self.cut_columns + self.value_width) + low_rank

    @property
    def vector_params(self) -> int:
        """Convolutions, decays' scales and offsets, and the norm of the output."""
        decays = self.num_value_heads * (self.key_head_dim if self.kind == "kda" else 1)
        convolved = (2 * self.key_width + self.value_width) * self.conv_kernel_dim
        return convolved + decays + self.num_value_heads + self.value_head_dim


class SparseAttention(Document):
    """DSA: a small indexer scores all tokens before a query, which attends to the best `index_topk` of them.

    Layers may take the keys that the indexer of a layer before them chose (GLM-5.2): of every `index_topk_freq` layers
    from layer `index_skip_topk_offset` (counted from 1) on, the first has an indexer. Source: MindSpeed-LLM @c77308a1,
    multi_latent_attention.py, _resolve_dsa_source_and_end; the same in transformers' `glm_moe_dsa`.
    """

    index_topk: Annotated[int, Field(ge=1, le=16_777_216), BeforeValidator(no_bool)]
    index_n_heads: _Heads
    index_head_dim: _HeadDim
    index_topk_freq: Annotated[
        int, omitted("layers that share the keys one of them chose", at=1, ge=1, le=1024), BeforeValidator(no_bool)
    ] = 1
    index_skip_topk_offset: Annotated[
        int,
        omitted("layers up to this one (from 1) choose alone", at=USUAL_OFFSET, ge=1, le=1024),
        BeforeValidator(no_bool),
    ] = USUAL_OFFSET

    flags: ClassVar[Flags] = {
        "index_topk": ("--index-topk", 2048),
        "index_n_heads": ("--index-n-heads", 64),
        "index_head_dim": ("--index-head-dim", 128),
        "index_topk_freq": ("--index-topk-freq", None),
        "index_skip_topk_offset": ("--index-skip-topk-offset", None),
    }

    def has_indexer(self, layer: int) -> bool:
        """Whether the layer (from 0) chooses its keys itself."""
        return max(layer + 1 - self.index_skip_topk_offset, 0) % self.index_topk_freq == 0

    @property
    def without_indexer(self) -> Self:
        """As layers have it that take the keys another one chose: an indexer without heads."""
        return self.model_copy(update={"index_n_heads": 0, "index_head_dim": 0})

    @property
    def query_width(self) -> int:
        """Of all heads of the indexer."""
        return self.index_n_heads * self.index_head_dim

    def matrix_params(self, hidden_size: int, query_rank: int) -> int:
        """The indexer of one layer: its queries from the query's latent, one key, and a weight a head."""
        return query_rank * self.query_width + hidden_size * (self.index_head_dim + self.index_n_heads)

    @property
    def vector_params(self) -> int:
        """The layer norm of its key: scale and offset."""
        return 2 * self.index_head_dim


# DeepSeek-V4's layers.
CSA: Final = "compressed_sparse_attention"
HCA: Final = "heavily_compressed_attention"
COMPRESSED: Final = frozenset({CSA, HCA})
INDEXED: Final = 4  # tokens of an entry in layers whose entries an indexer chooses, as frameworks tell them from others

_Size = Annotated[int, Field(ge=1, le=1_048_576), BeforeValidator(no_bool)]
_Rate = Annotated[int, Field(ge=2, le=65_536, description="tokens of an entry"), BeforeValidator(no_bool)]


class CompressedAttention(Document):
    """Sizes of DeepSeek-V4's attention beside the model's heads, head_dim, q_lora_rank, rotary width and window.

    Entries of CSA are pooled from the tokens of two neighbouring entries: their projections are twice as wide.
    """

    o_groups: Annotated[_Heads, Field(description="of heads whose outputs are projected together")]
    o_lora_rank: Annotated[_Size, Field(description="width of a group's output")]
    index_topk: Annotated[_Size, Field(description="entries that a query of CSA attends to")]
    index_n_heads: _Heads
    index_head_dim: Annotated[int, Field(ge=1, le=8192), BeforeValidator(no_bool)]
    csa_rate: _Rate = INDEXED
    hca_rate: _Rate = 128

    flags: ClassVar[Flags] = {
        "o_groups": ("--o-groups", 8),
        "o_lora_rank": ("--o-lora-rank", 1024),
        "index_topk": ("--index-topk", 2048),
        "index_n_heads": ("--index-n-heads", 64),
        "index_head_dim": ("--index-head-dim", 128),
    }

    def rate(self, attention: AttentionType) -> int | None:
        """Tokens of one entry in layers of the type; None where they have none."""
        return {CSA: self.csa_rate, HCA: self.hca_rate}.get(attention)

    @property
    def index_width(self) -> int:
        """Of the queries of all heads of the indexer."""
        return self.index_n_heads * self.index_head_dim

    @property
    def out_width(self) -> int:
        """Of all groups' outputs of low rank."""
        return self.o_groups * self.o_lora_rank

    def pooled_columns(self, attention: AttentionType, width: int) -> int:
        """Columns of the projections to entries of that width: of what is pooled, and of its weights."""
        return {CSA: 4, HCA: 2}.get(attention, 0) * width

    def whole_params(self, attention: AttentionType, hidden: int, query_rank: int, head_dim: int) -> int:
        """Matrices of a layer that tensor parallelism does not cut: down to latents and key, compressor, indexer."""
        params = hidden * (query_rank + head_dim + self.pooled_columns(attention, head_dim))
        if attention == CSA:
            pooled = self.pooled_columns(CSA, self.index_head_dim)
            params += query_rank * self.index_width + hidden * (self.index_n_heads + pooled)
        return params

    def cut_params(self, hidden: int, query_rank: int, query_width: int) -> int:
        """Matrices of a layer that it cuts by heads: up to queries, down to the groups' ranks, up to hidden states."""
        return query_rank * query_width + query_width * self.o_lora_rank + self.out_width * hidden

    def vector_params(self, attention: AttentionType, query_rank: int, head_dim: int, heads: int) -> int:
        """Norms of latent and key, a sink a head, and of compressors positions in an entry and a norm."""
        rate = self.rate(attention)
        params = query_rank + head_dim + heads
        if rate is None:
            return params
        widths = (head_dim, self.index_head_dim) if attention == CSA else (head_dim,)
        return params + sum(rate * self.pooled_columns(attention, width) // 2 + width for width in widths)


class StreamParams(NamedTuple):
    """Parameters that map residual streams: of a layer in matrices and beside, of the head in its matrix and in all."""

    layer_matrices: int = 0
    layer_vectors: int = 0
    head_matrix: int = 0
    head: int = 0


class HyperConnections(Document):
    """Residuals in several streams (mHC): each half of a layer mixes them by maps that it computes for every token.

    A half reads one input out of the streams, writes its output to all of them, and mixes them by a matrix that
    Sinkhorn iterations make doubly stochastic: n + n + n^2 numbers a token, projected from all streams.
    """

    hc_mult: Annotated[int, Field(ge=2, le=64, description="residual streams"), BeforeValidator(no_bool)]
    hc_sinkhorn_iters: Annotated[int, Field(ge=1, le=1000), BeforeValidator(no_bool)] = 20

    flags: ClassVar[Flags] = {"hc_mult": ("--hc-mult", 4), "hc_sinkhorn_iters": ("--hc-sinkhorn-iters", 20)}

    @property
    def map_width(self) -> int:
        """Numbers a token of the maps of half a layer."""
        return self.hc_mult * (2 + self.hc_mult)

    def params(self, hidden: int) -> StreamParams:
        """Of a layer: projections of both halves, offsets of their maps and a scale of each of three.

        What joins the streams before the output head: a projection to one weight a stream, offsets, a scale.
        """
        head = self.hc_mult * self.hc_mult * hidden
        layer = 2 * self.map_width * self.hc_mult * hidden
        return StreamParams(layer, 2 * (self.map_width + 3), head, head + self.hc_mult + 1)


Fault = tuple[str, str, str]  # field, message, hint


def _no_fault(model: ModelSpec) -> Iterator[Fault]:
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a model's layers, as fields say it.

    field : whose presence makes it. fields : that mean nothing without. needs, hint : that have to be there, and an
    example of them. excludes : those that can't.
    """

    field: str = ""
    fields: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    hint: str = ""
    excludes: tuple[str, ...] = ()

    def is_in(self, model: ModelSpec) -> bool:
        """Presence of its field in the model."""
        return not self.field or bool(getattr(model, self.field))

    def beside(self, model: ModelSpec) -> Iterator[Fault]:
        """Fields that contradict the part's presence."""
        for name in (name for name in self.needs if getattr(model, name) is None):
            yield name, Message("common.needs_it", what=self.field), self.hint
        for name in (name for name in self.excludes if getattr(model, name)):
            yield name, Message("common.excludes_it", what=self.field), Message("common.leave_it_out")

    def without(self, model: ModelSpec, others: Collection[str] = ()) -> Iterator[Fault]:
        """Fields that contradict its absence, but those that other parts have, too."""
        for name in (name for name in self.fields if name not in others and getattr(model, name)):
            hint = Message("common.leave_it_out_or", instead=self.field)
            yield name, Message("common.it_needs_field", name=self.field), hint


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind(Part):
    """A way in which layers attend.

    name : as features, stacks of software and networks say it. types : of layers that it alone has.
    faults : what else of its fields contradicts itself.
    matrices, vectors : parameters of the attention of a layer of a type, in matrices and beside them without the
        norms around it.
    joined : columns of the first projections, which adapters are beside.
    switches : flags of Megatron-LM that ask for it. sizes : fields with the flags that say them, the first of which is
        written, and their defaults. layer_spec : of MindSpeed-LLM, its modules.
    facts : that legality rules read, by name: what holds without the kind, and of a model that has it.
    mixed : layers of other types attend with another kind.
    plain : every Megatron-LM has flags for it, and there are measured runs of it.
    own_keys : query heads share heads of keys, which tensor parallelism cuts with them; else one serves all, or each
        has its own.
    own_positions : its module of Megatron-LM turns a part of heads of its own width: yarn always, no other share.
    largest : elements of its largest weight, where that is not the joined projection of heads.
    """

    name: str
    matrices: Callable[[ModelSpec, AttentionType], int]
    vectors: Callable[[ModelSpec, AttentionType], int]
    joined: Callable[[ModelSpec], int]
    types: frozenset[AttentionType] = frozenset()
    faults: Callable[[ModelSpec], Iterator[Fault]] = _no_fault
    facts: Mapping[str, tuple[int, Callable[[ModelSpec], int]]] = dataclass_field(default_factory=dict)
    switches: tuple[str, ...] = ()
    sizes: tuple[tuple[str, tuple[str, ...], int | None], ...] = ()
    layer_spec: str = ""
    mixed: bool = False
    plain: bool = False
    own_keys: bool = False
    own_positions: bool = False
    largest: Callable[[ModelSpec], int] | None = None


# Heads of keys and values.
def _heads_matrices(model: ModelSpec, attention: AttentionType) -> int:
    own = model.sliding_shape if attention == "sliding_attention" else model
    h, a, value = own.hidden_size, own.num_attention_heads, own.value_head_dim
    gate = h * a * (value * own.attention_output_gate + own.attention_head_gate)
    return h * (a + own.num_key_value_heads) * (own.head_dim + value) + gate


def _heads_vectors(model: ModelSpec, attention: AttentionType) -> int:
    return 2 * model.head_dim if model.qk_norm else 0


def _heads_joined(model: ModelSpec) -> int:
    gate = model.num_attention_heads * model.value_head_dim * model.attention_output_gate
    keys = model.num_key_value_heads * (model.head_dim + model.value_head_dim)
    return model.num_attention_heads * model.head_dim + keys + gate


def _uneven_heads(model: ModelSpec) -> Iterator[Fault]:
    heads, keys = model.num_attention_heads, model.num_key_value_heads
    if heads % keys:
        message = Message("common.does_not_divide", part=keys, whole=f"num_attention_heads {heads}")
        yield "num_key_value_heads", message, ""
    if "head_dim" not in model.model_fields_set and model.hidden_size % heads:
        message = Message("common.does_not_divide", part=f"num_attention_heads {heads}", whole=model.hidden_size)
        yield "hidden_size", message, Message("specs.give_head_dim")


# Latents of queries, and of keys and values (MLA: arXiv 2405.04434, section 2.1).
def latent_widths(model: ModelSpec) -> tuple[int, int, int]:
    """Of the latents of queries, of keys and values, and of the rotary key; 0 where there is none."""
    return model.q_lora_rank or 0, model.kv_lora_rank or 0, model.qk_rope_head_dim or 0


def _latent_matrices(model: ModelSpec, attention: AttentionType) -> int:
    h, a, (query_rank, rank, rope) = model.hidden_size, model.num_attention_heads, latent_widths(model)
    query_width = a * model.qk_head_dim
    query = h * query_width if model.q_lora_rank is None else query_rank * (h + query_width)
    key_value = rank * (h + a * ((model.qk_nope_head_dim or 0) + model.value_head_dim))
    return query + key_value + h * rope + a * model.value_head_dim * h + model.indexer_params


def _latent_vectors(model: ModelSpec, attention: AttentionType) -> int:
    indexer = 0 if model.sparse_attention is None else model.sparse_attention.vector_params
    return sum(latent_widths(model)[:2]) + indexer


def _latent_faults(model: ModelSpec) -> Iterator[Fault]:
    heads, keys = model.num_attention_heads, model.num_key_value_heads
    if keys != heads:
        message = Message("specs.latent_heads", heads=keys, all=heads)
        yield "num_key_value_heads", message, Message("common.leave_it_out")
    if all(getattr(model, name) is not None for name in LATENT.needs) and model.head_dim != model.qk_head_dim:
        message = Message("common.is_not_of_form", value=model.head_dim, form="qk_nope_head_dim + qk_rope_head_dim")
        yield "head_dim", message, Message("specs.omit_it_sum", sum=model.qk_head_dim)


# States of linear layers.
def sizes_of_states(model: ModelSpec) -> LinearAttention:
    """The sizes of the linear layers of a model that has some."""
    assert model.linear_attention is not None
    return model.linear_attention


def _linear_faults(model: ModelSpec) -> Iterator[Fault]:
    own = sizes_of_states(model)
    if not LINEAR.types & {*(model.layer_types or ())}:
        message = Message("common.it_needs_field", name="layer_types: linear_attention")
        yield "linear_attention", message, Message("common.leave_it_out")
    if own.num_value_heads % own.num_key_heads:
        part, whole = f"num_key_heads {own.num_key_heads}", f"num_value_heads {own.num_value_heads}"
        yield "linear_attention", Message("common.does_not_divide", part=part, whole=whole), ""


# Entries of several tokens.
def sizes_of_entries(model: ModelSpec) -> CompressedAttention:
    """The sizes of attention to compressed keys, of a model that has it."""
    assert model.compressed_attention is not None
    return model.compressed_attention


def _compressed_matrices(model: ModelSpec, attention: AttentionType) -> int:
    own, h, rank = sizes_of_entries(model), model.hidden_size, model.q_lora_rank or 0
    cut = own.cut_params(h, rank, model.num_attention_heads * model.head_dim)
    return cut + own.whole_params(attention, h, rank, model.head_dim)


def _compressed_vectors(model: ModelSpec, attention: AttentionType) -> int:
    heads = model.num_attention_heads
    return sizes_of_entries(model).vector_params(attention, model.q_lora_rank or 0, model.head_dim, heads)


def _compressed_faults(model: ModelSpec) -> Iterator[Fault]:
    own, types = sizes_of_entries(model), {*(model.layer_types or ())}
    if not types & COMPRESSED or types - COMPRESSED - {"sliding_attention"}:
        message = Message("specs.sliding_beside_compressed")
        yield "layer_types", message, "compressed_sparse_attention, heavily_compressed_attention, sliding_attention"
    if model.num_key_value_heads != 1:
        yield "num_key_value_heads", Message("specs.one_compressed_key"), "1"
    if model.num_attention_heads % own.o_groups:
        part, whole = f"o_groups {own.o_groups}", f"num_attention_heads {model.num_attention_heads}"
        yield "compressed_attention", Message("common.does_not_divide", part=part, whole=whole), ""
    yield from _uneven_heads(model)


def _compressed_largest(model: ModelSpec) -> int:
    own = sizes_of_entries(model)
    rank = max(model.q_lora_rank or 0, own.o_lora_rank)
    return max(rank * model.num_attention_heads * model.head_dim, own.out_width * model.hidden_size)


GROUPED: Final = AttentionKind(
    name="grouped",
    matrices=_heads_matrices,
    vectors=_heads_vectors,
    joined=_heads_joined,
    plain=True,
    faults=_uneven_heads,
    own_keys=True,
)
LATENT: Final = AttentionKind(
    name="mla",
    matrices=_latent_matrices,
    vectors=_latent_vectors,
    joined=lambda model: sum(latent_widths(model)),
    plain=True,
    field="kv_lora_rank",
    fields=("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "sparse_attention"),
    needs=("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    hint="DeepSeek-V3: 128, 64, 128",
    excludes=("attention_output_gate", "sliding_attention_heads", "attention_head_gate"),
    faults=_latent_faults,
    switches=("--multi-latent-attention", "--multi-head-latent-attention"),
    sizes=(
        ("q_lora_rank", ("--q-lora-rank",), None),
        ("kv_lora_rank", ("--kv-lora-rank",), 512),
        ("qk_nope_head_dim", ("--qk-head-dim", "--qk-nope-head-dim"), 128),
        ("qk_rope_head_dim", ("--qk-pos-emb-head-dim", "--qk-rope-head-dim"), 64),
        ("v_head_dim", ("--v-head-dim",), 128),
    ),
    layer_spec="mindspeed_llm.tasks.models.spec.deepseek_spec",
    facts={
        "sparse_attention": (False, lambda model: model.sparse_attention is not None),
        "shares_index": (False, lambda model: len(model.index_starts) < model.num_hidden_layers),
    },
    own_positions=True,
)
LINEAR: Final = AttentionKind(
    name="linear",
    matrices=lambda model, attention: sizes_of_states(model).matrix_params(model.hidden_size),
    vectors=lambda model, attention: sizes_of_states(model).vector_params,
    joined=lambda model: sizes_of_states(model).cut_columns,
    field="linear_attention",
    types=frozenset({"linear_attention"}),
    faults=_linear_faults,
    facts={"linear_heads": (0, lambda model: sizes_of_states(model).num_key_heads)},
    mixed=True,
)
COMPRESSED_KEYS: Final = AttentionKind(
    name="compressed",
    matrices=_compressed_matrices,
    vectors=_compressed_vectors,
    joined=lambda model: (model.q_lora_rank or 0) + model.head_dim,
    field="compressed_attention",
    types=frozenset({CSA, HCA}),
    needs=("q_lora_rank", "qk_rope_head_dim", "sliding_window"),
    hint="DeepSeek-V4-Flash: 1024, 64, 128",
    excludes=(
        *("kv_lora_rank", "sparse_attention", "linear_attention", "sliding_attention_heads", "v_head_dim"),
        *("qk_norm", "attention_output_gate", "attention_head_gate", "tie_word_embeddings"),
    ),
    faults=_compressed_faults,
    layer_spec="mindspeed_llm.tasks.models.spec.deepseek4_spec",
    facts={
        "output_groups": (0, lambda model: sizes_of_entries(model).o_groups),
        "entry_tokens": (1, lambda model: sizes_of_entries(model).hca_rate),
    },
    largest=_compressed_largest,
)
ATTENTION_KINDS: Final = (LINEAR, COMPRESSED_KEYS, LATENT, GROUPED)


def kind_of_attention(model: ModelSpec, attention: str) -> AttentionKind:
    """The kind that layers of the type have in a model."""
    present = (kind for kind in ATTENTION_KINDS if kind.is_in(model))
    return next(kind for kind in present if attention in kind.types or not kind.mixed)


def attention_faults(model: ModelSpec) -> Iterator[Fault]:
    """Contradictions of a model's fields about its kinds of attention."""
    types, kinds = {*(model.layer_types or ())}, [kind for kind in ATTENTION_KINDS if kind.is_in(model)]
    own = {*model.attention.fields, *model.attention.needs, model.attention.field}
    for kind in ATTENTION_KINDS:
        if kind not in kinds:
            yield from kind.without(model, own)
            for attention in sorted(types & kind.types)[:1]:
                yield kind.field, Message("common.needs_it", what=f"layer_types: {attention}"), ""
        elif kind.mixed or kind is model.attention:
            yield from kind.beside(model)
            yield from kind.faults(model)
