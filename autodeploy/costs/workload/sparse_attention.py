"""DeepSeek sparse attention (DSA): the indexer of a layer, and when attention to chosen keys is worth it.

The indexer scores every pair of tokens with few, narrow heads and keeps `index_topk` keys a query. Attention to them
runs on the latents, one key and value for all heads: of DeepSeek-V3.2 2 x 128 x (576 + 512) FLOPs a pair, where keys
and values of each head take 2 x 128 x (192 + 128). Where that is less, all pairs are computed under a mask. A
kernel that gathers chosen keys moves single rows of them from device memory, at the rate of rows that a permutation
picks; it takes the larger of that and its products.
Source: DeepSeek-V3.2, arXiv 2512.02556, section 2, and its appendix on both modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.workload.attention_types import score_columns
from autodeploy.costs.workload.operators import Operator, Tensor, moving
from cost_models.compute import attention_backward_flops, attention_flops

if TYPE_CHECKING:
    from autodeploy.costs.workload.operators import Sharding
    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Floats

    Size = Floats | float

W: Final = "attention"
SELECTION_BYTES = 12.0  # of a score: written in FP32 and read twice, by a histogram and by the selection


@dataclass(frozen=True, slots=True)
class IndexShape:
    """Scores of an indexer: mean keys before a query and chosen ones, its heads and their width, and those of the
    attention that it learns from on a rank, whose chosen keys a kernel may gather.
    """

    keys: float
    chosen: float
    heads: float
    width: float
    target_heads: Floats
    target_width: float
    gathers: bool = False


def latent_widths(model: ModelSpec) -> tuple[int, int]:
    """Width of queries and keys and of values, where heads share the latent as their key and value."""
    latent = model.kv_lora_rank or 0
    return latent + (model.qk_rope_head_dim or 0), latent


def attends_to_latents(model: ModelSpec, seq: float, *, gathers: bool = False) -> bool:
    """Whether attention is to the chosen keys in sequences of that many tokens: where it takes fewer FLOPs than to all,
    or where its kernel always gathers.
    """
    sparse = model.sparse_attention
    if sparse is None or sparse.index_topk >= seq:
        return False
    if gathers:
        return True
    chosen = score_columns(seq, sparse.index_topk) * sum(latent_widths(model))
    return bool(chosen < seq / 2.0 * (model.qk_head_dim + model.value_head_dim))


def row_bytes(tokens: Floats, keys: Floats | float, width: float) -> tuple[Floats, Floats]:
    """Bytes of single rows that a gathering kernel moves, forward and backward, whatever the number of heads.

    Forward each query's rows are read, 2 B an element. Backward they are read again, and their gradients are added to
    FP32 sums row by row, read and written, 4 B each. Source: torchtitan-npu @306d569f, npu_dsa; DeepSeek-V4's own
    sparse_attn takes the numbers of window and entries alike.
    """
    elements = np.asarray(tokens * keys * width)
    return 2.0 * elements, 10.0 * elements


def attending(
    name: str, shape: tuple[Floats, Floats | float, Floats, float, float], seq: Floats | float, moved: tuple[Size, Size]
) -> Operator:
    """Attention of tokens to keys, by heads with keys and values of two widths; `moved`: bytes of gathered rows."""
    flops, back, width = attention_flops(*shape), attention_backward_flops(*shape), sum(shape[3:]) / 2.0
    row = moving(name, W, *moved, kind="attention")
    return row._replace(flops=flops, backward_flops=back, head_dim=width, seq=seq)


def attention_shape(model: ModelSpec, seq: float, *, gathers: bool = False) -> tuple[float, int, int]:
    """Keys that a query attends to in the mean, and widths of its heads' keys and values."""
    if attends_to_latents(model, seq, gathers=gathers):
        assert model.sparse_attention is not None
        return score_columns(seq, model.sparse_attention.index_topk), *latent_widths(model)
    return score_columns(seq, None), model.qk_head_dim, model.value_head_dim


def index_flops_per_token(model: ModelSpec, seq: float) -> float:
    """FLOPs of one token's index scores against all tokens before it, forward."""
    sparse = model.sparse_attention
    return 0.0 if sparse is None else 2.0 * sparse.query_width * seq / 2.0


def indexer_rows(model: ModelSpec, shard: Sharding, *, gathers: bool = False) -> tuple[list[Operator], list[Tensor]]:
    """Projections, scores and choice of one layer's indexer, and the loss that trains it.

    Every tensor-parallel rank computes all of it (Megatron-LM's indexer has duplicated weights). It learns from the
    attention of the chosen keys, summed over heads: those scores are computed once more for their target (arXiv
    2512.02556, section 2.1.1), and gradients flow through chosen pairs only. Its input is cut off from the graph.
    """
    sparse = model.sparse_attention
    if sparse is None or not sparse.index_n_heads:  # or the keys are those that another layer chose
        return [], []
    seq, tokens, h = shard.seq_length, shard.tokens, model.hidden_size
    heads, width = float(sparse.index_n_heads), float(sparse.index_head_dim)
    chosen, keys = score_columns(seq, sparse.index_topk), seq / 2.0
    qk = latent_widths(model)[0] if attends_to_latents(model, seq, gathers=gathers) else model.qk_head_dim
    rotary = 4.0 * tokens * (heads + 1.0) * width
    cut = np.asarray(model.num_attention_heads / shard.tp)
    shape = IndexShape(keys, chosen, heads, width, cut, float(qk), gathers)
    operators = [
        Operator("index_q_proj", "gemm", W, tokens, heads * width, float(model.q_lora_rank or h)),
        Operator("index_k_proj", "gemm", W, tokens, width + heads, h, launches=2.0),
        moving("index_rotary", W, rotary, rotary, launches=3.0),
        *index_operators(shape, tokens, seq / shard.ring),
    ]
    tensors = [
        Tensor("index_q", np.asarray(2.0 * tokens * heads * width)),
        Tensor("index_k", np.asarray(2.0 * tokens * width)),
        # Numbers of the chosen keys, their scores in FP32, and the heads' weights.
        Tensor("index_chosen", np.asarray(tokens * (8.0 * min(sparse.index_topk, seq) + 4.0 * heads)), as_it_is=True),
    ]
    return operators, tensors


def index_operators(shape: IndexShape, tokens: Floats, seq: Floats | float) -> list[Operator]:
    """Scores of all keys, the choice, and the target of the loss: scores of the chosen keys once more."""
    heads, width, chosen = shape.heads, shape.width, shape.chosen
    moved = row_bytes(tokens, chosen, shape.target_width)[0] if shape.gathers else 0.0
    selected = SELECTION_BYTES * tokens * shape.keys
    return [
        Operator(
            "index_scores",
            "attention",
            W,
            flops=attention_flops(tokens, shape.keys, heads, width, 0.0),
            backward_flops=2.0 * attention_flops(tokens, chosen, heads, width, 0.0),
            head_dim=width,
            seq=seq,
        ),
        moving("index_choice", W, selected, 0.0, as_it_is=True, launches=3.0),
        Operator(
            "index_target",
            "attention",
            W,
            flops=attention_flops(tokens, chosen, shape.target_heads, shape.target_width, 0.0),
            head_dim=shape.target_width,
            seq=seq,
            forward_bytes=moved,
        ),
    ]
