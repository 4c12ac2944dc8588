"""Selective recomputation by operator: of a layer's matrix products every second one is computed again.

PyTorch's selective checkpointing as torchtitan asks for it (`selective_ac_option: op`): outputs of attention, of
reduce-scatters and of every first product of two are kept, all else is computed again. Products are counted as a
layer calls them: query, key, value, output, gate, up, down. Source: torchtitan 9dec370, parallelize_llama.py,
_get_custom_policy; v0.2.2, distributed/activation_checkpoint.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.workload.tensor_parallel import cut_and_whole

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from autodeploy.workload.operators import OperatorFeatures, Sharding
    from cost_models.arrays import Floats


@dataclass(frozen=True, slots=True)
class ByOperator:
    """Shares [n] of a layer's tensors, by name, that are not kept, and of its operators that run again.

    kept_bytes : that this recomputation alone keeps [n].
    """

    tensors: dict[str, Floats]
    operators: dict[str, Floats]
    kept_bytes: Floats


def by_operator(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> ByOperator | None:
    """Shares of a dense layer with grouped-query attention, fractions; None of attention with other products.

    Keys are the second product, the output projection the fourth, up (of a gated MLP) the sixth. What the output
    projection and its reduce-scatter made stays, so that a compiled layer does not multiply again, and the residual is
    one addition away. Without a reduce-scatter the residual is made again, product and all. Eager layers keep the
    seventh product too, down, and its reduce-scatter, which nothing reads again; compiled ones keep what is read.
    """
    if model.is_mla or model.attention_output_gate or model.attention_head_gate:
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
