"""Selective recomputation by operator: how much of each tensor and operator it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account

# What it frees, runs again and exchanges again.
ROWS: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] = (
    (
        *("attention_norm_cast", "attention_norm_out", "qkv", "rotated", "qk_norm_in"),
        *("mlp_norm_in", "mlp_norm_cast", "mlp_norm_out", "mlp_up_out", "mlp_activation_out"),
        *("attention_gathered", "mlp_gathered"),
    ),
    (
        *("attention_norm", "mlp_norm", "qkv_proj", "qkv_split", "qk_norm", "rotary"),
        *("attention_out_proj", "mlp_up_proj", "mlp_activation"),
    ),
    ("attention_gather", "attention_reduce", "mlp_gather"),
)


def share_of(a: Account, choice: str, row: str) -> float:
    """How much of a tensor or an operator a choice is about: all of it, but where products are counted one by one.

    Of q, k, v, o, gate, up, down the second, fourth and sixth are computed again; o is not where its sum over the
    tensor-parallel ranks is kept.
    """
    if choice != "by_operator":
        return 1.0
    other = a.run.kv_lora_rank or a.run.attention_output_gate or a.run.attention_head_gate
    if "torch_fsdp2" not in a.run.on or other or "mlp_up_proj" not in a.operators:
        return 0.0
    if row in ("qkv", "qkv_proj"):
        heads, kv_heads = a.run.num_attention_heads / a.d.tp, max(1.0, a.run.num_key_value_heads / a.d.tp)
        keys, values = kv_heads * a.run.head_dim, kv_heads * a.run.value
        return keys / (heads * a.run.head_dim + keys + values)
    if row in ("mlp_up_out", "mlp_up_proj"):
        return 0.5 if a.run.gates == 2 else 0.0
    if row in ("mlp_norm_in", "attention_out_proj"):
        return 0.0 if a.d.sequence_parallel and a.d.tp > 1 else 1.0
    return 1.0


def kept_for_nobody(a: Account) -> float:
    """Bytes of the last product and of what its reduce-scatter left, which eager layers keep and never read."""
    return 2 * (a.tokens + (a.local if a.d.sequence_parallel and a.d.tp > 1 else 0)) * a.run.hidden_size
