"""Bytes of a layer's table in a run that computes in another format than 16 bits.

Tables are written for 16 bits, as nearly all large runs compute. What a run keeps in FP32 or as integers in any case
(`as_it_is`) stays; all else is as wide as the run's elements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from autodeploy.workload.operators import Exchange, LayerTable, Operator, Tensor

HALF_WORD = 2.0  # bytes of the elements that tables count


def in_format(table: LayerTable, element_bytes: float) -> LayerTable:
    """The table with elements of `element_bytes`; itself where they have 16 bits."""
    if element_bytes == HALF_WORD:
        return table
    wider = element_bytes / HALF_WORD
    return replace(
        table,
        operators=tuple(_operator(op, wider) for op in table.operators),
        tensors=tuple(_tensor(tensor, wider) for tensor in table.tensors),
        exchanges=tuple(_exchange(exchange, wider) for exchange in table.exchanges),
    )


def _operator(op: Operator, wider: float) -> Operator:
    if op.as_it_is:
        return op
    return op._replace(forward_bytes=op.forward_bytes * wider, backward_bytes=op.backward_bytes * wider)


def _tensor(tensor: Tensor, wider: float) -> Tensor:
    return tensor if tensor.as_it_is else tensor._replace(kept_bytes=np.asarray(tensor.kept_bytes * wider))


def _exchange(exchange: Exchange, wider: float) -> Exchange:
    return (
        exchange if exchange.as_it_is else exchange._replace(message_bytes=np.asarray(exchange.message_bytes * wider))
    )
