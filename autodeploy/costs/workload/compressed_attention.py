"""DeepSeek-V4's attention of one layer: a window of tokens, and entries pooled from tokens before it (CSA, HCA).

One key of head_dim, which is the value too, serves all heads and is whole on every rank; queries come up from a latent,
outputs go down to a low rank a group of heads and up from there. A compressor pools each entry from `rate` tokens by a
softmax over learned weights, in FP32; of CSA from twice as many, and an indexer with a compressor of its own chooses
`index_topk` entries a query. How fast such kernels run is published for no Ascend chip: attention and index scores take
the rates of attention, pooling its bytes, all assumed.
Source: MindSpeed-LLM @c77308a1, tasks/models/transformer/deepseek4/csa.py and compressor.py, dsa_indexer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.workload.attention_types import AttentionCosts, score_columns
from autodeploy.costs.workload.operators import (
    EVERY_PASS,
    Exchange,
    Operator,
    OperatorFeatures,
    Rows,
    Sharding,
    Tensor,
    column_exchanges,
    cut_and_whole,
    moving,
)
from autodeploy.costs.workload.sparse_attention import IndexShape, attending, index_operators, row_bytes
from autodeploy.specs.attention import CSA, HCA
from autodeploy.specs.attention import sizes_of_entries as sizes
from cost_models.compute import attention_flops

if TYPE_CHECKING:
    from autodeploy.costs.workload.attention_types import KindOfAttention, LayerKind
    from autodeploy.costs.workload.operators import SizeClass, Window
    from autodeploy.specs.attention import AttentionType
    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Floats


# Residuals in several streams (mHC).
StreamRows = tuple[list[Operator], list[Tensor]]
HALF_WORD, WORD = 2.0, 4.0


def stream_rows(model: ModelSpec, shard: Sharding, half: Window) -> StreamRows:
    """Maps and mixing of half a layer, and what is kept beside the streams themselves; nothing with one stream."""
    streams = model.hyper_connections
    if streams is None:
        return [], []
    n, tokens, h = float(streams.hc_mult), shard.local_tokens, model.hidden_size
    elements, maps = tokens * h, float(streams.map_width)
    read, written = n + 1.0, n + 1.0 + n + 2.0 * n
    back = (2.0 * n + 1.0 + n) + (2.0 * n + 1.0 + n + 1.0) + 3.0 * n
    operators = [
        Operator(f"{half}_stream_maps", "gemm", half, tokens, maps, n * h, wide=True),
        moving(
            f"{half}_streams", half, HALF_WORD * (read + written) * elements, HALF_WORD * back * elements, launches=3.0
        ),
    ]
    tensors = [
        Tensor(f"{half}_stream_out", np.asarray(HALF_WORD * elements)),  # of the half, whose weights need it
        Tensor(f"{half}_stream_in", np.asarray(HALF_WORD * elements)),  # read out of the streams, before its norm
        Tensor(f"{half}_stream_maps", np.asarray(WORD * 2.0 * maps * tokens), as_it_is=True),
    ]
    return operators, tensors


def repeated(model: ModelSpec, shard: Sharding) -> list[Operator]:
    """A hidden state written to all streams (2 + 2 n B an element), whose gradients are added up."""
    if model.hyper_connections is None:
        return []
    moved = HALF_WORD * (1.0 + model.residual_streams) * shard.local_tokens * model.hidden_size
    return [moving("stream_repeat", "mlp", moved, moved)]


def joined(model: ModelSpec, shard: Sharding) -> StreamRows:
    """Streams joined by weights of every token before the output head; they are kept for them."""
    if model.hyper_connections is None:
        return [], []
    n, tokens, h = float(model.residual_streams), shard.local_tokens, model.hidden_size
    elements = tokens * h
    operators = [
        Operator("stream_head_maps", "gemm", "mlp", tokens, n, n * h, wide=True),
        moving("stream_head", "mlp", HALF_WORD * (n + 1.0) * elements, HALF_WORD * (3.0 * n + 1.0) * elements),
    ]
    return operators, [Tensor("stream_head_in", np.asarray(HALF_WORD * n * elements))]


Passes = tuple[float, float, float]
W: Final = "attention"
FP32: Final = 4.0
# The indexer's input is cut off from the graph: its products have no gradient of their input.
CUT_OFF: Final = (1.0, 0.0, 1.0)
WITH_ENTRIES: Final[dict[KindOfAttention, AttentionType]] = {CSA: CSA, HCA: HCA}
FP32_PASSES: Final = 4.0  # of matrix units for a product of FP32 numbers: a quarter of the rate of 16 bits


def type_of(kind: LayerKind) -> AttentionType:
    """The type of a layer of the kind; one without entries has a window alone."""
    return WITH_ENTRIES.get(kind.attention, "sliding_attention")


def document(shard: Sharding, on: OperatorFeatures) -> float:
    """Tokens of a document: twice what its queries see in the mean; the sequence where it is one."""
    return shard.seq_length if on.mean_keys is None else min(shard.seq_length, 2.0 * on.mean_keys)


def entries(model: ModelSpec, kind: LayerKind, seq: float) -> float:
    """Entries of a sequence in a layer of the kind; 0 without a compressor."""
    rate = sizes(model).rate(type_of(kind))
    return 0.0 if rate is None else seq / rate


def seen(model: ModelSpec, kind: LayerKind, seq: float) -> float:
    """Mean tokens and entries that a query attends to: its window, and all entries before it or the chosen ones."""
    count = entries(model, kind, seq)
    chosen = score_columns(count, sizes(model).index_topk if kind.attention == CSA else None) if count else 0.0
    return score_columns(seq, model.sliding_window) + chosen


def index_flops(model: ModelSpec, kind: LayerKind, seq: float) -> float:
    """FLOPs of one token's index scores against all entries before it, forward."""
    return 2.0 * sizes(model).index_width * entries(model, kind, seq) / 2.0 if kind.attention == CSA else 0.0


