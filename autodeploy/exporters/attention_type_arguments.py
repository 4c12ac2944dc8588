"""Flags of attention that not every framework has: linear layers, an indexer, chunks, gates.

A type without flags in the release is refused by name: a launch without it would train another model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import UnsupportedError
from autodeploy.exporters.compressed_arguments import add_compressed
from autodeploy.messages import Message
from autodeploy.stack.schedules import sizes_from

if TYPE_CHECKING:
    from autodeploy.exporters.arguments import LaunchArguments
    from autodeploy.exporters.layer_placement import Placement
    from autodeploy.specs.attention_kinds import SparseAttention
    from autodeploy.specs.model import ModelSpec
    from autodeploy.stack.releases import Release

# MindSpeed-LLM's modules of Qwen3-Next. Source: MindSpeed-LLM @c77308a1, mindspeed_llm/tasks/models/spec.
QWEN3_NEXT_SPEC = "mindspeed_llm.tasks.models.spec.qwen3_next_spec"
# LongCat-Flash's.
SHORTCUT_SPEC = "mindspeed_llm.tasks.models.spec.longcat_spec"

NOWHERE = frozenset({"chunked_attention", "attention_head_gate", "sliding_attention_heads"})


def special_attention(model: ModelSpec) -> tuple[str, ...]:
    """What the model's layers have that no Megatron-LM has flags for: fields, and a type of layers."""
    types, linear = model.layer_types or (), model.linear_attention
    present_types = {
        "chunked_attention": "chunked_attention" in types,
        "linear_attention": linear is not None,
        "sparse_attention": model.sparse_attention is not None,
        "attention_output_gate": model.attention_output_gate,
        "attention_head_gate": model.attention_head_gate,
        "compressed_attention": model.compressed_attention is not None,
        "hyper_connections": model.hyper_connections is not None,
        "sliding_attention_heads": model.sliding_attention_heads is not None,
        "shortcut_moe": model.shortcut_moe,
        "n_zero_experts": model.n_zero_experts > 0,
    }
    return tuple(name for name, present in present_types.items() if present)


def full_interval(model: ModelSpec) -> int | None:
    """Every how many layers one has full attention, where the others are gated delta nets; None for other models."""
    linear, types = model.linear_attention, model.layer_types or ()
    if linear is None or linear.kind != "gated_delta_net" or "full_attention" not in types:
        return None
    interval = types.index("full_attention") + 1
    pattern = ("linear_attention",) * (interval - 1) + ("full_attention",)
    return interval if types == tuple(pattern[layer % interval] for layer in range(len(types))) else None


def refuse_special_attention(model: ModelSpec, release: Release) -> None:
    """Refuses a model whose attention the release has no flags or keys for.

    Raises
    ------
    UnsupportedError
        which names the first of them.
    """
    named = special_attention(model)
    if named:
        raise UnsupportedError(
            Message("exporters.has_no_flag_in", framework=release.title, name=named[0]),
            path="/to",
            hint=Message("exporters.export_to", names="json"),
        )


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


def _add_shared_keys(arguments: LaunchArguments, sparse: SparseAttention) -> None:
    if not arguments.knows("--index-topk-freq"):
        message = Message(
            "exporters.has_no_flag_in",
            framework=arguments.release.title,
            name=Message("mechanism.shared_index_pattern"),
        )
        raise UnsupportedError(message, path="/to", hint=Message("exporters.export_to", names="json"))
    arguments.add("ATTENTION_ARGS", "--index-topk-freq", sparse.index_topk_freq)
    arguments.add("ATTENTION_ARGS", "--index-skip-topk-offset", sparse.index_skip_topk_offset)


def _add_zero_experts(arguments: LaunchArguments, model: ModelSpec) -> None:
    """MOE_ARGS: LongCat-Flash's experts without matrices; its layer, which is of latent attention, has a `--spec`."""
    if not (model.shortcut_moe and model.is_mla) or not arguments.knows("--num-zero-experts"):
        refuse_special_attention(model, arguments.release)
    if model.n_zero_experts:
        arguments.add("MOE_ARGS", "--num-zero-experts", model.n_zero_experts)


def add_attention_types(arguments: LaunchArguments, model: ModelSpec) -> None:
    """ATTENTION_ARGS: a gated delta net with gated full attention, or an indexer, as MindSpeed-LLM has them.

    Raises
    ------
    UnsupportedError
        where the release's own code has no such layers.
    """
    named, release = special_attention(model), arguments.release
    if not named:
        return
    interval, block, add = full_interval(model), "ATTENTION_ARGS", arguments.add
    if any(name in NOWHERE for name in named) or release.framework != "mindspeed-llm":
        refuse_special_attention(model, release)
    if model.compressed_attention is not None or model.hyper_connections is not None:
        add_compressed(arguments, model)
        return
    if model.shortcut_moe or model.n_zero_experts:
        _add_zero_experts(arguments, model)
        return
    if model.sparse_attention is not None:
        sparse = model.sparse_attention
        add(block, "--enable-dsa-indexer")
        add(block, "--index-topk", sparse.index_topk)
        add(block, "--index-n-heads", sparse.index_n_heads)
        add(block, "--index-head-dim", sparse.index_head_dim)
        if sparse.index_topk_freq > 1:
            _add_shared_keys(arguments, sparse)
        # Attention to the chosen latents alone; without them all pairs are computed under a mask.
        for flag in ("--enable-mla-absorb", "--use-sparse-flash-attn"):
            if arguments.knows(flag):
                add(block, flag)
        for flag in ("--use-fused-lightning-indexer", "--use-fused-lightning-indexer-loss"):
            if arguments.knows(flag):
                add(block, flag)
        return
    linear = model.linear_attention
    if linear is None or interval is None or not model.attention_output_gate:
        # Its only linear layers are those of Qwen3-Next, whose full attention is gated.
        refuse_special_attention(model, release)
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
