"""Attention that is neither of grouped queries nor of latents, as MindSpeed-LLM's flags say it.

Source: MindSpeed-LLM @c77308a1, features_manager/transformer: dsa_indexer_feature.py, qwen3_next_feature.py.

DeepSeek-V4: attention to compressed keys, residual streams, hashed experts. Its layers are those of
`pretrain_deepseek4.py`, and of fine-tuning, alone. `--qk-head-dim` is the whole head, which `--kv-lora-rank` and
`--v-head-dim` say once more or not at all; prediction modules have a window alone. Source: MindSpeed-LLM @c77308a1,
tasks/models/transformer/deepseek4/csa.py, core/models/deepseek4/deepseek4_model.py, features_manager/transformer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autodeploy.formats.megatron.arguments import ShellVariable
from autodeploy.formats.megatron.layers import noop_numbers
from autodeploy.formats.megatron.recipe import as_number
from autodeploy.formats.megatron.tuning import TRAINER
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.attention import (
    CSA,
    LATENT,
    CompressedAttention,
    HyperConnections,
    LinearAttention,
    SparseAttention,
)
from autodeploy.specs.hf_attention import types_of
from autodeploy.specs.launched import full_interval
from autodeploy.stack.flag_tables import defaults_of
from autodeploy.stack.schedules import sizes_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.formats.megatron.arguments import LaunchArguments
    from autodeploy.formats.megatron.layers import Placement
    from autodeploy.specs.attention import Flags
    from autodeploy.specs.model import ModelSpec


INTERVAL = "--full-attention-interval"


def read_attention_types(reader: FlagReader, layers: int) -> dict[str, Any]:
    """Fields of an indexer, and of gated delta nets between layers of gated full attention.

    Raises UnsupportedError of a pattern of layers that share the keys that others chose, and of linear layers without
    sizes.
    """
    return _indexer(reader) | _gated_delta_net(reader, layers)


def _indexer(reader: FlagReader) -> dict[str, Any]:
    alone = reader.switch(SPARSE, "/model/sparse_attention")
    if not reader.switch(INDEXER, "/model/sparse_attention"):
        if alone:
            reader.refuse_mechanism(SPARSE, Message("mechanism.sparse_without_indexer"))
        return {}
    if reader.has("--index-topk-pattern"):
        reader.refuse_mechanism("--index-topk-pattern", Message("mechanism.shared_index_pattern"))
    sizes = _sizes(reader, "sparse_attention", SparseAttention.flags)
    sizes |= {field: max(sizes[field], 1) for field in ("index_topk_freq", "index_skip_topk_offset") if field in sizes}
    if sizes.get("index_topk_freq", 1) > 1 and noop_numbers(reader):
        reader.refuse_mechanism("--noop-layers", Message("mechanism.shared_index_with_padding"))
    return {"sparse_attention": sizes}


def _sizes(reader: FlagReader, part: str, flags: Flags) -> dict[str, int]:
    """Fields of a part of the model as flags say them, or as they are by default."""
    given = {field: reader.number(flag, f"/model/{part}/{field}") for field, (flag, _) in flags.items()}
    sizes = {field: flags[field][1] if number is None else number for field, number in given.items()}
    return {field: size for field, size in sizes.items() if size is not None}


def _gated_delta_net(reader: FlagReader, layers: int) -> dict[str, Any]:
    interval = reader.number(INTERVAL, "/model/layer_types")
    sizes = _sizes(reader, "linear_attention", LinearAttention.flags)
    if not interval:
        return {}
    if not all(sizes.get(field) for field in LinearAttention.flags):
        reader.refuse_mechanism(INTERVAL, Message("mechanism.linear_without_heads"))
    noops = noop_numbers(reader)
    numbers = [number for number in range(layers + len(noops)) if number not in noops]  # it counts padding, too
    types = ["linear_attention" if (number + 1) % interval else "full_attention" for number in numbers]
    linear = {"kind": "gated_delta_net", **sizes}
    return {"layer_types": types, "linear_attention": linear, "attention_output_gate": True}


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

    Raises UnsupportedError: which names the first such layer.
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
        add(block, INDEXER)
        for field, (flag, usual) in sparse.flags.items():
            if usual is not None or sparse.index_topk_freq > 1:
                add(block, flag, getattr(sparse, field))
        # Attention to the chosen latents alone; without the first two all pairs are computed under a mask.
        kernels = ("--use-fused-lightning-indexer", "--use-fused-lightning-indexer-loss")
        for flag in filter(arguments.knows, ("--enable-mla-absorb", SPARSE, *kernels)):
            add(block, flag)
        return
    linear = model.linear_attention
    if linear is None or interval is None:
        return
    add(block, "--full-attention-interval", interval)
    sizes = [(flag, getattr(linear, field)) for field, (flag, _) in linear.flags.items()]
    fixed = (("--mamba-chunk-size", 64), ("--mamba-expand", 1), ("--no-enable-linear-qkv",), ("--use-triton-gdn",))
    for words in (*sizes, *fixed):
        add(block, *words)


# DeepSeek-V4.
COMPRESSED_TRAINER: Final = "pretrain_deepseek4.py"
RATIOS, STREAMS = "--compress-ratios", "--enable-mhc"
INDEXER, SPARSE, WINDOW = "--enable-dsa-indexer", "--use-sparse-flash-attn", "--sliding-window-size"
OF_THE_MODEL = {
    "--kv-compress": Message("mechanism.compressed_attention"),
    RATIOS: Message("mechanism.compressed_attention"),
    STREAMS: Message("mechanism.hyper_connections"),
}
# Without these kernels scores are made whole, and maps of streams by FP32 operators: nothing that is priced.
KERNELS = {
    SPARSE: RATIOS,
    "--use-fused-lightning-indexer": RATIOS,
    "--use-fused-mhc": STREAMS,
}
REPLACED = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")


def is_compressed(reader: FlagReader) -> bool:
    """Whether the launch is DeepSeek-V4's.

    Raises UnsupportedError where another program has its flags. SpecError : where its program lacks those that make its
    layers.
    """
    program = reader.script.program.rpartition("/")[2]
    given = [flag for flag in OF_THE_MODEL if reader.has(flag)]
    own = program == COMPRESSED_TRAINER or (program == TRAINER and RATIOS in given)
    if not own and given:
        reader.refuse_mechanism(given[0], OF_THE_MODEL[given[0]])
    latent = any(reader.has(flag) for flag in LATENT.switches)
    for flag, present in ((RATIOS, RATIOS in given), (LATENT.switches[0], latent)):
        if own and not present:
            raise SpecError(Message("common.is_required", name=flag), path="/model/layer_types")
    return own


def read_compressed(reader: FlagReader, model: dict[str, Any], layers: int) -> dict[str, Any]:
    """The model with its attention, streams and hashed layers.

    model : what is read of it, with the fields of latent attention. layers : without padding.

    Raises UnsupportedError of entries of more than two sizes, and of launches without the kernels that are priced.
    """
    streams = reader.switch(STREAMS, "/model/hyper_connections")
    for kernel, of in KERNELS.items():
        pair = (kernel, f"{kernel}-loss") if kernel.endswith("indexer") else (kernel,)
        if not any([reader.switch(flag, "/model/compressed_attention") for flag in pair]) and reader.has(of):
            reader.refuse_mechanism(of, Message("importers.kind_without_kernel", kind=OF_THE_MODEL[of], flag=kernel))
    if not reader.switch(INDEXER, "/model/compressed_attention"):
        reader.refuse_mechanism(RATIOS, Message("mechanism.sparse_without_indexer"))
    types, rates = _types(reader, layers)
    sizes = rates | _sizes(reader, "compressed_attention", CompressedAttention.flags)
    window = reader.number(WINDOW, "/model/sliding_window")
    fields = {key: value for key, value in model.items() if key not in REPLACED}
    fields |= {
        "num_key_value_heads": 1,
        "head_dim": model["qk_nope_head_dim"],
        "sliding_window": window or defaults_of("MindSpeed-LLM")[WINDOW],
        "layer_types": types,
        "compressed_attention": sizes,
    }
    if streams:
        fields["hyper_connections"] = _sizes(reader, "hyper_connections", HyperConnections.flags)
    hashed = reader.number("--n-hash-layers", "/model/num_hash_layers") or 0
    return fields | {"num_hash_layers": min(hashed, layers)}


# Fields of the recipe and of its scaling, and their flags.
BASES: Final = {"rope_theta": "--rope-theta", "compress_rope_theta": "--compress-rope-theta"}
BEFORE: Final = "original_max_position_embeddings"
SCALING: Final = {
    **{"factor": "--rope-factor", BEFORE: "--original-seq-len"},
    **{"beta_fast": "--beta-fast", "beta_slow": "--beta-slow"},
}


def read_positions(reader: FlagReader) -> dict[str, Any]:
    """Rotary positions in the recipe: the base of windows, and of entries theirs with yarn."""
    where, defaults = "/model/recipe", defaults_of("MindSpeed-LLM")
    bases = {field: reader.decimal(flag, f"{where}/{field}") or defaults[flag] for field, flag in BASES.items()}
    scaling: dict[str, Any] = {"rope_type": "yarn"}
    for field, flag in SCALING.items():
        read = reader.number if field == BEFORE else reader.decimal
        scaling[field] = read(flag, f"{where}/rope_scaling/{field}") or defaults.get(flag)
    return {**bases, "rope_scaling": {field: value for field, value in scaling.items() if value is not None}}


def _types(reader: FlagReader, layers: int) -> tuple[list[str], dict[str, int]]:
    """Types of layers: one number each, padding counted."""
    words = reader.words(RATIOS, "/model/layer_types")
    if bad := [word for word in words if not word.isdigit() or len(word) > 5]:
        reader.fail(RATIOS, Message("field_fault.is_no_whole_number", value=repr(bad[0][:40])))
    noops = noop_numbers(reader)
    ratios = [int(word) for number, word in enumerate(words) if number not in noops][:layers]
    if len(ratios) < layers:
        reader.fail(RATIOS, Message("common.entries_expected", count=layers, found=len(ratios)))
    types = types_of(ratios)
    if types is None:
        reader.refuse_mechanism(RATIOS, f"compress_ratios {sorted({*ratios})}")
    return types


CP_ALGORITHM: Final = "kvallgather_cp_algo"
ATTENTION, STREAM_SIZES, ROPE = "ATTENTION_ARGS", "MHC_ARGS", "ROPE_ARGS"


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
    add(ATTENTION, RATIOS, *ratios(model, arguments.numbers("--noop-layers")))
    sizes = [(flag, getattr(compressed, field)) for field, (flag, _) in compressed.flags.items()]
    switch: list[tuple[Any, ...]] = [(WINDOW, model.sliding_window or 0), (INDEXER,)]
    for words in (*sizes[:2], *switch, *sizes[2:]):
        add(ATTENTION, *words)
    add(ATTENTION, SPARSE)
    if CSA in (model.layer_types or ()):
        add(ATTENTION, "--use-fused-lightning-indexer")
        add(ATTENTION, "--use-fused-lightning-indexer-loss")
    if streams is not None:
        add(STREAM_SIZES, STREAMS)
        for field, (flag, _) in streams.flags.items():
            add(STREAM_SIZES, flag, getattr(streams, field))
        add(STREAM_SIZES, "--use-fused-mhc")
        add(STREAM_SIZES, "--use-triton-mhc")
    if model.num_hash_layers:
        add("MOE_ARGS", "--n-hash-layers", model.num_hash_layers)
        arguments.note(Message("exporters.hash_tables_are_placeholders", layers=model.num_hash_layers))
    _add_positions(arguments, model)


def _add_positions(arguments: LaunchArguments, model: ModelSpec) -> None:
    """Bases of windows and of entries, whose positions are scaled."""
    recipe, add = model.recipe_or_default, arguments.add
    add("GPT_ARGS", "--position-embedding-type", "deepseek4")
    add("GPT_ARGS", "--rotary-base", round(recipe.rope_theta or 10_000))
    scaling = recipe.rope_scaling
    scaled = scaling is not None and scaling.factor is not None
    rows: list[tuple[Any, str, str]] = [(recipe, field, flag) for field, flag in BASES.items()]
    rows += [(scaling, field, flag) for field, flag in SCALING.items() if scaled]
    for said, field, flag in rows:
        if (value := getattr(said, field)) is not None:
            add(ROPE, flag, as_number(value))
    add(ROPE, "--rope-scaling-original-max-position-embeddings", ShellVariable("SEQ_LENGTH"))
