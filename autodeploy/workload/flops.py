"""Model FLOPs: what the mathematics of a training step needs, whatever the hardware repeats or pads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.workload.attention import score_columns
from cost_models.compute import attention_flops

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec

CONVENTION = "causal"


def forward_flops_per_token(model: ModelSpec, seq_length: int, *, causal: bool = True) -> float:
    """FLOPs of the forward pass of one token.

    Two per active weight of every matrix (embedding lookups and norms none, the output head once for the model and once
    for each prediction module), and for attention scores and values 2 (d_qk + d_v) heads times the mean keys a causal
    query sees: half the sequence. Without `causal` every query is counted against the whole sequence, as some published
    utilisations do.
    """
    norms = model.norm_params_per_layer
    weights = model.num_dense_layers * (model.dense_layer_params - norms)
    weights += model.num_moe_layers * (model.active_moe_layer_params - norms)
    weights += (1 + model.num_nextn_predict_layers) * model.vocab_size * model.hidden_size

    def score_flops(layer: int) -> float:
        seen = score_columns(seq_length, model.attention_window(layer)) if causal else float(seq_length)
        return float(attention_flops(1.0, seen, model.num_attention_heads, model.qk_head_dim, model.value_head_dim))

    scores = sum(score_flops(layer) for layer in range(model.num_hidden_layers))
    last = model.num_hidden_layers - 1
    module = (model.active_moe_layer_params if model.is_moe_layer(last) else model.dense_layer_params) - norms
    module_weights = module + 2 * model.hidden_size**2
    weights += model.num_nextn_predict_layers * module_weights
    scores += model.num_nextn_predict_layers * score_flops(last)
    return 2.0 * weights + scores


def mfu(
    model: ModelSpec, seq_length: int, tokens_per_s_per_rank: float, peak_flops: float, *, causal: bool = True
) -> float:
    """Share of the peak that model FLOPs (forward once, backward twice) reach."""
    return 3.0 * forward_flops_per_token(model, seq_length, causal=causal) * tokens_per_s_per_rank / peak_flops
