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
