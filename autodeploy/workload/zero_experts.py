"""Experts that return what they get (zero-computation experts, LongCat-Flash, arXiv 2509.01322, section 2.1.1).

MindSpeed-LLM sends their tokens around as it does those of the others: a second dispatcher permutes, exchanges and
sorts them, their rows are weighted, and go back the same way. What they save is the multiplications alone.
Source: MindSpeed-LLM @c77308a1, tasks/models/transformer/zero_experts_moe_layer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.workload import host_operators as host
from autodeploy.workload.mlp import expert_rows, held_tokens, permute_rows
from autodeploy.workload.operators import Exchange, Operator, OperatorFeatures, Sharding, Tensor

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from autodeploy.workload.mlp import Rows

W: Final = "mlp"
PREFIX: Final = "zero_"


def zero_rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> Rows:
    """Operators, tensors and exchanges of the tokens that such experts get, in one layer.

    Rows are multiplied by their weights (in 2 B, out 2 B an element); backward by the gradient (4 B), and the product
    of both is summed up for the weights' gradients (in 4 B, out 2 B, in 2 B). Their sum joins the experts' (6 B an
    element of a token), and their gradient the others' (6 B). It is assumed that they load ranks as the experts do.
    """
    h, choices = model.hidden_size, model.zero_experts_per_tok
    rows = expert_rows(shard, model, on, choices)
    elements = held_tokens(shard, on) * h
    operators, tensors, _ = permute_rows(model, shard, on, prefix=PREFIX, choices=choices, experts=model.n_zero_experts)
    counted = host.sizes(shard)
    operators += [
        Operator("zero_sizes", "vector", W, launches=0.0, issued=counted[0], issued_backward=counted[1]),
        Operator(
            "zero_weights",
            "vector",
            W,
            forward_bytes=4.0 * h * rows,
            backward_bytes=12.0 * h * rows,
            launches=1.0,
            issued=host.WEIGHTED.forward,
            issued_backward=host.WEIGHTED.backward,
            per_expert=True,
        ),
        Operator("zero_sum", "vector", W, forward_bytes=6.0 * elements, backward_bytes=6.0 * elements),
    ]
    tensors.append(Tensor("zero_in", np.asarray(2.0 * h * rows), per_expert=True))
    sent = np.asarray(2.0 * elements)
    exchanges = [
        Exchange("zero_dispatch", "dispatch", W, sent, choices=choices),
        Exchange("zero_combine", "combine", W, sent, choices=choices),
    ]
    return [operator._replace(routes=True) for operator in operators], tensors, exchanges
