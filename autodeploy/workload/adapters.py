"""Low-rank adapters beside the matrices of a frozen layer: what the frozen weights no longer cost, what adapters add.

A frozen matrix has no weight's gradient and keeps no input for one; its input's gradient stays. Beside a target, the
input goes down to the rank and up to the output's width. Source: arXiv 2106.09685; the cut over tensor-parallel ranks
as in PEFT (tuners/lora/tp_layer.py): beside a matrix cut by columns the way up is cut, beside one cut by rows the way
down, whose output is reduced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.workload.operators import MATRIX_KINDS, Exchange, LayerTable, Operator, Sharding, Tensor, accumulating
from autodeploy.workload.tensor_parallel import cut_and_whole

if TYPE_CHECKING:
    from autodeploy.workload.operators import OperatorFeatures
    from cost_models.arrays import Floats


@dataclass(frozen=True, slots=True)
class _Target:
    """Operator of a target, the tensor that is its input and would be kept for its weight, and how it is cut."""

    operator: str
    kept_input: str
    by_rows: bool


_TARGETS = {
    "linear_qkv": _Target("qkv_proj", "attention_norm_out", by_rows=False),
    "linear_proj": _Target("attention_out_proj", "", by_rows=True),  # attention keeps its output for itself
    "linear_fc1": _Target("mlp_up_proj", "mlp_norm_out", by_rows=False),
    "linear_fc2": _Target("mlp_down_proj", "mlp_activation_out", by_rows=True),
}
_HOOK = "gradient_accumulation"
GATHERED_AGAIN = "_regather"


def frozen_piece(table: LayerTable, on: OperatorFeatures) -> LayerTable:
    """A piece outside the layers (embedding, head) that has no adapters; nothing below the embedding has a gradient."""
    if not on.lora_rank:
        return table
    operators = tuple(_frozen(op) for op in table.operators)
    exchanges = table.exchanges
    if table.name == "embedding":
        operators = tuple(replace(op, backward_bytes=0.0, issued_backward=0.0) for op in operators)
        exchanges = tuple(replace(each, backward_count=0.0) for each in exchanges)
    none = np.zeros_like(table.dense_params)
    exchanges = tuple(_not_again(each, frozenset()) for each in exchanges)
    return replace(
        table,
        operators=operators,
        exchanges=exchanges,
        dense_params=none,
        frozen_params=np.asarray(table.dense_params + none),
    )


def with_adapters(table: LayerTable, shard: Sharding, on: OperatorFeatures) -> LayerTable:
    """A transformer layer of a frozen model, with the adapters of its targets; as it is where nothing is frozen."""
    if not on.lora_rank:
        return table
    rows = {op.name: op for op in table.operators}
    targets = [_TARGETS[name] for name in on.lora_targets]
    operators = [_frozen(op) for op in table.operators if op.name != _HOOK]
    exchanges = [_not_again(each, frozenset(t.operator for t in targets)) for each in table.exchanges]
    unread = {t.kept_input for t in _TARGETS.values()} - {t.kept_input for t in targets} - {""}
    tensors = [replace(t, kept_bytes=np.zeros_like(t.kept_bytes)) if t.name in unread else t for t in table.tensors]
    trained: Floats = np.zeros_like(table.dense_params)
    for target in targets:
        more, kept, sent, params = _adapter(rows[target.operator], target, shard, float(on.lora_rank))
        operators += accumulating(more, on)
        tensors.append(kept)
        exchanges += sent
        trained = np.asarray(trained + params)
    hook = replace(
        rows[_HOOK],
        backward_bytes=on.accumulation_bytes * trained,
        issued_backward=2.0 * len(targets),
    )
    return replace(
        table,
        operators=(*operators, hook),
        tensors=tuple(tensors),
        exchanges=tuple(exchanges),
        dense_params=trained,
        frozen_params=table.dense_params,
    )


def _frozen(op: Operator) -> Operator:
    return replace(op, frozen=True) if op.weighted and op.kind in MATRIX_KINDS else op


def _not_again(exchange: Exchange, trained: frozenset[str]) -> Exchange:
    """Inputs are gathered again for the gradient of a weight alone: not beside a frozen one without an adapter."""
    again = exchange.name.endswith(GATHERED_AGAIN) and exchange.beside not in trained
    return replace(exchange, backward_count=0.0) if again else exchange


def _adapter(
    base: Operator, target: _Target, shard: Sharding, rank: float
) -> tuple[list[Operator], Tensor, list[Exchange], Floats]:
    """Both products, the scaled sum with the base's output, the rows of the inner width, and who exchanges them."""
    name, window, tokens = f"lora_{base.name}", base.window, np.asarray(base.rows)
    rows = np.asarray(shard.local_tokens if target.by_rows else tokens)
    down = Operator(f"{name}_down", "gemm", window, rows=tokens, columns=rank, depth=base.depth)
    up = Operator(f"{name}_up", "gemm", window, rows=rows, columns=base.columns, depth=rank)
    # The scaled product is added to the base's output: two are read and one is written; backward a scaled gradient.
    output = rows * base.columns
    add = Operator(f"{name}_add", "vector", window, forward_bytes=6.0 * output, backward_bytes=4.0 * output)
    kept = Tensor(f"{name}_inner", np.asarray(2.0 * rows * rank))
    exchanges: list[Exchange] = []
    if target.by_rows:
        cut, whole = cut_and_whole(shard)
        inner = np.asarray(2.0 * tokens * rank)
        exchanges = [
            Exchange(f"{name}_scatter", "scatter", window, inner, cut, 0.0),
            Exchange(f"{name}_gradient_gather", "gather", window, inner, 0.0, cut),
            Exchange(f"{name}_reduce", "reduce", window, inner, whole, 0.0),
        ]
    return [down, up, add], kept, exchanges, np.asarray(rank * (base.depth + base.columns) + np.zeros_like(tokens))
