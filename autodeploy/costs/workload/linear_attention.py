"""Linear attention of one layer by the delta rule: gated delta net and KDA, in chunks of 64 tokens.

Of each chunk and head, with keys K, queries Q [C, d_k], values V [C, d_v] and the state S [d_k, d_v]:

    A = K K^T, T = (1 + A)^-1, W = T K, U = T V, V' = U - W S, O = Q S + (Q K^T) V', S' = S + K^T V'

Products run on matrix units, the inverse by substitution on vector units. What crosses a chunk is the state, so context
parallelism passes states and no keys. Sources: arXiv 2412.06464, section 3.3; KDA: arXiv 2510.26692, section 3.
How fast such kernels run is published for no Ascend chip: their products are priced as others of their shape, and the
inverse as two passes over A, both assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.workload.attention_types import AttentionCosts, LayerKind
from autodeploy.costs.workload.operators import (
    Exchange,
    Operator,
    OperatorFeatures,
    Rows,
    Sharding,
    Tensor,
    Touches,
    moving,
)
from autodeploy.specs.attention import sizes_of_states as sizes

if TYPE_CHECKING:
    from autodeploy.specs.attention import LinearAttention
    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Floats

W: Final = "attention"
CHUNK: Final = 64.0  # tokens: fla's and MindSpeed-LLM's --mamba-chunk-size
FP32 = 4.0


def chunk_flops_per_token(linear: LinearAttention) -> float:
    """FLOPs of the chunked products of one token, forward, all heads: 2 [C (3 d_k + 2 d_v) + 3 d_k d_v] a head.

    Products within a chunk are counted whole, as matrix units compute them, not their causal half.
    """
    key, value = linear.key_head_dim, linear.value_head_dim
    return 2.0 * linear.num_value_heads * (CHUNK * (3 * key + 2 * value) + 3 * key * value)


def linear_rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind) -> Rows:
    """Operators, kept tensors and exchanges of one layer's attention, from the norm's output to the residual."""
    linear, tokens, h = sizes(model), shard.tokens, model.hidden_size
    heads = np.asarray(linear.num_value_heads / shard.tp)
    keys = np.maximum(linear.num_key_heads / shard.tp, 1.0) * linear.key_head_dim
    spread, values = heads * linear.key_head_dim, heads * linear.value_head_dim
    operators = [
        Operator("qkv_proj", "gemm", W, tokens, linear.cut_columns / shard.tp, h, launches=2.0),
        *_low_rank_gates(linear, shard, h),
        *_convolution(tokens * (2.0 * keys + values), on),
        *_products(linear, tokens * heads),
        _gated_norm(tokens * values),
        Operator("attention_out_proj", "gemm", W, tokens, h, values),
    ]
    decays = spread if linear.kind == "kda" else heads
    tensors = {
        "linear_conv_in": 2.0 * (2.0 * keys + values),
        "linear_qkv": 2.0 * (2.0 * spread + values),
        "linear_gate": 2.0 * values,
        "linear_out": 2.0 * values,
        "attention_out": 2.0 * values,
        "linear_inverse": 2.0 * CHUNK * heads,
    }
    kept = [Tensor(name, np.asarray(tokens * size)) for name, size in tensors.items()]
    kept.append(Tensor("linear_decays", np.asarray(FP32 * tokens * (decays + heads)), as_it_is=True))
    if linear.gate_rank:
        kept.append(Tensor("linear_low_rank", np.asarray(2.0 * tokens * 2.0 * linear.gate_rank)))
    return operators, kept, _exchanges(linear, shard, heads, 2.0 * tokens * (2.0 * keys + 2.0 * values))


def linear_params(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind) -> tuple[int, Floats]:
    """Parameters of one layer's attention on a rank without the norms around it: heads are cut, low ranks whole."""
    linear, h = sizes(model), model.hidden_size
    whole = 2.0 * h * linear.gate_rank + linear.vector_params
    cut = h * (linear.cut_columns + linear.value_width) + linear.gate_rank * linear.gate_columns
    return 0, np.asarray(whole + cut / shard.tp)


def _low_rank_gates(linear: LinearAttention, shard: Sharding, hidden: int) -> list[Operator]:
    """KDA's decay and output gate: two products down, cut over no ranks, and two up."""
    rank, tokens = float(linear.gate_rank), shard.tokens
    if not rank:
        return []
    up = linear.gate_columns / shard.tp
    return [
        Operator("gate_down_proj", "gemm", W, tokens, 2.0 * rank, hidden, launches=2.0),
        Operator("gate_up_proj", "gemm", W, tokens, up, rank, launches=2.0),
        # A decay of every channel: read in 16 bits, summed up and written in FP32.
        moving("decays", W, 6.0 * tokens * up / 2.0, 12.0 * tokens * up / 2.0),
    ]


def _convolution(elements: Floats, on: OperatorFeatures) -> list[Operator]:
    """The short convolution with its activation, and the norm of queries and keys.

    Bytes an element: read and written once by each of two kernels (8 B); as operators the activation and the parts of
    the norm pass over them again (20 B).
    """
    moved = (8.0 if on.fused_operators else 20.0) * elements
    return [moving("short_conv", W, moved, 1.5 * moved, launches=2.0)]


def _products(linear: LinearAttention, rows: Floats) -> list[Operator]:
    """Products of all chunks, and the inverse; `rows`: tokens times heads of the rank."""
    chunks, key, value = rows / CHUNK, float(linear.key_head_dim), float(linear.value_head_dim)

    def product(name: str, columns: float, depth: float, times: float) -> Operator:
        return Operator(name, "gemm", W, CHUNK, columns, depth, times * chunks, wide=True, weighted=False)

    passes = 4.0 * FP32 * CHUNK * rows  # A written and read, its inverse written and read
    return [
        product("chunk_scores", CHUNK, key, 2.0),  # K K^T, Q K^T
        moving("chunk_inverse", W, passes, passes, as_it_is=True),
        product("chunk_keys", key, CHUNK, 1.0),  # T K
        product("chunk_values", value, CHUNK, 2.0),  # T V, (Q K^T) V'
        product("chunk_states", value, key, 3.0),  # W S, Q S, K^T V'
    ]


def _gated_norm(elements: Floats) -> Operator:
    """Norm of the output times its gate: reads both and writes one (6 B an element)."""
    return moving("gated_norm", W, 6.0 * elements, 10.0 * elements)


def _exchanges(linear: LinearAttention, shard: Sharding, heads: Floats, exchanged: Floats) -> list[Exchange]:
    """States pass around a ring, in FP32, with what the pieces of the sequence do to a state: d_k (d_v + d_k) a head.

    A rank applies the pieces before its own one after the other; backward the states' gradients pass the other way.
    Ulysses exchanges queries, keys, values and the output, as it does for keys and values.
    """
    state = linear.key_head_dim * (linear.value_head_dim + linear.key_head_dim)
    message = np.asarray(FP32 * shard.micro_batch_size * heads * state)
    steps = shard.ring - 1.0
    return [
        Exchange("state_ring", "ring", W, message, steps, steps, carries="sums"),
        Exchange("head_exchange", "heads", W, np.asarray(exchanged), 1.0, 1.0),
    ]


LINEAR_COSTS: Final = AttentionCosts(
    linear_rows,
    linear_params,
    lambda model, kind, seq, causal, keys: chunk_flops_per_token(sizes(model)),
    choices={name: Touches(("attention_out",)) for name in ("swap_attention", "swap_core_attn_out")},
)
