"""DeepSeek-V4 in a Hugging Face `config.json`: layers with compressed keys, residual streams, hashed experts.

Files of checkpoints name the tokens of an entry of each layer (`compress_ratios`: 0 or 1 a window alone, 4 entries that
an indexer chooses, more all entries), with further numbers for prediction modules; those of transformers name types of
layers (`layer_types`, `compress_rates`, `mlp_layer_types`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autodeploy.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.specs.compressed_attention import CSA, HCA, INDEXED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.importers.hf_config import Reader

SLIDING: Final = "sliding_attention"
OF_FLASH: Final = {"o_groups": 8, "o_lora_rank": 1024, "index_topk": 512, "index_n_heads": 64, "index_head_dim": 128}
SIZES: Final = tuple(OF_FLASH)
USUAL_RATES: Final = {CSA: INDEXED, HCA: 128}
USUAL_WINDOW, USUAL_HASHED, USUAL_STREAMS = 128, 3, 4
MAX_RATE = 65_536


def types_of(ratios: Sequence[int]) -> tuple[list[str], dict[str, int]] | None:
    """Types of layers with so many tokens in an entry, and sizes of the entries; None of more than two kinds."""
    heavy = {ratio for ratio in ratios if ratio > 1 and ratio != INDEXED}
    if len(heavy) > 1:
        return None
    types = [SLIDING if ratio <= 1 else CSA if ratio == INDEXED else HCA for ratio in ratios]
    return types, {"csa_rate": INDEXED, "hca_rate": next(iter(heavy), USUAL_RATES[HCA])}


def read_compressed(reader: Reader, layers: int) -> dict[str, Any]:
    """Fields of the attention, of residual streams and of layers whose experts a table chooses.

    Raises
    ------
    SpecError
        where sizes are missing. UnsupportedError : where entries are of more than two kinds.
    """
    types, rates = _types(reader, layers)
    sizes: dict[str, Any] = dict(rates)
    for name in SIZES:
        sizes[name] = reader.raw(name)
        if sizes[name] is None:
            raise SpecError(
                Message("common.needs_it", what="compressed_attention"),
                path=reader.at(name),
                hint="DeepSeek-V4-Flash: " + ", ".join(f"{size} {value}" for size, value in OF_FLASH.items()),
            )
        reader.took(f"compressed_attention/{name}", name, sizes[name])
    window, streams, iterations = (reader.raw(key) for key in ("sliding_window", "hc_mult", "hc_sinkhorn_iters"))
    reader.took("sliding_window", "sliding_window", window or USUAL_WINDOW)
    reader.took("hyper_connections/hc_mult", "hc_mult", streams or USUAL_STREAMS)
    fields = {
        "layer_types": types,
        "compressed_attention": sizes,
        "sliding_window": window or USUAL_WINDOW,
        "qk_rope_head_dim": _rotary_width(reader),
        "num_hash_layers": _hashed(reader, layers),
    }
    if streams != 1:
        connections = {"hc_mult": streams or USUAL_STREAMS, "hc_sinkhorn_iters": iterations}
        fields["hyper_connections"] = {key: value for key, value in connections.items() if value is not None}
    return fields


def _types(reader: Reader, layers: int) -> tuple[list[str], dict[str, int]]:
    named, ratios, rates = (reader.raw(key) for key in ("layer_types", "compress_ratios", "compress_rates"))
    if isinstance(named, list):
        reader.log.take(reader.at("layer_types"), "layer_types", named[:layers])
        given = {**USUAL_RATES, **(rates if isinstance(rates, Mapping) else {})}
        return named[:layers], {"csa_rate": given[CSA], "hca_rate": given[HCA]}
    if ratios is None:
        ratios = [USUAL_RATES[HCA] if layer < 2 or layer % 2 else INDEXED for layer in range(layers)]
        reader.log.default("layer_types", HCA, Message("importers.default_of", framework="Hugging Face"))
    path = reader.at("compress_ratios")
    if not isinstance(ratios, list):
        raise SpecError(Message("field_fault.is_no_list", value=quoted(ratios)), path=path)
    if len(ratios) < layers:
        raise SpecError(Message("common.entries_expected", count=layers, found=len(ratios)), path=path)
    numbers = [reader.checked_count(ratio, path, MAX_RATE) for ratio in ratios[:layers]]
    types = types_of(numbers)
    if types is None:
        raise UnsupportedError(
            Message("common.is_not_modelled_yet", what=f"compress_ratios {sorted({*numbers})}"),
            path=path,
            hint=Message("importers.plan_model_of_same_size_without_it"),
        )
    reader.log.take(path, "layer_types", numbers)
    return types


def _rotary_width(reader: Reader) -> int:
    """Of a head: a number, or a share of the head."""
    width, share, head = (reader.raw(key) for key in ("qk_rope_head_dim", "partial_rotary_factor", "head_dim"))
    if width is None:
        whole = reader.checked_count(head or 512, reader.at("head_dim"), MAX_RATE)
        width = int(whole * (share if isinstance(share, float) else 0.125))
    return reader.checked_count(width, reader.at("qk_rope_head_dim"), MAX_RATE)


def _hashed(reader: Reader, layers: int) -> int:
    count, named = reader.raw("num_hash_layers"), reader.raw("mlp_layer_types")
    if isinstance(named, list):
        count = sum(kind == "hash_moe" for kind in named[:layers])
    hashed = USUAL_HASHED if count is None else reader.checked_count(count, reader.at("num_hash_layers"), layers)
    reader.took("num_hash_layers", "num_hash_layers", hashed)
    return hashed
