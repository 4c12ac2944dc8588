"""Residuals in several streams (mHC): maps of every token, what they move, and what a layer keeps of the streams.

Elements of a token that the kernels of half a layer move, for n streams of h: the maps' projection reads n h (a product
of this table); reading the half's input out of the streams n h + h; writing its output and mixing n h + h in, n h out,
and the copy of the result 2 n h. Backward reads streams and gradients again, and adds up the gradients of both ways.
Sources: mHC, arXiv 2512.24880, section 4.3 and table 2 (fused reads and writes); MindSpeed-LLM @c77308a1,
ops/npu_mhc.py (the copy). Sinkhorn iterations work on n^2 numbers in the same kernel. No Ascend rate of these kernels
is published: they take the bandwidth of other vector operators, assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.workload.operators import Operator, Sharding, Tensor

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from autodeploy.workload.operators import Window

Rows = tuple[list[Operator], list[Tensor]]
HALF_WORD, WORD = 2.0, 4.0


def stream_rows(model: ModelSpec, shard: Sharding, half: Window) -> Rows:
    """Maps and mixing of half a layer, and what is kept beside the streams themselves; nothing with one stream."""
    streams = model.hyper_connections
    if streams is None:
        return [], []
    n, tokens, h = float(streams.hc_mult), shard.local_tokens, model.hidden_size
    elements, maps = tokens * h, float(streams.map_width)
    read, written = n + 1.0, n + 1.0 + n + 2.0 * n
    back = (2.0 * n + 1.0 + n) + (2.0 * n + 1.0 + n + 1.0) + 3.0 * n
    operators = [
        Operator(f"{half}_stream_maps", "gemm", half, rows=tokens, columns=maps, depth=n * h, wide=True),
        Operator(
            f"{half}_streams",
            "vector",
            half,
            forward_bytes=HALF_WORD * (read + written) * elements,
            backward_bytes=HALF_WORD * back * elements,
            launches=3.0,
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
    return [Operator("stream_repeat", "vector", "mlp", forward_bytes=moved, backward_bytes=moved)]


def joined(model: ModelSpec, shard: Sharding) -> Rows:
    """Streams joined by weights of every token before the output head; they are kept for them."""
    if model.hyper_connections is None:
        return [], []
    n, tokens, h = float(model.residual_streams), shard.local_tokens, model.hidden_size
    elements = tokens * h
    operators = [
        Operator("stream_head_maps", "gemm", "mlp", rows=tokens, columns=n, depth=n * h, wide=True),
        Operator(
            "stream_head",
            "vector",
            "mlp",
            forward_bytes=HALF_WORD * (n + 1.0) * elements,
            backward_bytes=HALF_WORD * (3.0 * n + 1.0) * elements,
        ),
    ]
    return operators, [Tensor("stream_head_in", np.asarray(HALF_WORD * n * elements))]
