"""A model's generation as the operator tables of its forward pass describe it, with rows = sequences.

Tables are made for one token on one rank; products keep their weights' shapes and what a token adds. Decoding of a
batch has as many rows as sequences, a prompt as many as tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.workload.attention_types import shape_of, unmeasured_types
from autodeploy.costs.workload.kinds import ATTENTION
from autodeploy.costs.workload.layers import embedding_table, head_table, layer_kinds, layer_table
from autodeploy.costs.workload.operators import MATRIX_KINDS, OperatorFeatures, Sharding
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from cost_models.generation import Cache, Product, RankWork

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.costs.workload.operators import LayerTable
    from autodeploy.specs.model import ModelSpec

# Engines run fused kernels, and no layer keeps anything for a backward pass.
FUSED = OperatorFeatures(fused_operators=True, fused_router=True, row_index=True)
HALF_WORD, BYTE = 2.0, 1.0


def sharding(tp: int, ep: int, tokens: float = 1.0, seq_length: float = 1.0) -> Sharding:
    """The cut of `tokens` tokens in sequences of `seq_length` over a tensor-parallel group.

    Experts lie whole over a group of ep ranks, or are cut like everything else where there is none.
    """
    return Sharding(
        tp=np.array([float(tp)]),
        cp=np.ones(1),
        ulysses=np.ones(1),
        ep=np.array([float(ep)]),
        etp=np.array([1.0 if ep > 1 else float(tp)]),
        micro_batch_size=np.array([tokens / seq_length]),
        sequence_parallel=np.array([False]),
        gathers_tokens=np.array([False]),
        seq_length=seq_length,
    )


@lru_cache(maxsize=256)  # engines, their modes and limits have it in common
def rank_work(model: ModelSpec, tp: int, dp: int, ep: int, *, weight_bytes: float = HALF_WORD) -> RankWork:
    """Work and memory of one rank.

    dp : data-parallel ranks whose batches reach the same experts. ep : ranks over which experts lie, tp x dp or 1.
    weight_bytes : of an element of a linear layer's weight: 2, in 8-bit formats 1.
    """
    for name in sorted(unmeasured_types(model)):
        raise UnsupportedError(Message("common.is_not_modelled_yet", what=name.replace("_", " ")), path="/model")
    shard, layers = sharding(tp, ep), layer_kinds(model)
    products: list[Product] = []
    caches: list[Cache] = []
    reduced = reduces = vector = resident = 0.0
    for kind, count in layers:
        table = layer_table(model, shard, FUSED, kind)
        products += _products(table, model, float(count), tp, dp, ep)
        caches.append(_cache(shape_of(model, kind), tp, float(count), kind[1]))
        reduced_layer = _reduced(table, 2.0 * model.hidden_size if kind[0] == "moe" and tp > 1 else 0.0)
        reduced, reduces = reduced + count * reduced_layer[0], reduces + count * reduced_layer[1]
        vector += count * _vector_bytes(table)
        resident += count * weight_bytes * float((table.dense_params + table.expert_params)[0])
    head, embedding = head_table(model, shard, FUSED), embedding_table(model, shard, FUSED)
    output = next(op for op in head.operators if op.kind in MATRIX_KINDS)
    products.append(Product(float(np.max(output.columns)), float(np.max(output.depth)), 1.0, wide=True, last_only=True))
    resident += HALF_WORD * float((head.dense_params + embedding.dense_params)[0])
    return RankWork(
        layers=float(model.num_hidden_layers),
        expert_layers=float(model.num_moe_layers),
        products=tuple(products),
        caches=tuple(caches),
        reduced_bytes=reduced,
        reduces=reduces,
        vector_bytes=vector,
        weights_bytes=resident,
    )


def _products(table: LayerTable, model: ModelSpec, count: float, tp: int, dp: int, ep: int) -> Iterable[Product]:
    """The products of a layer's table; experts as one with their rows for one token of the rank."""
    for op in table.operators:
        if op.kind not in MATRIX_KINDS:
            continue
        columns, depth = float(np.max(op.columns)), float(np.max(op.depth))
        if op.kind == "gemm":
            yield Product(columns, depth, count, wide=op.wide)
            continue
        experts = float(np.max(op.groups))
        # Tokens are at home on every rank of a tensor-parallel group; whole experts work on each of them once.
        copies = tp if ep > 1 else 1
        yield Product(
            columns,
            depth,
            count,
            experts=experts,
            chosen=(model.num_experts_per_tok or 0) / (model.n_routed_experts or 1),
            rows_per_token=float(np.max(op.rows)) * experts / copies,
            group_ranks=float(dp if ep > 1 else 1),
        )


def _cache(model: ModelSpec, tp: int, count: float, window: int | None) -> Cache:
    """Keys and values of layers of one kind."""
    cached = ATTENTION[model.attention.name].cached
    assert cached is not None
    token_bytes, qk, value = cached(model, tp)
    return Cache(
        layers=count,
        token_bytes=token_bytes,
        heads=model.num_attention_heads / tp,
        qk_dim=qk,
        v_dim=value,
        prompt_qk_dim=float(model.qk_head_dim),
        prompt_v_dim=float(model.value_head_dim),
        window=None if window is None else float(window),
    )


def _reduced(table: LayerTable, routed_bytes: float) -> tuple[float, float]:
    """Bytes of the forward pass's all-reduces for one token, and how many there are.

    routed_bytes : of a token where experts are cut or lie over the tensor-parallel group: engines add up what routed
    and shared experts give, and reduce it once.
    """
    reduces = [x for x in table.exchanges if x.kind == "reduce" and np.max(x.message_bytes * x.forward_count) > 0.0]
    if routed_bytes:
        reduces = [x for x in reduces if x.window == "attention"]
    once = [(routed_bytes, 1.0)] if routed_bytes else []
    sums = [*((float(np.max(x.message_bytes)), float(np.max(x.forward_count))) for x in reduces), *once]
    return sum(size * count for size, count in sums), sum(count for _, count in sums)


def _vector_bytes(table: LayerTable) -> float:
    """Bytes that the vector and movement operators of a layer move for one token of a prompt."""
    return sum(float(np.max(op.forward_bytes)) for op in table.operators if op.kind in ("vector", "movement"))
