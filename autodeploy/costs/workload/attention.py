"""Attention of one layer over keys and values: grouped-query (multi-head where heads have their own) and latent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.workload import host_operators as host
from autodeploy.costs.workload.attention_types import AttentionCosts, LayerKind, shape_of
from autodeploy.costs.workload.attention_types import mean_keys as mean_keys_of
from autodeploy.costs.workload.operators import (
    ByOperator,
    Exchange,
    Operator,
    OperatorFeatures,
    Rows,
    Sharding,
    Tensor,
    Touches,
    column_exchanges,
    cut_and_whole,
    moving,
)
from autodeploy.costs.workload.ring_joins import ring_updates
from autodeploy.costs.workload.sparse_attention import (
    attending,
    attends_to_latents,
    attention_shape,
    index_flops_per_token,
    indexer_rows,
    latent_widths,
    row_bytes,
)
from autodeploy.specs.attention import latent_widths as widths_of_latents
from cost_models.compute import attention_flops

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Floats

W: Final = "attention"


def _rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind, projections: Rows) -> Rows:
    operators, tensors, exchanges = projections
    indexer = indexer_rows(model, shard, gathers=on.gathers_keys)
    for part in (indexer, _core(model, shard, on, kind), _output_gate(model, shard)):
        operators += part[0]
        tensors += part[1]
    operators += ring_updates(model, shard, on, _heads(model, shard)[0], _key_heads(model, shard))
    operators.append(_output_projection(model, shard))
    exchanges += _context_parallel(model, shard, on)
    return operators, tensors, exchanges


def _heads(model: ModelSpec, shard: Sharding) -> tuple[Floats, Floats]:
    """Query and key-value heads on a tensor-parallel rank; a key head is copied where there are fewer than ranks."""
    heads = np.asarray(model.num_attention_heads / shard.tp)
    return heads, np.asarray(np.maximum(model.num_key_value_heads / shard.tp, 1.0))


def _key_heads(model: ModelSpec, shard: Sharding) -> Floats:
    """Heads of keys and values on a rank; from a latent every head has its own once they are projected up."""
    return _heads(model, shard)[1 if model.attention.own_keys else 0]


def _output_gate(model: ModelSpec, shard: Sharding) -> tuple[list[Operator], list[Tensor]]:
    """The output times the sigmoid of its gate: reads both and writes one (6 B an element), which is kept with both.

    The gate is kept with the joined projection that it is a part of. One gate a head has a projection of its own, and
    is small beside what it opens: 4 B an element, and 10 B backward, where the product of output and gradient is
    written and summed up for the gate.
    """
    heads = _heads(model, shard)[0]
    elements = shard.tokens * heads * model.value_head_dim
    if model.attention_head_gate:
        gates = Operator("head_gate_proj", "gemm", W, shard.tokens, heads, model.hidden_size)
        gate = moving("output_gate", W, 4.0 * elements, 10.0 * elements)
        kept = 2.0 * shard.tokens * heads
        return [gates, gate], [Tensor("head_gates", kept), Tensor("attention_gated_out", np.asarray(2.0 * elements))]
    if not model.attention_output_gate:
        return [], []
    gate = moving("output_gate", W, 6.0 * elements, 10.0 * elements)
    return [gate], [Tensor("attention_gated_out", np.asarray(2.0 * elements))]


def _rotary(elements: Floats, shard: Sharding, on: OperatorFeatures) -> Operator:
    """RoPE, rotary embedding of queries and keys: two kernels, or a chain of operators where it is not fused.

    Bytes an element. Fused: reads and writes it once (4 B). As operators: half is negated (2 B), halves are joined
    (4 B), two products (8 B) and their sum (6 B). Source: Megatron-LM rotary_pos_embedding.py.
    """
    moved = (4.0 if on.fused_rotary else 20.0) * elements
    launches: Floats | float = 2.0 if on.fused_rotary else 10.0
    issued = host.of_rotation(shard, on) if on.makes_angles else (None, None)
    if on.makes_angles and on.rotates_documents and on.mean_keys is not None:
        launches = launches * on.documents * shard.micro_batch_size
    return moving("rotary", W, moved, moved, launches=launches, issued=issued[0], issued_backward=issued[1])


def _grouped_projections(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> Rows:
    h, d, tokens = model.hidden_size, model.head_dim, shard.tokens
    heads, kv_heads = _heads(model, shard)
    width = heads * d + kv_heads * (d + model.value_head_dim)
    if model.attention_output_gate:
        width = width + heads * model.value_head_dim
    operators = [Operator("qkv_proj", "gemm", W, tokens, width, h)]
    if model.rotates:
        operators.append(_rotary(tokens * (heads + kv_heads) * d, shard, on))
    if on.copies_heads:
        # Queries, keys and values are slices of one product: each is copied out, and its gradient in again.
        copied = 4.0 * tokens * width
        operators.append(moving("qkv_split", W, copied, copied, launches=3.0))
    # Where values are a slice that keeps the joined product, queries and keys are arrays of their own once rotated.
    # Context parallelism sends copies, values' too, and keeps those. Source: Transformer Engine @d0067d0d
    # context_parallel.py:1690; a norm of keys keeps its slice, and so the product.
    apart = on.flash_attention and on.slices_heads and model.rotates
    sent = (shard.ring * shard.ulysses > 1) & (apart and not model.qk_norm and not model.attention_output_gate)
    joined = np.where(sent, kv_heads * model.value_head_dim, width)
    tensors = [Tensor("qkv", np.asarray(2.0 * tokens * joined))]
    tensors.append(Tensor("rotated", np.asarray(2.0 * tokens * (heads + kv_heads) * d * float(apart))))
    if model.qk_norm:
        normed = 2.0 * tokens * (heads + kv_heads) * d
        operators.append(moving("qk_norm", W, 2.0 * normed, 3.0 * normed, launches=2.0))
        kept = normed
        if on.joins_heads:
            # Keys are a slice that keeps the whole product; queries are copied out where groups have several of them.
            kept = np.where(heads > kv_heads, 2.0 * tokens * heads * d, 0.0) + 2.0 * tokens * width * on.copies_heads
        tensors.append(Tensor("qk_norm_in", np.asarray(kept)))
    if model.rotates:
        tensors += _rotary_tables(shard, on, d)
    return operators, tensors, []


def _rotary_tables(shard: Sharding, on: OperatorFeatures, width: float) -> list[Tensor]:
    """Cosines and sines that each layer makes anew of its positions for queries, and again for keys.

    Transformer Engine's kernel keeps the angles, one array for all layers. Source: MindSpeed @028de58c
    core/fusions/fused_rope.py:65, ops/csrc/cann/npu_rotary_position_embedding.cpp:118; Megatron-LM
    rope_utils.py, _apply_rotary_pos_emb_bshd.
    """
    if not on.joins_heads or (on.fused_rotary and not on.copies_heads):
        return []
    positions = shard.seq_length / shard.cp
    return [Tensor("rotary_tables", np.asarray(4.0 * 2.0 * positions * width))]


def _latent_projections(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> Rows:
    """MLA projections and activation bytes: to latents on a rank's tokens, to heads on those of its group.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1; bytes per token as in Megatron's and MindSpeed's layers.
    """
    h, local, tokens = model.hidden_size, shard.local_tokens, shard.tokens
    heads, _ = _heads(model, shard)
    nope, rope, value = model.qk_nope_head_dim or 0, model.qk_rope_head_dim or 0, model.value_head_dim
    q_rank, kv_rank = model.q_lora_rank or 0, model.kv_lora_rank or 0
    query = heads * (nope + rope)
    operators, down = [], kv_rank + rope + q_rank
    rows, columns = (tokens, down / shard.tp) if on.cuts_latents else (local, down)
    operators.append(Operator("latent_down_proj", "gemm", W, rows, columns, h, launches=2.0))
    norm_bytes = 4.0 * local * (q_rank + kv_rank)
    operators.append(moving("latent_norm", W, norm_bytes, 2 * norm_bytes, launches=2.0))
    operators.append(Operator("q_up_proj", "gemm", W, tokens, query, q_rank or h))
    absorbed = attends_to_latents(model, shard.seq_length, gathers=on.gathers_keys)
    operators += (
        _absorbed_projections(model, shard)
        if absorbed
        else [Operator("kv_up_proj", "gemm", W, tokens, heads * (nope + value), kv_rank)]
    )
    operators.append(_rotary(tokens * (heads + 1.0) * rope, shard, on))
    query_wide, value_wide = _kernel_widths(model, on)
    if not on.rect_fa and not absorbed:
        # Key heads are joined from their shared rotary part and their own part; V is padded to Q's width. Where all are
        # padded to one width, each is read and written once more, and the output is cut back (`_kernel_widths`).
        padded = 2.0 * (nope + rope - value)
        if query_wide > nope + rope:
            padded = 2.0 * (nope + rope + query_wide) + (value + value_wide) + 2.0 * value
        joined = 2.0 * tokens * heads * (2.0 * (nope + rope) + padded)
        operators.append(moving("concat_and_pad", W, joined, joined, kind="movement", launches=3.0))
    # The latents' norms keep their input in the precision they compute in; their output is what is gathered.
    operand = tokens if on.keeps_gathered else local
    normed = 2.0 * operand * (q_rank + kv_rank + rope) * (not on.frozen)  # read by weights' gradients alone
    inside = 0.0 if on.cuts_latents else 1.0  # norms are in what recomputes the projections up
    tensors = [
        Tensor("latents", np.asarray(on.norm_bytes * local * (q_rank + kv_rank) + normed * (1.0 - inside))),
        Tensor("latents_normed", np.asarray(normed * inside)),
        Tensor("latent_q", np.asarray(2.0 * tokens * heads * query_wide)),
        Tensor("latent_kv", np.asarray(2.0 * tokens * heads * (query_wide + value_wide))),
    ]
    tensors += [each._replace(name="latent_tables") for each in _rotary_tables(shard, on, rope)]
    if absorbed:  # heads multiply the latents themselves
        tensors[3] = Tensor("latent_kv", np.asarray(2.0 * tokens * heads * (kv_rank + rope)))
    exchanges = _latent_exchanges(model, shard, on, absorbed=absorbed)
    return operators, tensors, exchanges + (_cut_latents(model, shard, on) if on.cuts_latents else [])


def _latent_exchanges(model: ModelSpec, shard: Sharding, on: OperatorFeatures, *, absorbed: bool) -> list[Exchange]:
    """The latents of each rank's own tokens are gathered for the projections up to its heads: of queries, of keys and
    values, and the rotary key, which no weight multiplies and nothing gathers again.

    Where MindSpeed-LLM recomputes the projections it has two of each latent, keys' apart from values' and rotary parts
    apart from others, and gathers each latent beside the work before it. Every product gathers its input all the same:
    that of the wrapped function takes the place of a function that linear layers have bound before
    (`regathers_latents`). A latent is then gathered three times in each forward pass and in its replay, and twice
    backward, where its gradient is scattered twice: all that comes with the recomputation is counted and priced as
    its own, although regathers and scatters run beside products.
    Source: Megatron-LM multi_latent_attention.py; MindSpeed-LLM @c77308a1 mla_up_proj_overlap_tp_comm.py,
    NoAllGatherContext; Megatron-LM core_v0.12.1 tensor_parallel/layers.py:62.
    """
    cut, _ = cut_and_whole(shard)
    latents = {"q": (model.q_lora_rank or 0, "q_up_proj"), "kv": (model.kv_lora_rank or 0, "kv_up_proj")}
    exchanges: list[Exchange] = []
    alone = model.qk_rope_head_dim or 0
    if absorbed:  # heads multiply the latent of keys and values itself
        alone += latents.pop("kv")[0]
    if on.regathers_latents:
        rope = np.asarray(2.0 * shard.tokens * (model.qk_rope_head_dim or 0))
        exchanges.append(Exchange("split_rope_gather", "gather", W, rope, 0.0, 0.0, recomputed_count=cut))
    for name, (rank, product) in latents.items():
        size = np.asarray(2.0 * shard.tokens * rank)
        if not rank:
            continue
        exchanges += column_exchanges(shard, f"latent_{name}", W, size, product, on)
        if on.regathers_latents:
            more = Exchange(f"split_{name}_gather", "gather", W, size, 0.0, 0.0, recomputed_count=5.0 * cut)
            exchanges += [more, more._replace(name=f"split_{name}_scatter", kind="scatter", recomputed_count=cut)]
    size = np.asarray(2.0 * shard.tokens * (0 if on.cuts_latents else alone))  # cut, it was whole before its split
    exchanges.append(Exchange("latent_key_gather", "gather", W, size, cut, 0.0))
    exchanges.append(Exchange("latent_key_scatter", "scatter", W, size, 0.0, cut))
    return exchanges


def _absorbed_projections(model: ModelSpec, shard: Sharding) -> list[Operator]:
    """Queries to the latent and outputs from it, instead of keys and values from the latent: as many FLOPs a token.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.2.
    """
    heads, _ = _heads(model, shard)
    nope, latent, value = float(model.qk_nope_head_dim or 0), float(model.kv_lora_rank or 0), model.value_head_dim
    return [
        Operator("kv_up_proj", "gemm", W, shard.tokens, latent, nope, heads),
        Operator("value_up_proj", "gemm", W, shard.tokens, float(value), latent, heads),
    ]


def _cut_latents(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> list[Exchange]:
    """Collectives of down projections that are cut by columns: each gathers hidden states as its input, and its output
    is gathered whole before a rank keeps its own tokens' latents, whose gradient is gathered in turn.

    Source: Megatron-LM core_v0.12.1 multi_latent_attention.py, get_query_key_value_tensors.
    """
    products = 2.0 if model.q_lora_rank is not None else 1.0
    latent_bytes = np.asarray(2.0 * shard.tokens * sum(widths_of_latents(model)))
    hidden = np.asarray(2.0 * shard.tokens * model.hidden_size)
    inputs = [each.often(products) for each in column_exchanges(shard, "down", W, hidden, "latent_down_proj", on)]
    cut, _ = cut_and_whole(shard)
    return [*inputs, Exchange("latent_output_gather", "gather", W, latent_bytes, np.where(shard.tp > 1, 1.0, 0.0), cut)]


def _core(
    model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind
) -> tuple[list[Operator], list[Tensor]]:
    if attends_to_latents(model, shard.seq_length, gathers=on.gathers_keys):
        return _latent_core(model, shard, on)
    heads, _ = _heads(model, shard)
    qk, value, tokens, seq = float(model.qk_head_dim), model.value_head_dim, shard.tokens, shard.seq_length
    out = Tensor("attention_out", np.asarray(2.0 * tokens * heads * value))
    # Ulysses exchanges the output back to the sequence: the kernel keeps it before, the output projection after.
    exchanged = Tensor("attention_out_exchanged", np.where(shard.ulysses > 1, out.kept_bytes, 0.0))
    if on.flash_attention:
        qk, padded_value = _kernel_widths(model, on)
        # With V padded the kernel keeps its own padded output, and the output projection the slice of it.
        padded_out = Tensor("attention_out_padded", np.asarray(2.0 * tokens * heads * padded_value))
        keys, row = mean_keys_of(kind, seq), seq
        if on.mean_keys is not None:
            keys, row = min(keys, on.mean_keys), min(seq, 2.0 * on.mean_keys)
        stats = Tensor("softmax_stats", np.asarray(on.attention_stats_bytes * tokens * heads), as_it_is=True)
        shape = (tokens, keys, heads, qk, padded_value)
        core = attending("core_attention", shape, row / shard.ring, (0.0, 0.0))
        return [core], [out, exchanged, stats] if padded_value == value else [out, exchanged, padded_out, stats]
    core_rows = _materialised_core(model, shard, on, heads)
    return core_rows, [out, exchanged, _score_tensor(model, shard, on, heads)]


# Widths that MindSpeed-LLM pads heads to unless it is told otherwise (--padded-base-length).
PADDED_TO: Final = 128.0


def _kernel_widths(model: ModelSpec, on: OperatorFeatures) -> tuple[float, float]:
    """Widths of query and value heads as a kernel of attention gets them.

    V as wide as Q, or with `padded_heads`, where they differ, both the next multiple of PADDED_TO.
    Source: MindSpeed-LLM @c77308a1 multi_latent_attention.py, fa_padding_length (layout SBH without
    --mla-fa-without-pad; BNSD pads V to Q's width); @579b4ed2 (2024) alike, at a fixed 256.
    """
    qk, value = float(model.qk_head_dim), float(model.value_head_dim)
    if on.rect_fa or qk == value:
        return qk, value
    if on.padded_heads:
        qk = PADDED_TO * np.ceil(max(qk, value) / PADDED_TO)
    return float(qk), float(qk)


def _latent_core(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> tuple[list[Operator], list[Tensor]]:
    """Attention of all heads to the chosen latents, and what it keeps: queries are kept as wide as a latent."""
    heads, _ = _heads(model, shard)
    tokens, value = shard.tokens, model.value_head_dim
    keys, qk, latent = attention_shape(model, shard.seq_length, gathers=on.gathers_keys)
    keys = keys if on.mean_keys is None else min(keys, on.mean_keys)
    shape = (tokens, keys, heads, qk, latent)
    moved = row_bytes(tokens, keys, qk) if on.gathers_keys else (0.0, 0.0)
    core = attending("core_attention", shape, 2.0 * keys / shard.ring, moved)
    tensors = [
        Tensor("attention_out", np.asarray(2.0 * tokens * heads * value)),
        Tensor("attention_out_latent", np.asarray(2.0 * tokens * heads * latent)),
        Tensor("softmax_stats", np.asarray(on.attention_stats_bytes * tokens * heads), as_it_is=True),
    ]
    return [core], tensors


# Bytes per score of operators of their own, forward and backward, around attention with biases of distances. A row of
# biases a head: the product is scaled (4) and the row added (4); backward it is scaled (4). A square a head: mask and
# biases are added up (4) and multiplied (4), the product is scaled (4), both are added (6), scores are held above the
# least number (4), without a fused scale-mask-softmax; backward that comparison is five operators (equal 3, half 4,
# where 7, less 3, filled 5) beside the scaling (4). Source: MindSpeed-LLM branches bk_origin_23
# (ascendspeed/model/transformer.py, CoreAttention.forward) and 1.0.RC1 (modellink/model/transformer.py,
# core_attention_forward); PyTorch tools/autograd/derivatives.yaml, maximum.
BIASED, BIASED_BY_SQUARE = (8.0, 4.0), (22.0, 26.0)
HELD_SCORES = 2.0  # of the comparison's input, which its backward pass reads


def _materialised_core(model: ModelSpec, shard: Sharding, on: OperatorFeatures, heads: Floats) -> list[Operator]:
    """Attention with the whole score matrix in device memory: two batched products around softmax and dropout.

    All s x s scores are computed. Bytes per score: products write and read 2 + 2, scale-mask-softmax 2 + 2, dropout
    2 + 2 + 1, and those of BIASED.
    """
    qk, value = model.qk_head_dim, model.value_head_dim
    seq, batch_heads = shard.seq_length, shard.micro_batch_size * heads / shard.cp
    scores = batch_heads * seq * seq
    per_score = 4.0 + (5.0 if on.attention_dropout else 0.0)
    ahead, back = (BIASED_BY_SQUARE if on.square_alibi else BIASED) if model.alibi else (0.0, 0.0)
    return [
        Operator("scores", "gemm", W, seq, seq, float(qk), batch_heads, wide=True, weighted=False),
        moving("softmax_dropout", W, (per_score + ahead) * scores, (per_score + 4.0 + back) * scores, launches=2.0),
        Operator("weighted_values", "gemm", W, seq, float(value), seq, batch_heads, wide=True, weighted=False),
    ]


def _score_tensor(model: ModelSpec, shard: Sharding, on: OperatorFeatures, heads: Floats) -> Tensor:
    """5 a s^2 b bytes with dropout: softmax output, dropout mask and output (Korthikanti, arXiv:2205.05198)."""
    scores = shard.micro_batch_size * heads / shard.cp * shard.seq_length**2
    held = HELD_SCORES if model.alibi and on.square_alibi else 0.0
    return Tensor("scores", np.asarray(((5.0 if on.attention_dropout else 2.0) + held) * scores))


def _output_projection(model: ModelSpec, shard: Sharding) -> Operator:
    heads, _ = _heads(model, shard)
    return Operator("attention_out_proj", "gemm", W, shard.tokens, model.hidden_size, heads * model.value_head_dim)


def _context_parallel(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> list[Exchange]:
    """Ring attention: keys and values pass ring - 1 times forward, with their gradients twice that backward.

    Ulysses: queries, keys, values and the output change from sequence to heads and back, in both passes.
    Source: features of MindSpeed, megatron_cp_algo and ulysses_cp_algo.
    """
    heads = _heads(model, shard)[0]
    key_value = _key_heads(model, shard) * (model.qk_head_dim + model.value_head_dim)
    if model.sparse_attention is not None:
        # The indexer's keys pass too; heads that attend to latents need these alone, whole on every rank.
        if attends_to_latents(model, shard.seq_length, gathers=on.gathers_keys):
            key_value = np.full_like(heads, latent_widths(model)[0])
        key_value = key_value + model.sparse_attention.index_head_dim
    ring_chunk = np.asarray(2.0 * shard.tokens * key_value)
    exchanged = np.asarray(2.0 * shard.tokens * (heads * (model.qk_head_dim + model.value_head_dim) + key_value))
    ring_steps = shard.ring - 1.0
    return [
        Exchange("key_value_ring", "ring", W, ring_chunk, ring_steps, 2.0 * ring_steps),
        Exchange("head_exchange", "heads", W, exchanged, 1.0, 1.0),
    ]


def _grouped_params(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind) -> tuple[int, Floats]:
    """A key-value head is copied where there are fewer heads than ranks."""
    heads, kv_heads = _heads(model, shard)
    widths = (heads + kv_heads) * (model.head_dim + model.value_head_dim)
    gate = heads * (model.value_head_dim * model.attention_output_gate + model.attention_head_gate)
    return model.attention.vectors(model, "full_attention"), np.asarray(model.hidden_size * (widths + gate))


def _latent_params(model: ModelSpec, shard: Sharding, on: OperatorFeatures, kind: LayerKind) -> tuple[int, Floats]:
    """Down projections and the indexer are whole on every rank."""
    latent = sum(widths_of_latents(model)) * model.hidden_size
    cut = (model.attention_params - model.indexer_params - latent) / shard.tp
    whole = cut + model.indexer_params + (latent / shard.tp if on.cuts_latents else latent)
    return model.attention.vectors(model, "full_attention"), np.asarray(whole)


def _score_flops(model: ModelSpec, kind: LayerKind, seq: float, causal: bool, keys: float | None) -> float:
    """Scores and values against the keys that a query sees, or chooses, and an indexer's scores against all."""
    shape = shape_of(model, kind)
    columns, qk, value = mean_keys_of(kind, seq), model.qk_head_dim, model.value_head_dim
    if model.sparse_attention is not None:
        columns, qk, value = attention_shape(model, seq)
    elif not causal:
        columns = float(seq)
    if keys is not None:
        columns = min(columns, keys)
    flops = float(attention_flops(1.0, columns, shape.num_attention_heads, qk, value))
    return model.halves * (flops + index_flops_per_token(shape, seq))


CACHE_BYTES: Final = 2.0  # of an element of keys and values, in 16 bits


def _grouped_cache(model: ModelSpec, tp: int) -> tuple[float, float, float]:
    """Heads are cut over the ranks, and copied where there are fewer heads than ranks."""
    key, value = model.head_dim, model.value_head_dim
    return CACHE_BYTES * max(model.num_key_value_heads / tp, 1.0) * (key + value), float(key), float(value)


def _latent_cache(model: ModelSpec, tp: int) -> tuple[float, float, float]:
    """One latent and one rotary key for all heads, on every rank, which queries and outputs multiply with.

    The projections up to the heads are absorbed into those of queries and outputs, with as many products a token.
    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.2.
    """
    _, latent, rope = widths_of_latents(model)
    return CACHE_BYTES * (latent + rope), float(latent + rope), float(latent)


def _shares(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> ByOperator | None:
    """Shares of a dense layer with grouped-query attention, fractions; None of attention with other products.

    Keys are the second product, the output projection the fourth, up (of a gated MLP) the sixth. What the output
    projection and its reduce-scatter made stays, so that a compiled layer does not multiply again, and the residual is
    one addition away. Without a reduce-scatter the residual is made again, product and all. Eager layers keep the
    seventh product too, down, and its reduce-scatter, which nothing reads again; compiled ones keep what is read.
    """
    if model.attention_output_gate or model.attention_head_gate:
        return None
    one = np.ones_like(shard.tp)
    heads = model.num_attention_heads / shard.tp
    kv_heads = np.maximum(model.num_key_value_heads / shard.tp, 1.0)
    keys = kv_heads * model.head_dim
    key_share = np.asarray(keys / (heads * model.head_dim + keys + kv_heads * model.value_head_dim))
    up_share = 0.5 * one if model.is_gated else 0.0 * one
    cut = cut_and_whole(shard)[0]
    residual = 1.0 - cut
    rows = shard.tokens + cut * shard.local_tokens
    norms = ("attention_norm_cast", "attention_norm_out", "mlp_norm_cast", "mlp_norm_out")
    gathered = ("attention_gathered", "mlp_gathered")
    return ByOperator(
        tensors={
            **dict.fromkeys((*norms, *gathered, "rotated", "qk_norm_in", "mlp_activation_out"), one),
            "qkv": key_share,
            "mlp_norm_in": residual,
            "mlp_up_out": up_share,
        },
        operators={
            **dict.fromkeys(("attention_norm", "mlp_norm", "rotary", "qk_norm", "qkv_split", "mlp_activation"), one),
            "qkv_proj": key_share,
            "attention_out_proj": residual,
            "mlp_up_proj": up_share,
        },
        kept_bytes=np.asarray(0.0 if on.torch_compiled else on.element_bytes * rows * model.hidden_size) * one,
    )


# Of all that attends with scores over heads' keys.
_CHOICES: Final = {
    "core_attn": Touches(
        ("scores", "softmax_stats"), ("core_attention", "scores", "softmax_dropout", "weighted_values")
    ),
    "swap_core_attn_out": Touches(("attention_out",)),  # MindSpeed-LLM multi_latent_attention.py:1186; statistics stay
}
_SWAPPED: Final = ("attention_out", "attention_out_exchanged", "attention_out_padded", "softmax_stats")
GROUPED_COSTS: Final = AttentionCosts(
    lambda model, shard, on, kind: _rows(model, shard, on, kind, _grouped_projections(model, shard, on)),
    _grouped_params,
    _score_flops,
    _grouped_cache,
    shares=_shares,
    choices={
        **_CHOICES,
        "swap_attention": Touches(("qkv", "rotated", *_SWAPPED)),
        # PyTorch's selective checkpointing by operator: every second product, and all that is no product.
        "by_operator": Touches(
            (
                *("attention_norm_cast", "attention_norm_out", "qkv", "rotated", "qk_norm_in"),
                *("mlp_norm_in", "mlp_norm_cast", "mlp_norm_out", "mlp_up_out", "mlp_activation_out"),
                *("attention_gathered", "mlp_gathered"),
            ),
            (
                *("attention_norm", "qkv_proj", "qkv_split", "qk_norm", "rotary", "attention_out_proj"),
                *("mlp_norm", "mlp_up_proj", "mlp_activation"),
            ),
            ("attention_gather", "attention_reduce", "mlp_gather"),
        ),
    },
)
_UP_PROJECTED: Final = ("kv_up_proj", "rotary", "concat_and_pad")
LATENT_COSTS: Final = AttentionCosts(
    lambda model, shard, on, kind: _rows(model, shard, on, kind, _latent_projections(model, shard, on)),
    _latent_params,
    _score_flops,
    _latent_cache,
    gathers_latents=True,
    choices={
        **_CHOICES,
        "swap_attention": Touches(("latent_q", "latent_kv", *_SWAPPED)),
        "mla_up_proj": Touches(
            ("latents_normed", "latent_q", "latent_kv", "latent_tables"),
            ("q_up_proj", *_UP_PROJECTED),
            (
                *("latent_q_gather", "latent_kv_gather", "split_rope_gather"),
                *("split_q_gather", "split_q_scatter", "split_kv_gather", "split_kv_scatter"),
            ),
        ),
        # Keys and values without queries: the larger part of the bytes for the smaller products.
        "mla_kv_up_proj": Touches(("latent_kv",), _UP_PROJECTED, ("latent_kv_gather",)),
    },
)
