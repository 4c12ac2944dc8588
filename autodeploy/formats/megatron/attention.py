"""Attention that is neither of grouped queries nor of latents, as MindSpeed-LLM's flags say it.

Source: MindSpeed-LLM @c77308a1, features_manager/transformer: dsa_indexer_feature.py, qwen3_next_feature.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.formats.megatron.compressed import add_compressed
from autodeploy.formats.megatron.layers import noop_numbers
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.launched import full_interval
from autodeploy.stack.schedules import sizes_from

if TYPE_CHECKING:
    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.formats.megatron.arguments import LaunchArguments
    from autodeploy.formats.megatron.layers import Placement
    from autodeploy.specs.model import ModelSpec


INDEXER = {
    "--index-topk": ("index_topk", 2048),
    "--index-n-heads": ("index_n_heads", 64),
    "--index-head-dim": ("index_head_dim", 128),
}
SHARED = {"--index-topk-freq": "index_topk_freq", "--index-skip-topk-offset": "index_skip_topk_offset"}
LINEAR = {
    "--linear-num-key-heads": "num_key_heads",
    "--linear-num-value-heads": "num_value_heads",
    "--linear-key-head-dim": "key_head_dim",
    "--linear-value-head-dim": "value_head_dim",
}
INTERVAL = "--full-attention-interval"


def read_attention_types(reader: FlagReader, layers: int) -> dict[str, Any]:
    """Fields of an indexer, and of gated delta nets between layers of gated full attention.

    Raises
    ------
    UnsupportedError
        of a pattern of layers that share the keys that others chose, and of linear layers without sizes.
    """
    return _indexer(reader) | _gated_delta_net(reader, layers)


def _indexer(reader: FlagReader) -> dict[str, Any]:
    alone = reader.switch("--use-sparse-flash-attn", "/model/sparse_attention")
    if not reader.switch("--enable-dsa-indexer", "/model/sparse_attention"):
        if alone:
            reader.refuse_mechanism("--use-sparse-flash-attn", Message("mechanism.sparse_without_indexer"))
        return {}
    if reader.has("--index-topk-pattern"):
        reader.refuse_mechanism("--index-topk-pattern", Message("mechanism.shared_index_pattern"))
    sizes: dict[str, int] = {}
    for flag, (field, usual) in INDEXER.items():
        given = reader.number(flag, f"/model/sparse_attention/{field}")
        sizes[field] = usual if given is None else given
    for flag, field in SHARED.items():
        given = reader.number(flag, f"/model/sparse_attention/{field}")
        sizes |= {} if given is None else {field: max(given, 1)}
    if sizes.get("index_topk_freq", 1) > 1 and noop_numbers(reader):
        reader.refuse_mechanism("--noop-layers", Message("mechanism.shared_index_with_padding"))
    return {"sparse_attention": sizes}


def _gated_delta_net(reader: FlagReader, layers: int) -> dict[str, Any]:
    interval = reader.number(INTERVAL, "/model/layer_types")
    given = {field: reader.number(flag, f"/model/linear_attention/{field}") for flag, field in LINEAR.items()}
    conv = reader.number("--mamba-d-conv", "/model/linear_attention/conv_kernel_dim")
    if not interval:
        return {}
    if not all(given.values()):
        reader.refuse_mechanism(INTERVAL, Message("mechanism.linear_without_heads"))
    noops = noop_numbers(reader)
    numbers = [number for number in range(layers + len(noops)) if number not in noops]  # it counts padding, too
    types = ["linear_attention" if (number + 1) % interval else "full_attention" for number in numbers]
    sizes = {"kind": "gated_delta_net", **given, "conv_kernel_dim": conv or 4}
    return {"layer_types": types, "linear_attention": sizes, "attention_output_gate": True}


# Flags of attention that not every framework has.
# MindSpeed-LLM's modules of Qwen3-Next. Source: MindSpeed-LLM @c77308a1, mindspeed_llm/tasks/models/spec.
QWEN3_NEXT_SPEC = "mindspeed_llm.tasks.models.spec.qwen3_next_spec"
# LongCat-Flash's.
SHORTCUT_SPEC = "mindspeed_llm.tasks.models.spec.longcat_spec"


def shares_keys(model: ModelSpec) -> bool:
    """Whether layers take the keys that another one's indexer chose."""
    return len(model.index_starts) < model.num_hidden_layers


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
            message = Message("exporters.stage_needs_earlier_keys", layer=begins + 1)
            nearest = ",".join(map(str, sizes_from(model.index_starts, placed.in_order)))
            hint = Message("common.such_as", example=f"layers_per_stage {nearest}")
            raise UnsupportedError(message, path="/strategy/layers_per_stage", hint=hint)
        begins += layers


def add_attention_types(arguments: LaunchArguments, model: ModelSpec) -> None:
    """ATTENTION_ARGS: a gated delta net with gated full attention, or an indexer, as MindSpeed-LLM has them."""
    interval, block, add = full_interval(model), "ATTENTION_ARGS", arguments.add
    if model.attention.types or model.residual_streams > 1:
        add_compressed(arguments, model)
        return
    if model.shortcut_moe or model.n_zero_experts:
        if model.n_zero_experts:
            add("MOE_ARGS", "--num-zero-experts", model.n_zero_experts)
        return
    if model.sparse_attention is not None:
        sparse = model.sparse_attention
        add(block, "--enable-dsa-indexer")
        for flag, (field, _) in INDEXER.items():
            add(block, flag, getattr(sparse, field))
        for flag, field in SHARED.items() if sparse.index_topk_freq > 1 else ():
            add(block, flag, getattr(sparse, field))
        # Attention to the chosen latents alone; without the first two all pairs are computed under a mask.
        kernels = ("--use-fused-lightning-indexer", "--use-fused-lightning-indexer-loss")
        for flag in filter(arguments.knows, ("--enable-mla-absorb", "--use-sparse-flash-attn", *kernels)):
            add(block, flag)
        return
    linear = model.linear_attention
    if linear is None or interval is None:
        return
    add(block, "--full-attention-interval", interval)
    for flag, field in LINEAR.items():
        add(block, flag, getattr(linear, field))
    fixed = (("--mamba-chunk-size", 64), ("--mamba-expand", 1), ("--no-enable-linear-qkv",), ("--use-triton-gdn",))
    for words in (("--mamba-d-conv", linear.conv_kernel_dim), *fixed):
        add(block, *words)
