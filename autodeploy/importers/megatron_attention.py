"""Attention that is neither of grouped queries nor of latents, as MindSpeed-LLM's flags say it.

Source: MindSpeed-LLM @c77308a1, features_manager/transformer: dsa_indexer_feature.py, qwen3_next_feature.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.importers.megatron_layers import noop_numbers
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.importers.flag_reader import FlagReader

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
