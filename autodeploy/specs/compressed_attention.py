"""DeepSeek-V4's layers: attention to compressed keys (CSA, HCA), and residuals in several streams (mHC).

Every layer has queries from a latent, one key that is also the value for all heads, and an output projection of low
rank in groups; it sees a sliding window. A compressed layer sees entries beside it, each pooled from so many tokens:
CSA (compressed sparse attention) those that an indexer chooses, HCA (heavily compressed attention) all of them.
Sources: DeepSeek-V4 technical report, sections 2.2 and 2.3; transformers `deepseek_v4`; MindSpeed-LLM @c77308a1,
mindspeed_llm/tasks/models/transformer/deepseek4; hyper-connections: mHC, arXiv 2512.24880.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from autodeploy.specs.attention_kinds import AttentionType, no_bool
from autodeploy.specs.base import Document

CSA: Final = "compressed_sparse_attention"
HCA: Final = "heavily_compressed_attention"
COMPRESSED: Final = frozenset({CSA, HCA})
INDEXED: Final = 4  # tokens of an entry in layers whose entries an indexer chooses, as frameworks tell them from others

_Size = Annotated[int, Field(ge=1, le=1_048_576), BeforeValidator(no_bool)]
_Heads = Annotated[int, Field(ge=1, le=4096), BeforeValidator(no_bool)]
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
