"""DeepSeek-V4 in MindSpeed-LLM's flags: attention to compressed keys, residual streams, hashed experts.

Its layers are those of `pretrain_deepseek4.py`, and of fine-tuning, alone. `--qk-head-dim` is the whole head, which
`--kv-lora-rank` and `--v-head-dim` say once more or not at all; prediction modules have a window alone.
Source: MindSpeed-LLM @c77308a1, tasks/models/transformer/deepseek4/csa.py, core/models/deepseek4/deepseek4_model.py,
features_manager/transformer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autodeploy.formats.megatron.arguments import ShellVariable
from autodeploy.formats.megatron.layers import noop_numbers
from autodeploy.formats.megatron.recipe_writer import as_number
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.attention import CSA, LATENT
from autodeploy.specs.hf_attention import types_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.formats.megatron.arguments import LaunchArguments
    from autodeploy.specs.model import ModelSpec


PROGRAM: Final = "pretrain_deepseek4.py"
TUNER: Final = "posttrain_gpt.py"
RATIOS, STREAMS = "--compress-ratios", "--enable-mhc"
OF_THE_MODEL = {
    "--kv-compress": Message("mechanism.compressed_attention"),
    RATIOS: Message("mechanism.compressed_attention"),
    STREAMS: Message("mechanism.hyper_connections"),
}
SIZES = {
    "o_groups": ("--o-groups", 8),
    "o_lora_rank": ("--o-lora-rank", 1024),
    "index_topk": ("--index-topk", 2048),
    "index_n_heads": ("--index-n-heads", 64),
    "index_head_dim": ("--index-head-dim", 128),
}
# Without these kernels scores are made whole, and maps of streams by FP32 operators: nothing that is priced.
KERNELS = {
    "--use-sparse-flash-attn": RATIOS,
    "--use-fused-lightning-indexer": RATIOS,
    "--use-fused-mhc": STREAMS,
}
REPLACED = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")


def is_compressed(reader: FlagReader) -> bool:
    """Whether the launch is DeepSeek-V4's.

    Raises
    ------
    UnsupportedError
        where another program has its flags. SpecError : where its program lacks those that make its layers.
    """
    program = reader.script.program.rpartition("/")[2]
    given = [flag for flag in OF_THE_MODEL if reader.has(flag)]
    own = program == PROGRAM or (program == TUNER and RATIOS in given)
    if not own and given:
        reader.refuse_mechanism(given[0], OF_THE_MODEL[given[0]])
    latent = any(reader.has(flag) for flag in LATENT.switches)
    for flag, present in ((RATIOS, RATIOS in given), (LATENT.switches[0], latent)):
        if own and not present:
            raise SpecError(Message("common.is_required", name=flag), path="/model/layer_types")
    return own


def read_compressed(reader: FlagReader, model: dict[str, Any], layers: int) -> dict[str, Any]:
    """The model with its attention, streams and hashed layers.

    Parameters
    ----------
    model : what is read of it, with the fields of latent attention. layers : without padding.

    Raises
    ------
    UnsupportedError
        of entries of more than two sizes, and of launches without the kernels that are priced.
    """
    streams = reader.switch(STREAMS, "/model/hyper_connections")
    for kernel, of in KERNELS.items():
        pair = (kernel, f"{kernel}-loss") if kernel.endswith("indexer") else (kernel,)
        if not any([reader.switch(flag, "/model/compressed_attention") for flag in pair]) and reader.has(of):
            reader.refuse_mechanism(of, Message("importers.kind_without_kernel", kind=OF_THE_MODEL[of], flag=kernel))
    if not reader.switch("--enable-dsa-indexer", "/model/compressed_attention"):
        reader.refuse_mechanism(RATIOS, Message("mechanism.sparse_without_indexer"))
    types, rates = _types(reader, layers)
    sizes: dict[str, Any] = dict(rates)
    for field, (flag, usual) in SIZES.items():
        given = reader.number(flag, f"/model/compressed_attention/{field}")
        sizes[field] = usual if given is None else given
    window = reader.number("--sliding-window-size", "/model/sliding_window")
    fields = {key: value for key, value in model.items() if key not in REPLACED}
    fields |= {
        "num_key_value_heads": 1,
        "head_dim": model["qk_nope_head_dim"],
        "sliding_window": window or 128,
        "layer_types": types,
        "compressed_attention": sizes,
    }
    if streams:
        counts = {"hc_mult": ("--hc-mult", 4), "hc_sinkhorn_iters": ("--hc-sinkhorn-iters", 20)}
        numbers = {
            field: (reader.number(flag, f"/model/hyper_connections/{field}"), usual)
            for field, (flag, usual) in counts.items()
        }
        fields["hyper_connections"] = {field: usual if n is None else n for field, (n, usual) in numbers.items()}
    hashed = reader.number("--n-hash-layers", "/model/num_hash_layers") or 0
    return fields | {"num_hash_layers": min(hashed, layers)}


def read_positions(reader: FlagReader) -> dict[str, Any]:
    """Rotary positions in the recipe: the base of windows, and of entries theirs with yarn."""
    where = "/model/recipe"
    base, entries = (
        reader.decimal(flag, f"{where}/{field}")
        for flag, field in (("--rope-theta", "rope_theta"), ("--compress-rope-theta", "compress_rope_theta"))
    )
    factor = reader.decimal("--rope-factor", f"{where}/rope_scaling/factor")
    before = reader.number("--original-seq-len", f"{where}/rope_scaling/original_max_position_embeddings")
    scaling = {"rope_type": "yarn", "factor": factor or 4.0, "original_max_position_embeddings": before or 65_536}
    for flag in ("--beta-fast", "--beta-slow"):
        value = reader.decimal(flag, f"{where}/rope_scaling")
        scaling |= {} if value is None else {flag.removeprefix("--").replace("-", "_"): value}
    return {"rope_theta": base or 1e4, "compress_rope_theta": entries or 4e4, "rope_scaling": scaling}


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


# DeepSeek-V4 in MindSpeed-LLM's flags.
TRAINER: Final = "pretrain_deepseek4.py"
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
    add(ATTENTION, "--compress-ratios", *ratios(model, arguments.numbers("--noop-layers")))
    sizes = [(flag, getattr(compressed, field)) for field, (flag, _) in SIZES.items()]
    switch: list[tuple[Any, ...]] = [("--sliding-window-size", model.sliding_window or 0), ("--enable-dsa-indexer",)]
    for words in (*sizes[:2], *switch, *sizes[2:]):
        add(ATTENTION, *words)
    add(ATTENTION, "--use-sparse-flash-attn")
    if CSA in (model.layer_types or ()):
        add(ATTENTION, "--use-fused-lightning-indexer")
        add(ATTENTION, "--use-fused-lightning-indexer-loss")
    if streams is not None:
        add(STREAM_SIZES, "--enable-mhc")
        add(STREAM_SIZES, "--hc-mult", streams.hc_mult)
        add(STREAM_SIZES, "--hc-sinkhorn-iters", streams.hc_sinkhorn_iters)
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
