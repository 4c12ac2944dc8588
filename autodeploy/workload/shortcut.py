"""Layers with experts on a shortcut (ScMoE: arXiv 2404.05019; LongCat-Flash, arXiv 2509.01322, section 2.1.2).

A layer is two of attention and a dense MLP, one after the other; its experts read what the first dense MLP reads, and
their output joins the residual after the second. What is there twice stands as one row of two runs.
Source: MindSpeed-LLM @c77308a1, tasks/models/transformer/longcat_transformer_layer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.workload.operators import Operator

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from autodeploy.workload.mlp import Rows
    from autodeploy.workload.operators import Sharding

RUNS: Final = 2.0


def twice(rows: Rows) -> Rows:
    """What a layer has in both halves: operators of two runs, tensors of twice the bytes, exchanges twice a pass."""
    operators, tensors, exchanges = rows
    return (
        [op._replace(runs=RUNS * op.runs) for op in operators],
        [tensor._replace(kept_bytes=np.asarray(RUNS * tensor.kept_bytes)) for tensor in tensors],
        [
            each._replace(forward_count=RUNS * each.forward_count, backward_count=RUNS * each.backward_count)
            for each in exchanges
        ],
    )


def shortcut_sum(model: ModelSpec, shard: Sharding) -> Operator:
    """The experts' output joins the residual; backward their gradient joins that of the first dense MLP (6 B each)."""
    moved = 6.0 * shard.local_tokens * model.hidden_size
    return Operator("shortcut_sum", "vector", "mlp", forward_bytes=moved, backward_bytes=moved)
