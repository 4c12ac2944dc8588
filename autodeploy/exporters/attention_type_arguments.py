"""Flags of attention that not every framework has: linear layers, an indexer, chunks, gates.

A type without flags in the release is refused by name before (specs/launched.py): a launch would train another model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import UnsupportedError
from autodeploy.exporters.compressed_arguments import add_compressed
from autodeploy.messages import Message
from autodeploy.specs.launched import full_interval
from autodeploy.stack.schedules import sizes_from

if TYPE_CHECKING:
    from autodeploy.exporters.arguments import LaunchArguments
    from autodeploy.exporters.layer_placement import Placement
    from autodeploy.specs.model import ModelSpec

# MindSpeed-LLM's modules of Qwen3-Next. Source: MindSpeed-LLM @c77308a1, mindspeed_llm/tasks/models/spec.
QWEN3_NEXT_SPEC = "mindspeed_llm.tasks.models.spec.qwen3_next_spec"
# LongCat-Flash's.
SHORTCUT_SPEC = "mindspeed_llm.tasks.models.spec.longcat_spec"


def shares_keys(model: ModelSpec) -> bool:
    """Whether layers take the keys that another one's indexer chose."""
    return model.sparse_attention is not None and model.sparse_attention.index_topk_freq > 1


def refuse_split_groups(model: ModelSpec, placed: Placement) -> None:
    """Refuses a placement that begins a chunk with a layer that takes the keys another one chose: they don't travel.

    Source: MindSpeed-LLM @c77308a1, multi_latent_attention.py, resolve_dsa_indexer_build_config.

    Raises
    ------
    UnsupportedError
        which names the first such layer.
    """
    begins = 0
    for layers in placed.in_order:
        if begins < model.num_hidden_layers and model.shares_index(begins):
            message = Message("exporters.stage_begins_with_layer_which_takes_keys_that", layer=begins + 1)
            nearest = ",".join(map(str, sizes_from(model.index_starts, placed.in_order)))
            hint = Message("common.such_as", example=f"layers_per_stage {nearest}")
            raise UnsupportedError(message, path="/strategy/layers_per_stage", hint=hint)
        begins += layers


def add_attention_types(arguments: LaunchArguments, model: ModelSpec) -> None:
    """ATTENTION_ARGS: a gated delta net with gated full attention, or an indexer, as MindSpeed-LLM has them."""
    interval, block, add = full_interval(model), "ATTENTION_ARGS", arguments.add
    if model.compressed_attention is not None or model.hyper_connections is not None:
        add_compressed(arguments, model)
        return
    if model.shortcut_moe or model.n_zero_experts:
        if model.n_zero_experts:
            add("MOE_ARGS", "--num-zero-experts", model.n_zero_experts)
        return
    if model.sparse_attention is not None:
        sparse = model.sparse_attention
        add(block, "--enable-dsa-indexer")
        add(block, "--index-topk", sparse.index_topk)
        add(block, "--index-n-heads", sparse.index_n_heads)
        add(block, "--index-head-dim", sparse.index_head_dim)
        if sparse.index_topk_freq > 1:
            add(block, "--index-topk-freq", sparse.index_topk_freq)
            add(block, "--index-skip-topk-offset", sparse.index_skip_topk_offset)
        # Attention to the chosen latents alone; without them all pairs are computed under a mask.
        for flag in ("--enable-mla-absorb", "--use-sparse-flash-attn"):
            if arguments.knows(flag):
                add(block, flag)
        for flag in ("--use-fused-lightning-indexer", "--use-fused-lightning-indexer-loss"):
            if arguments.knows(flag):
                add(block, flag)
        return
    linear = model.linear_attention
    if linear is None or interval is None:
        return
    add(block, "--full-attention-interval", interval)
    add(block, "--linear-num-key-heads", linear.num_key_heads)
    add(block, "--linear-num-value-heads", linear.num_value_heads)
    add(block, "--linear-key-head-dim", linear.key_head_dim)
    add(block, "--linear-value-head-dim", linear.value_head_dim)
    add(block, "--mamba-d-conv", linear.conv_kernel_dim)
    add(block, "--mamba-chunk-size", 64)
    add(block, "--mamba-expand", 1)
    add(block, "--no-enable-linear-qkv")
    add(block, "--use-triton-gdn")
