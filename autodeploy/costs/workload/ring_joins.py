"""Pieces of sequences that attention over a ring of ranks computes apart, joined by operators of their own.

heads, key_heads : of queries, and of keys and values, on a rank [n].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.workload import host_operators as host
from autodeploy.costs.workload.operators import Operator, moving

if TYPE_CHECKING:
    from autodeploy.costs.workload.operators import OperatorFeatures, Sharding
    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Floats

# Bytes of a row's statistics in the operators that join two pieces, of a head: eight numbers of 4 B each in the
# maximum, two differences, two products, a sum and two quotients (96 each) and two powers (64 each); as one operator
# four arrays in and two out.
STATISTICS, FUSED_STATISTICS = 896.0, 192.0
# Bytes an element of the output, in FP32 but for its 16 bits: two scales repeated (8), two products (10 each), their
# sum (12), its cast (6); of whole sequences both scales are put into the order of the output (8 each). One operator: 6.
JOINED_PIECES, IN_ORDER, FUSED_PIECES = 46.0, 16.0, 6.0
# Operators that the host issues for a step over whole sequences: ten for the statistics, four for the scales, four for
# the output, one for the attention, and half of the time three copies; backward attention and three sums.
JOINED_STEP = host.Issued(20.5, 4.0)
# Once a ring: the mask's two, keys joined to values; backward cleared sums, copies of keys and values, three sums.
JOINED_RING = host.Issued(3.0, 12.0)


def ring_updates(
    model: ModelSpec, shard: Sharding, on: OperatorFeatures, heads: Floats, key_heads: Floats
) -> list[Operator]:
    """Operators around the attention of pieces of sequences, in every step of a ring.

    Each rank holds two pieces of every document and computes whole rows against half of the keys, or half of the rows
    against all keys. Of packed documents, halves of keys and values, queries, output and its gradient are picked by
    index on half of the steps; of whole sequences they are slices, and half of the output is copied back. Backward:
    gradients are added up (6). Statistics, output and what is picked are three operators of this table, with the small
    ones around them; the host also cuts the statistics of packed documents by document and joins them again, six times
    a step. Whole sequences are joined so by MindSpeed; Transformer Engine joins statistics beside the attention of the
    next step and adds up the outputs behind the last.
    Source: MindSpeed @028de58c context_parallel: tnd_forward_fetch, tnd_out_update, causal_out_update, forward_update,
    tnd_grad_update, causal_grad_update, which are those of core_r0.7.0 (2024). TransformerEngine v2.1
    pytorch/attention.py, AttnFuncWithCPAndKVP2P, as in v1.0 and v2.18: flash_attn_fwd_out_correction.
    """
    packed = on.mean_keys is not None
    if not (packed or on.joins_pieces) or not np.any(shard.ring > 1):
        return []
    key_value = key_heads * (model.qk_head_dim + model.value_head_dim)
    query, out = heads * model.qk_head_dim, heads * model.value_head_dim
    steps = np.asarray(shard.ring - 1.0)
    once = np.where(shard.ring > 1, 1.0, 0.0)
    if not packed and on.joins_pieces == "at_the_end":
        return [_joined_at_the_end(shard, query, key_value, out)]
    update = FUSED_PIECES if on.fused_ring_update else JOINED_PIECES + (0.0 if packed else IN_ORDER)
    joined = 0.75 * (update * out + (FUSED_STATISTICS if on.fused_ring_update else STATISTICS) * heads)
    if packed:
        documents = on.documents * shard.micro_batch_size
        forward, backward = joined + 3.0 * out + key_value, 4.5 * query + 3.0 * out + 5.5 * key_value
        issued = steps * (3.0 if on.fused_ring_update else 3.0 + 6.0 * documents), steps * 3.0
        launches = 3.0
    else:
        forward, backward = joined + out, 4.5 * (query + key_value)
        a_step = 3.5 if on.fused_ring_update else JOINED_STEP.issued
        issued = (
            steps * a_step + once * JOINED_RING.issued,
            steps * JOINED_STEP.issued_backward + once * JOINED_RING.issued_backward,
        )
        launches = 2.0
    return [
        moving(
            "ring_update",
            "attention",
            np.asarray(steps * shard.tokens * forward),
            np.asarray(steps * shard.tokens * backward),
            launches=np.asarray(steps * launches),
            issued=np.asarray(issued[0]),
            issued_backward=np.asarray(issued[1]),
        )
    ]


def _joined_at_the_end(shard: Sharding, query: Floats, key_value: Floats, out: Floats) -> Operator:
    """Pieces of whole sequences as Transformer Engine adds them up: one operator each, behind the last step.

    Forward, every piece's output is weighted and added (6 B an element of its rows); rank p of a ring of r has p + 1
    pieces of whole rows and r - 1 - p of half of them, in the mean (3 r + 1) / 4 whole ones. Backward, the first
    gradients are copied (4 B), those of a later step added (6 B), of whole or half rows.
    """
    pieces = np.where(shard.ring > 1, (3.0 * shard.ring + 1.0) / 4.0, 0.0)
    copied = np.where(shard.ring > 1, 4.0, 0.0)
    steps = np.asarray(shard.ring - 1.0)
    return moving(
        "ring_update",
        "attention",
        np.asarray(shard.tokens * 6.0 * pieces * out),
        np.asarray(shard.tokens * (copied + 4.5 * steps) * (query + key_value)),
        launches=np.asarray(np.where(shard.ring > 1, shard.ring, 0.0)),
    )
