"""Matrices of weights that Muon orthogonalises: every one of a layer, as its framework stores them.

A joined projection of queries, keys and values is taken apart; what tensor parallelism cuts is orthogonalised in its
pieces. Experts that one operator multiplies are one matrix. Embedding and head are Adam's.
Source: MindSpeed @028de58c core/optimizer/muon/emerging_optimizers.py (--muon-tp-mode blockwise, --muon-no-split-qkv
off) and Megatron-LM GroupedMLP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.workload.operators import MATRIX_KINDS, Matrices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from autodeploy.specs.model import ModelSpec
    from autodeploy.workload.operators import Operator, OperatorFeatures
    from cost_models.arrays import Floats

HEAD = "output_proj"
GROUPED = "output_down_proj"  # one weight, whose rows are cut among groups of heads


def matrices_of(
    operators: Iterable[Operator], model: ModelSpec, on: OperatorFeatures, copies: Floats | float = 0.0
) -> tuple[Matrices, ...]:
    """Of the operators of a layer; none where nothing is orthogonalised. copies : of other ranks' experts."""
    if not on.muon:
        return ()
    weighted = (op for op in operators if op.weighted and op.kind in MATRIX_KINDS and op.name != HEAD)
    return tuple(each for op in weighted for each in _of_operator(op, model, on, copies))


def _of_operator(op: Operator, model: ModelSpec, on: OperatorFeatures, copies: Floats | float) -> Iterator[Matrices]:
    experts = op.kind == "grouped_gemm"
    owned = op.runs * (op.groups - copies * experts)
    if op.name == "qkv_proj":
        whole = model.num_attention_heads * (model.head_dim + model.value_head_dim * model.attention_output_gate)
        keys, values = (model.num_key_value_heads * width for width in (model.head_dim, model.value_head_dim))
        for width in (whole, keys, values):
            yield Matrices(np.asarray(op.columns * (width / (whole + keys + values))), op.depth, op.runs)
    elif experts and on.grouped_gemm and not on.group_launches:
        # Stored as the input's width by that of all experts, or that of all experts by the output's width.
        joined = np.asarray(owned * (op.columns if op.name == "expert_up_proj" else op.depth))
        yield Matrices(joined, op.depth if op.name == "expert_up_proj" else op.columns, experts=True)
    elif op.name == GROUPED:
        yield Matrices(np.asarray(op.columns * op.groups), op.depth)
    else:
        yield Matrices(np.asarray(op.columns), op.depth, owned, experts=experts)
