"""Norms of a layer, and biases of its products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.accounting.compressed import add_streams

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account
    from tests.support.accounting.run import Run


def about_the_mean(r: Run) -> bool:
    """LayerNorm, which models with learned positions have unless they say otherwise."""
    named = (r.recipe or {}).get("normalization")
    return bool(named == "LayerNorm" or (named is None and r.learned_position_embeddings))


def biases(a: Account, moe: bool) -> None:
    """Added apart (in and out) but for queries, keys and values; where it is trained, its gradient is a sum (in)."""
    r, recipe, trained = a.run, a.run.recipe or {}, 0 if a.run.lora_rank else 2
    out = a.local * r.hidden_size
    added = out if recipe.get("attention_out_bias") else 0
    summed = added
    if recipe.get("attention_bias") and not r.kv_lora_rank:
        keys = max(r.num_key_value_heads / a.d.tp, 1)
        summed += a.tokens * (r.num_attention_heads / a.d.tp * r.head_dim + keys * (r.head_dim + r.value))
    if summed:
        a.vector("attention_biases", "attention", 4 * added, trained * summed, 1)
    if recipe.get("mlp_bias") and not moe:
        inner = out + a.tokens * r.gates * r.intermediate_size / a.d.tp
        a.vector("mlp_biases", "mlp", 4 * inner, trained * inner, 1)


def norms(a: Account) -> None:
    """A norm reads and writes (4 B an element; 14 unfused); a residual reads two and writes one (6 B).

    PyTorch's own norm is in FP32: each operator but the last reads or writes numbers of 4 B.
    """
    fused, elements = "fused_rmsnorm" in a.run.on or about_the_mean(a.run), a.local * a.run.hidden_size
    cast, squared, mean, scaled, back, weighted = 2 + 4, 4 + 4, 4, 4 + 4, 4 + 2, 2 + 2
    chain = (cast, squared, mean, 0, scaled, back, weighted)  # the root of the mean is of one number a row
    apart, calls = (sum(chain), len(chain)) if "torch_fsdp2" in a.run.on else (14, 5)
    each_half = 2 if a.run.norm_layout == "sandwich" else 1
    for half in ("attention", "mlp"):
        streams = add_streams(a, half)
        adds = 0 if streams > 1 else 1
        moved = sum((4 if fused else apart) * elements for _ in range(each_half)) + 6 * elements * adds
        a.vector(f"{half}_norm", half, moved, 1.5 * moved, (1 if fused else calls) * each_half + adds)
        a.keep(f"{half}_norm_in", 2 * elements * streams)
        if each_half > 1:
            a.keep(f"{half}_post_norm_in", 2 * elements)
        if a.run.norm_bytes > 2:
            a.keep(f"{half}_norm_cast", (a.run.norm_bytes - 2) * elements * each_half)
        a.keep(f"{half}_norm_out", 2 * elements)
    a.dense_params += 2 * each_half * a.run.hidden_size
