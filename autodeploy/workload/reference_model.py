"""The reference of preference tuning: a frozen copy of the model that reads every sequence once more, forward alone.

In MindSpeed-LLM's DPO it stands beside the policy, chunk by chunk of the same stages, and runs without gradients before
the policy in every forward pass; nothing of it is kept. With adapters it has some of its own, for its model is made by
the same function. Source: tasks/posttrain/dpo/dpo_model.py, DPOModel.__call__; dpo_trainer.py, _init_reference_model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from autodeploy.workload.operators import Exchange, LayerTable, Operator, OperatorFeatures

REFERENCE: Final = "reference_"
HOOK: Final = "gradient_accumulation"
# Stages send what both models made of each sequence, and as much comes back.
SENT_OF_A_SEQUENCE: Final = 2
# Bytes of a logit in the loss. Kept: those of both models joined in FP32, and the exponents. While it runs: two
# differences. Moved forward, for each model: cast (2 + 4), transposed (2 + 2), joined (4 + 4), maximum (4), difference
# and exponent (8 each), sum (4), two differences (8 each); backward: the picked ones' gradient (4), exponent's product
# (12), two sums (12 each), slices (8), cast and transposed (6). Source: posttrain/utils.py, compute_log_probs.
LOSS_KEPT_BYTES: Final = 8.0 + 4.0
LOSS_BESIDE_BYTES: Final = 8.0
LOSS_MOVED_BYTES: Final = (58.0, 54.0)
LOSS_OPERATORS: Final = 12.0
LOSS_REDUCED_BYTES: Final = 8.0  # of a token: the maximum and the sum of exponents, in FP32


def with_reference(table: LayerTable, on: OperatorFeatures) -> LayerTable:
    """A layer or piece of the policy with the reference's beside it; as it is where nothing is compared."""
    if not on.reference:
        return table
    return replace(
        table,
        operators=(*table.operators, *(_forward(op) for op in table.operators if op.name != HOOK)),
        exchanges=(*table.exchanges, *(_once(each) for each in table.exchanges if np.any(each.forward_count))),
        frozen_params=np.asarray(2.0 * table.frozen_params + table.dense_params),
    )


def _forward(op: Operator) -> Operator:
    return op._replace(name=f"{REFERENCE}{op.name}", passes=(op.passes[0], 0.0, 0.0), issued_backward=0.0)


def _once(exchange: Exchange) -> Exchange:
    beside = f"{REFERENCE}{exchange.beside}" if exchange.beside else ""
    return exchange._replace(name=f"{REFERENCE}{exchange.name}", backward_count=0.0, beside=beside, behind="")
