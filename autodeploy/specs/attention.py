"""Attention of other kinds than grouped queries and latents over all tokens before: their sizes and parameters.

Sources: gated delta net, arXiv 2412.06464, with the gates of Qwen3-Next (transformers `qwen3_next`); Kimi Delta
Attention (KDA), arXiv 2510.26692, section 4; DeepSeek sparse attention (DSA), arXiv 2512.02556, section 2; attention to
compressed keys (CSA, HCA), DeepSeek-V4: `compressed_attention.py`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field

from autodeploy.messages import Message
from autodeploy.specs.base import Document

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


def _one(value: object) -> bool:
    return value == 1


def _usual_offset(value: object) -> bool:
    return value == USUAL_OFFSET


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
        int,
        Field(ge=1, le=1024, description="layers that share the keys one of them chose", exclude_if=_one),
        BeforeValidator(no_bool),
    ] = 1
    index_skip_topk_offset: Annotated[
        int,
        Field(ge=1, le=1024, description="layers up to this one (from 1) choose alone", exclude_if=_usual_offset),
        BeforeValidator(no_bool),
    ] = USUAL_OFFSET

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


class HyperConnections(Document):
    """Residuals in several streams (mHC): each half of a layer mixes them by maps that it computes for every token.

    A half reads one input out of the streams, writes its output to all of them, and mixes them by a matrix that
    Sinkhorn iterations make doubly stochastic: n + n + n^2 numbers a token, projected from all streams.
    """

    hc_mult: Annotated[int, Field(ge=2, le=64, description="residual streams"), BeforeValidator(no_bool)]
    hc_sinkhorn_iters: Annotated[int, Field(ge=1, le=1000), BeforeValidator(no_bool)] = 20

    @property
    def map_width(self) -> int:
        """Numbers a token of the maps of half a layer."""
        return self.hc_mult * (2 + self.hc_mult)

    def layer_matrices(self, hidden: int) -> int:
        """Projections of both halves of a layer."""
        return 2 * self.map_width * self.hc_mult * hidden

    @property
    def layer_vectors(self) -> int:
        """Offsets of both halves' maps, and a scale of each of three."""
        return 2 * (self.map_width + 3)

    def head_params(self, hidden: int) -> int:
        """What joins the streams before the output head: a projection to one weight a stream, offsets, a scale."""
        return self.head_matrix(hidden) + self.hc_mult + 1

    def head_matrix(self, hidden: int) -> int:
        """Of that: the projection."""
        return self.hc_mult * self.hc_mult * hidden
