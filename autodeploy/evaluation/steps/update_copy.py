"""What an optimizer's operator adds to the states while it runs: the peak of steps whose activations are small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.entries import at

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.step_classes import StepClasses
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Floats

COPIED_UPDATE = "copied_update"
FP32_BYTES = 4.0


def update_copy_bytes(
    classes: StepClasses,
    candidates: Candidates,
    context: Context,
    index: int,
    dense_params: Floats,
    expert_params: Floats,
    ends: Floats,
) -> Floats:
    """Bytes of candidate `index` beside its states during Adam's update [pp].

    Adam's operator takes one weight at a time; on Ascend, before the stack of MindSpeed 26.0, it copied that weight in
    FP32: at most the largest one, or a rank's whole share of the parameters where states are sharded.

    Parameters
    ----------
    dense_params, expert_params : parameters of each stage's rank [pp]. ends : stages with an embedding or a head [pp].

    References
    ----------
    Ascend/MindSpeed-LLM @2.1.0 tests/pipeline/baseline/llama2_tp1_pp8_patch_gloo_ptd.json: maximum less allocated is
    344 MiB on the inner stages (FP32 of 4096 x 22016) and 500 MiB on the outer ones (32000 x 4096); @2.2.0
    phi35_moe_tp1_pp8_mcore.json: 3200 MiB, all 16 experts of 4096 x 12800. 16 MiB in every baseline of 26.0 and 26.1.
    Operator: MindSpeed core/optimizer/adamw.py, one parameter at a time.
    """
    if COPIED_UPDATE not in context.mechanisms:
        return np.zeros_like(dense_params)
    layer, end, expert = largest_weights(context, candidates, index)
    shards = at(classes.groups.dense_shards, index), at(classes.groups.expert_shards, index)
    dense_share, expert_share = (
        params / (count if context.distributed_optimizer else 1.0)
        for params, count in zip((dense_params, expert_params), shards, strict=True)
    )
    dense = np.minimum(np.where(ends > 0.0, max(layer, end), layer), dense_share)
    return np.asarray(FP32_BYTES * np.maximum(dense, np.minimum(expert, expert_share)))


def largest_weights(context: Context, candidates: Candidates, index: int) -> tuple[float, float, float]:
    """Parameters of the largest weight on a rank: of a layer without its experts, of the ends, of local experts.

    The joined projections of attention and of a gated MLP are one weight each; grouped experts are one weight.
    """
    model, tp = context.model, float(candidates.tp[index])
    up = (2.0 if model.is_gated else 1.0) * model.hidden_size
    heads = max(model.num_attention_heads, model.sliding_attention_heads or 0) + 2.0 * model.num_key_value_heads
    dense_width = (model.intermediate_size or 0) if model.num_dense_layers else 0
    widest = max(heads * model.head_dim * model.hidden_size, up * max(dense_width, model.shared_expert_width))
    local = (model.n_routed_experts or 0) / float(candidates.ep[index]) if context.operators.grouped_gemm else 1.0
    expert = local * up * (model.moe_intermediate_size or 0) / float(candidates.etp[index])
    return widest / tp, model.vocab_size * model.hidden_size / tp, expert
