"""DeepSeek-V4 in MindSpeed-LLM's flags: compressed attention, residual streams, hashed experts, rotary positions.

Its trainer is `pretrain_deepseek4.py`. `--compress-ratios` has a number for every layer, padding too; the layers of
prediction modules have a window alone, whatever it says. Tables of rotary positions are as long as
`--rope-scaling-original-max-position-embeddings`, which has to reach the sequence.
Source: MindSpeed-LLM @c77308a1, tasks/models/transformer/deepseek4/csa.py, core/models/deepseek4/deepseek4_model.py,
features_manager/transformer/mhc_feature.py, examples/mcore/deepseek4_flash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autodeploy.exporters.arguments import ShellVariable
from autodeploy.exporters.recipe_arguments import as_number
from autodeploy.messages import Message
from autodeploy.specs.compressed_attention import CSA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.exporters.arguments import LaunchArguments
    from autodeploy.specs.model import ModelSpec

TRAINER: Final = "pretrain_deepseek4.py"
SPEC_MODULE: Final = "mindspeed_llm.tasks.models.spec.deepseek4_spec"
CP_ALGORITHM: Final = "kvallgather_cp_algo"
ATTENTION, STREAMS, ROPE = "ATTENTION_ARGS", "MHC_ARGS", "ROPE_ARGS"


def ratios(model: ModelSpec, noops: Sequence[int]) -> list[int]:
    """Tokens of an entry in every layer, 0 where it has a window alone; a layer that does nothing has none."""
    compressed = model.compressed_attention
    assert compressed is not None
    rates = [compressed.rate(model.attention_type(layer)) or 0 for layer in range(model.num_hidden_layers)]
    for noop in sorted(noops):
        rates.insert(noop, 0)
    # Prediction modules look theirs up before they leave it aside: after the last layer where their stage has none.
    return rates + [0] * model.num_nextn_predict_layers


def add_compressed(arguments: LaunchArguments, model: ModelSpec) -> None:
    """MLA_ARGS, ATTENTION_ARGS and MHC_ARGS of DeepSeek-V4's layers, with the kernels that are priced."""
    compressed, streams, add = model.compressed_attention, model.hyper_connections, arguments.add
    assert compressed is not None
    # The parser wants latent attention's words; the whole head is `--qk-head-dim`, and the key is the value.
    for flag, value in (
        ("--q-lora-rank", model.q_lora_rank or 0),
        ("--kv-lora-rank", model.head_dim),
        ("--qk-head-dim", model.head_dim),
        ("--qk-pos-emb-head-dim", model.qk_rope_head_dim or 0),
        ("--v-head-dim", model.head_dim),
    ):
        add("MLA_ARGS", "--multi-latent-attention")
        add("MLA_ARGS", flag, value)
    add("MLA_ARGS", "--qk-layernorm")
    add(ATTENTION, "--kv-compress")
    add(ATTENTION, "--compress-ratios", *ratios(model, arguments.numbers("--noop-layers")))
    add(ATTENTION, "--o-groups", compressed.o_groups)
    add(ATTENTION, "--o-lora-rank", compressed.o_lora_rank)
    add(ATTENTION, "--sliding-window-size", model.sliding_window or 0)
    add(ATTENTION, "--enable-dsa-indexer")
    add(ATTENTION, "--index-topk", compressed.index_topk)
    add(ATTENTION, "--index-n-heads", compressed.index_n_heads)
    add(ATTENTION, "--index-head-dim", compressed.index_head_dim)
    add(ATTENTION, "--use-sparse-flash-attn")
    if CSA in (model.layer_types or ()):
        add(ATTENTION, "--use-fused-lightning-indexer")
        add(ATTENTION, "--use-fused-lightning-indexer-loss")
    if streams is not None:
        add(STREAMS, "--enable-mhc")
        add(STREAMS, "--hc-mult", streams.hc_mult)
        add(STREAMS, "--hc-sinkhorn-iters", streams.hc_sinkhorn_iters)
        add(STREAMS, "--use-fused-mhc")
        add(STREAMS, "--use-triton-mhc")
    if model.num_hash_layers:
        add("MOE_ARGS", "--n-hash-layers", model.num_hash_layers)
        arguments.note(Message("exporters.hash_tables_are_placeholders", layers=model.num_hash_layers))
    _add_positions(arguments, model)


def _add_positions(arguments: LaunchArguments, model: ModelSpec) -> None:
    """Bases of windows and of entries, whose positions are scaled."""
    recipe, add = model.told, arguments.add
    add("GPT_ARGS", "--position-embedding-type", "deepseek4")
    add("GPT_ARGS", "--rotary-base", round(recipe.rope_theta or 10_000))
    for flag, base in (("--rope-theta", recipe.rope_theta), ("--compress-rope-theta", recipe.compress_rope_theta)):
        if base is not None:
            add(ROPE, flag, as_number(base))
    scaling = recipe.rope_scaling
    if scaling is not None and scaling.factor is not None:
        add(ROPE, "--rope-factor", as_number(scaling.factor))
        if scaling.original_max_position_embeddings is not None:
            add(ROPE, "--original-seq-len", scaling.original_max_position_embeddings)
        for flag, value in (("--beta-fast", scaling.beta_fast), ("--beta-slow", scaling.beta_slow)):
            if value is not None:
                add(ROPE, flag, as_number(value))
    add(ROPE, "--rope-scaling-original-max-position-embeddings", ShellVariable("SEQ_LENGTH"))