def compressed_rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind) -> Rows:
    """Operators, kept tensors and exchanges of one layer's attention, from the norm's output to the residual."""
    operators, tensors, exchanges = _projections(model, shard, on)
    parts = [_compressor(model, shard, kind, float(model.head_dim), "pool")] if type_of(kind) in WITH_ENTRIES else []
    parts += [_indexer(model, shard, on, kind)] if kind.attention == CSA else []
    for part in (*parts, _core(model, shard, on, kind), _output(model, shard)):
        operators += part[0]
        tensors += part[1]
        exchanges += part[2]
    return operators, tensors, exchanges


def compressed_params(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind) -> tuple[int, Floats]:
    """Parameters of one layer's attention on a rank without the norms around it."""
    own, h, rank, heads = sizes(model), model.hidden_size, model.q_lora_rank or 0, model.num_attention_heads
    whole = own.whole_params(type_of(kind), h, rank, model.head_dim)
    whole += own.vector_params(type_of(kind), rank, model.head_dim, 0)
    cut = own.cut_params(h, rank, heads * model.head_dim) + heads
    return 0, np.asarray(whole + cut / shard.tp)


def _projections(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> Rows:
    """Down to latent and key on a rank's tokens, up to its heads, norms and rotary positions.

    Bytes an element: a fused norm reads and writes it once (4 B). Rotary positions are applied by plain operators, as
    complex numbers in FP32: a cast (6), a product (12), a cast (6), the copy back (4); of queries, and of outputs
    backwards, each with its gradient.
    """
    h, local, tokens, d = model.hidden_size, shard.local_tokens, shard.tokens, model.head_dim
    heads, rank, rope = model.num_attention_heads / shard.tp, float(model.q_lora_rank or 0), model.qk_rope_head_dim or 0
    normed, queries = 4.0 * local * (rank + d), tokens * heads * d
    rotated = 28.0 * (2.0 * tokens * heads + local) * rope
    operators = [
        Operator("latent_down_proj", "gemm", W, local, rank + d, h, launches=2.0),
        moving("latent_norm", W, normed, 2.0 * normed, launches=2.0),
        Operator("q_up_proj", "gemm", W, tokens, heads * d, rank),
        moving("query_norm", W, 4.0 * queries, 6.0 * queries),
        moving("rotary", W, rotated, rotated, launches=12.0),
    ]
    tensors = [
        Tensor("latents", np.asarray((on.norm_bytes + 2.0) * local * (rank + d))),
        Tensor("query_unnormed", np.asarray(2.0 * queries)),
        Tensor("query", np.asarray(2.0 * queries)),
        Tensor("mqa_key", np.asarray(2.0 * tokens * d * shard.ring)),
    ]
    latent = np.asarray(2.0 * tokens * rank)
    exchanges = column_exchanges(shard, "latent", W, latent, "q_up_proj", on)
    return operators, tensors, exchanges + _gathered(shard, "mqa_key", 2.0 * tokens * d)


def _compressor(
    model: ModelSpec, shard: Sharding, kind: LayerKind, width: float, name: str, passes: Passes = EVERY_PASS
) -> Rows:
    """Entries of that width: two products in FP32, a softmax over the tokens of an entry, their weighted sum.

    Bytes an element in FP32: positions added (8), softmax (8), product (12), sum (4); entries that share tokens are
    copied out first, each twice as long (12 for both, what is pooled and its weight). The input is cast first (6 B an
    element). Neighbours need each other's tokens: what is pooled and its weights are gathered over all ranks of the
    sequence.
    """
    own, h, local, tokens = sizes(model), model.hidden_size, shard.local_tokens, shard.tokens
    columns = float(own.pooled_columns(type_of(kind), int(width)))
    pooled, shared = local * columns / 2.0, kind.attention == CSA
    moved = (32.0 + 24.0 * shared) * pooled + 6.0 * local * h
    rate = float(own.rate(type_of(kind)) or 1)
    made = 2.0 * tokens / rate * width
    operators = [
        Operator(
            f"{name}_proj",
            "gemm",
            W,
            local,
            columns,
            h,
            launches=2.0,
            issued=2.0,
            issued_backward=2.0 * sum(passes[1:]),
            passes=(FP32_PASSES * passes[0], FP32_PASSES * passes[1], FP32_PASSES * passes[2]),
            wide=True,
        ),
        moving(f"{name}_entries", W, moved, 1.5 * moved, launches=12.0 + 8.0 * shared, as_it_is=True),
    ]
    tensors = [
        Tensor(f"{name}_in", np.asarray(FP32 * local * h), as_it_is=True),
        Tensor(f"{name}_weighted", np.asarray(2.0 * FP32 * pooled), as_it_is=True),
        Tensor(f"{name}_entries", np.asarray(made * (1.0 + shard.ring))),
    ]
    exchanges = _gathered(shard, f"{name}_entries", made)
    if shared:
        exchanges += _gathered(shard, f"{name}_tokens", FP32 * tokens * columns, "sums")
    return operators, tensors, exchanges


def _indexer(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind) -> Rows:
    """The indexer of a layer: queries from the latent, keys from a compressor, a weight a head; scores, choice, loss.

    Queries and weights of a rank's tokens are gathered over its tensor-parallel group, each rank of which scores all.
    Its queries are copied, rotated and transformed (Hadamard): 16 B an element.
    """
    own, h, local, tokens = sizes(model), model.hidden_size, shard.local_tokens, shard.tokens
    heads, width, rank = float(own.index_n_heads), float(own.index_head_dim), float(model.q_lora_rank or 0)
    operators, tensors, exchanges = _compressor(model, shard, kind, width, "index_pool", CUT_OFF)
    turned = 16.0 * local * heads * width
    count, chosen = entries(model, kind, document(shard, on)), float(own.index_topk)
    operators += [
        Operator("index_q_proj", "gemm", W, local, heads * width, rank, passes=CUT_OFF),
        Operator("index_weight_proj", "gemm", W, local, heads, h, passes=CUT_OFF),
        moving("index_rotary", W, turned, turned, launches=6.0),
    ]
    shape = IndexShape(
        keys=count / 2.0,
        chosen=score_columns(count, own.index_topk),
        heads=heads,
        width=width,
        target_heads=np.asarray(model.num_attention_heads / shard.tp),
        target_width=float(model.head_dim),
        gathers=on.gathers_keys,
    )
    operators += index_operators(shape, tokens, count)
    tensors += [
        Tensor("index_q", np.asarray(2.0 * tokens * heads * width)),
        Tensor("index_chosen", np.asarray(tokens * (8.0 * min(chosen, max(count, 1.0)) + FP32 * heads)), as_it_is=True),
    ]
    cut, _ = cut_and_whole(shard)
    queries = np.asarray(2.0 * tokens * heads * (width + 1.0))
    exchanges += [
        Exchange("index_q_gather", "gather", W, queries, cut, 0.0),
        Exchange("index_q_gradient_scatter", "scatter", W, queries, 0.0, cut),
    ]
    return operators, tensors, exchanges


def _core(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind) -> Rows:
    """Attention of all heads to the window and the entries, and what it keeps.

    It is not named as that over keys of heads: neither its recomputation alone nor its swap exists.
    """
    tokens, d = shard.tokens, float(model.head_dim)
    heads, keys = np.asarray(model.num_attention_heads / shard.tp), seen(model, kind, document(shard, on))
    shape = (tokens, keys, heads, d, d)
    moved = row_bytes(tokens, keys, d) if on.gathers_keys else (0.0, 0.0)
    core = attending("mqa_attention", shape, 2.0 * keys, moved)
    tensors = [
        Tensor("mqa_out", np.asarray(2.0 * tokens * heads * d)),
        Tensor("mqa_stats", np.asarray(on.attention_stats_bytes * tokens * heads), as_it_is=True),
    ]
    return [core], tensors, []


def _output(model: ModelSpec, shard: Sharding) -> Rows:
    """Outputs joined again once their rotary part is turned back (4 B an element), down by groups, and up."""
    own, tokens, d = sizes(model), shard.tokens, model.head_dim
    elements = tokens * model.num_attention_heads / shard.tp * d
    down = Operator(
        "output_down_proj",
        "gemm",
        W,
        tokens,
        float(own.o_lora_rank),
        float(model.num_attention_heads * d / own.o_groups),
        own.o_groups / shard.tp,
    )
    up = Operator("attention_out_proj", "gemm", W, tokens, model.hidden_size, own.out_width / shard.tp)
    joined = moving("output_join", W, 4.0 * elements, 4.0 * elements, kind="movement")
    tensors = [
        Tensor("output_joined", np.asarray(2.0 * elements)),
        Tensor("output_low_rank", np.asarray(2.0 * tokens * own.out_width / shard.tp)),
    ]
    return [joined, down, up], tensors, []


def _gathered(shard: Sharding, name: str, rank_bytes: Floats, carries: SizeClass = "tokens") -> list[Exchange]:
    """Exchanges of rows that all ranks of the sequence need: gathered over tensor- and context-parallel ranks at once.

    `rank_bytes` of the tokens of a context-parallel rank. Nothing hides it: the layer waits. Backward gradients are
    scattered as far. Source: kvallgather_context_parallel.py, gather_from_sp_cp.
    """
    cut, whole = cut_and_whole(shard)
    message, steps = np.asarray(rank_bytes), shard.ring - 1.0
    return [
        Exchange(f"{name}_gather", "gather", W, message, cut, 0.0, carries=carries),
        Exchange(f"{name}_gradient_scatter", "scatter", W, message, 0.0, cut, carries=carries),
        Exchange(f"{name}_gradient_reduce", "reduce", W, message, 0.0, whole, carries=carries),
        Exchange(f"{name}_ring", "ring", W, message, steps, steps, carries=carries),
    ]


def _score_flops(model: ModelSpec, kind: LayerKind, seq: float, causal: bool, keys: float | None) -> float:
    """Scores and values against tokens and entries that a query sees, and an indexer's scores."""
    length, width = seq if keys is None else min(seq, 2.0 * keys), model.head_dim
    scored = attention_flops(1.0, seen(model, kind, length), model.num_attention_heads, width, width)
    return float(scored) + index_flops(model, kind, length)


COMPRESSED_COSTS: Final = AttentionCosts(compressed_rows, compressed_params, _score_flops, gathers_latents=True)
