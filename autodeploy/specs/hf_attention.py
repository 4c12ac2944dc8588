"""Types of layers in a Hugging Face `config.json`: linear, chunked and sliding ones, and indexers.

Families say them differently: a list (`layer_types`), an interval (`full_attention_interval`), a pattern
(`sliding_window_pattern`), numbers of layers (`linear_attn_config`, counted from 1) or flags of layers without rotary
positions (`no_rope_layers`, 0 where there are none).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.specs.attention import CSA, HCA, INDEXED, USUAL_OFFSET
from autodeploy.specs.diagnostics import not_modelled, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.hf_config import Reader


# DeepSeek-V4 in a Hugging Face `config.json`.
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

    Raises SpecError where sizes are missing. UnsupportedError : where entries are of more than two kinds.
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
            hint=Message("importers.plan_without_it"),
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


MARKED: Final = "hybrid_layer_pattern"
FULL, LINEAR, CHUNKED, SLIDING_LAYER = "full_attention", "linear_attention", "chunked_attention", "sliding_attention"
GATED_DELTA_NET = {
    "num_key_heads": "linear_num_key_heads",
    "num_value_heads": "linear_num_value_heads",
    "key_head_dim": "linear_key_head_dim",
    "value_head_dim": "linear_value_head_dim",
    "conv_kernel_dim": "linear_conv_kernel_dim",
}
INDEXER = ("index_topk", "index_n_heads", "index_head_dim", "index_topk_freq", "index_skip_topk_offset")
MAX_COUNT = 1_000_000


def read_attention_types(reader: Reader, layers: int) -> dict[str, Any]:
    """Fields of the attention's types beyond sliding windows; empty where all layers are alike.

    Raises UnsupportedError of variants that are not modelled, by their key.
    """
    reads = reader.architecture.reads
    if "compress_ratios" in reads:
        return read_compressed(reader, layers)
    fields: dict[str, Any] = {}
    if "index_topk" in reads:
        fields |= _indexer(reader, layers)
    if "linear_num_value_heads" in reads:
        fields |= _gated_delta_net(reader, layers)
    if "linear_attn_config" in reads:
        fields |= _kda(reader, layers)
    if "attention_chunk_size" in reads:
        fields |= _chunks(reader, layers)
    if "attention_other_setting" in reads:
        fields |= _other_heads(reader, layers)
    return fields


def every(interval: int, layers: int, others: str) -> list[str]:
    """Types where every `interval`-th layer has full attention."""
    return [FULL if (layer + 1) % interval == 0 else others for layer in range(layers)]


def refuse_marks(reader: Reader) -> None:
    """Refuses a pattern of letters, whose layers are recurrent, and marks that no window goes with.

    Raises SpecError: UnsupportedError for what is no mark of a window: 1 or 0.
    """
    marked = reader.raw(MARKED)
    if not marked:
        return
    if not (isinstance(marked, list) and all(mark in (0, 1) for mark in marked)):
        message = not_modelled(Message("mechanism.recurrent_layers"), MARKED)
        raise UnsupportedError(message, path=reader.at(MARKED), hint=Message("importers.plan_without_it"))
    if any(marked) and not reader.config.get("sliding_window"):
        raise SpecError(Message("common.is_required", name="sliding_window"), path=reader.prefix)


def window_pattern(reader: Reader, layers: int) -> list[str] | None:
    """Types by a pattern: Gemma's, every so many layers one sees everything, may be fixed by the architecture; MiMo's
    marks the layers with a window.
    """
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        given = reader.raw(key)
        if given is not None:
            interval = max(1, reader.checked_count(given, reader.at(key), MAX_COUNT))
            reader.log.take(reader.at(key), "layer_types", given)
            return every(interval, layers, SLIDING_LAYER)
    if (marked := reader.raw(MARKED)) is not None:
        reader.log.take(reader.at(MARKED), "layer_types", marked)
        return [SLIDING_LAYER if mark else FULL for mark in marked]
    fixed = reader.architecture.full_every
    return every(fixed, layers, SLIDING_LAYER) if fixed else None


def _indexer(reader: Reader, layers: int) -> dict[str, Any]:
    """DSA. Which layers share the keys of others is said by a frequency, or by a list that has to be of one."""
    sizes = {name: reader.raw(name) for name in INDEXER}
    if sizes["index_topk"] is None:
        return {}
    for name, value in sizes.items():
        reader.took(f"sparse_attention/{name}", name, value)
    sizes = {name: value for name, value in sizes.items() if value is not None}
    for key in ("index_topk_pattern", "indexer_types"):
        given = reader.raw(key)
        if given is None:
            continue
        shared = [str(word).lower().startswith("s") for word in given] if isinstance(given, str | list) else []
        rhythm = _rhythm(shared) if len(shared) == layers else None
        if rhythm is None:
            message = not_modelled(Message("mechanism.shared_index_pattern"), key)
            raise UnsupportedError(message, path=reader.at(key), hint=Message("importers.plan_without_it"))
        reader.log.take(reader.at(key), "sparse_attention/index_topk_freq", rhythm[0])
        sizes |= {"index_topk_freq": rhythm[0], "index_skip_topk_offset": rhythm[1]}
    return {"sparse_attention": sizes}


def _rhythm(shared: list[bool]) -> tuple[int, int] | None:
    """Frequency and offset of layers that share the keys of others; None where there is no such rhythm."""
    if True not in shared:
        return 1, USUAL_OFFSET
    offset = shared.index(True)  # the last layer, counted from 1, before the first that shares
    frequency = next((n for n, each in enumerate(shared[offset:], 1) if not each), len(shared))
    rhythm = [max(number - offset, 0) % frequency != 0 for number in range(1, len(shared) + 1)]
    return (frequency, offset) if offset and rhythm == shared else None


def _gated_delta_net(reader: Reader, layers: int) -> dict[str, Any]:
    sizes = {field: reader.raw(key) for field, key in GATED_DELTA_NET.items()}
    given, interval = reader.raw("layer_types"), reader.raw("full_attention_interval")
    for field, key in GATED_DELTA_NET.items():
        reader.took(f"linear_attention/{field}", key, sizes[field])
    if given is None:
        of = reader.checked_count(interval or 4, reader.at("full_attention_interval"), MAX_COUNT)
        given = every(max(1, of), layers, LINEAR)
        reader.log.default("layer_types", f"full attention every {of} layers", "full_attention_interval")
    else:
        reader.log.take(reader.at("layer_types"), "layer_types", given)
    fields: dict[str, Any] = {
        "layer_types": given,
        "attention_output_gate": reader.raw("attn_output_gate") is not False,
    }
    sizes = {field: value for field, value in sizes.items() if value is not None}
    return fields | ({"linear_attention": {"kind": "gated_delta_net", **sizes}} if LINEAR in given else {})


def _kda(reader: Reader, layers: int) -> dict[str, Any]:
    key = "linear_attn_config"
    given = reader.raw(key)
    if not given:
        return {}
    if not isinstance(given, Mapping) or not isinstance(given.get("kda_layers"), list):
        raise SpecError(
            Message("importers.not_json_object"),
            path=reader.at(key),
            hint="Kimi-Linear: kda_layers [1, 2, 3, 5, ...]",
        )
    if given.get("use_full_rank_gate"):
        raise UnsupportedError(
            not_modelled(Message("mechanism.output_gate"), key),
            path=reader.at(key),
            hint=Message("importers.plan_without_it"),
        )
    linear = {reader.checked_count(n, f"{reader.at(key)}/kda_layers", MAX_COUNT) for n in given["kda_layers"]}
    heads, width = given.get("num_heads"), given.get("head_dim")
    sizes = {"num_key_heads": heads, "num_value_heads": heads, "key_head_dim": width, "value_head_dim": width}
    sizes["conv_kernel_dim"] = given.get("short_conv_kernel_size", 4)
    reader.log.take(reader.at(key), "linear_attention", given)
    types = [LINEAR if layer + 1 in linear else FULL for layer in range(layers)]
    return {"layer_types": types, "linear_attention": {"kind": "kda", **sizes}}


def _chunks(reader: Reader, layers: int) -> dict[str, Any]:
    """Llama-4: chunks in layers with rotary positions, everything in those without."""
    size, types = reader.raw("attention_chunk_size"), reader.raw("layer_types")
    flags, interval = reader.raw("no_rope_layers"), reader.raw("no_rope_layer_interval")
    if size is None:
        return {}
    reader.took("attention_chunk_size", "attention_chunk_size", size)
    if isinstance(types, list):
        reader.log.take(reader.at("layer_types"), "layer_types", types)
    elif isinstance(flags, list) and flags:
        types = [CHUNKED if flag else FULL for flag in flags]
        reader.log.take(reader.at("no_rope_layers"), "layer_types", flags)
    else:
        of = max(1, reader.checked_count(interval or 4, reader.at("no_rope_layer_interval"), MAX_COUNT))
        types = every(of, layers, CHUNKED)
        reader.log.default(
            "layer_types",
            f"full attention every {of} layers",
            Message("importers.default_of", framework="Hugging Face"),
        )
    return {"attention_chunk_size": size, "layer_types": types}


def _other_heads(reader: Reader, layers: int) -> dict[str, Any]:
    """Step-3.5: sliding layers with their own number of query heads, and a gate a head.

    Its `layer_types` go on with the types of the prediction modules, whose layers are of another kind.
    """
    key = "attention_other_setting"
    other, types, modules = reader.raw(key), reader.raw("layer_types"), reader.raw("num_nextn_predict_layers")
    window, gate = reader.raw("sliding_window"), bool(reader.raw("use_head_wise_attn_gate"))
    reader.took("attention_head_gate", "use_head_wise_attn_gate", gate)
    for name, modelled in (("use_moe", True), ("att_impl_type", "GQA")):
        if reader.raw(name) not in (None, modelled):
            message = Message("common.is_not_modelled_yet", what=f"{name}: {shown(reader.raw(name))}")
            raise UnsupportedError(message, path=reader.at(name), hint=Message("importers.plan_without_it"))
    if modules:
        reason = Message("importers.not_predicted")
        reader.log.ignore(reader.at("num_nextn_predict_layers"), modules, reason)
        reader.log.doubt("/num_nextn_predict_layers", modules, reason)
    fields: dict[str, Any] = {"attention_head_gate": gate}
    if not isinstance(types, list) or window is None:
        hint = "Step-3.5-Flash: sliding_window 512, layer_types"
        raise SpecError(
            Message("common.is_required", name="sliding_window, layer_types"), path=reader.prefix, hint=hint
        )
    reader.log.take(reader.at("layer_types"), "layer_types", types[:layers])
    reader.took("sliding_window", "sliding_window", window)
    fields |= {"layer_types": types[:layers], "sliding_window": window}
    if not other:
        return fields
    if not isinstance(other, Mapping) or other.get("attention_type", SLIDING_LAYER) != SLIDING_LAYER:
        raise SpecError(
            Message("importers.not_json_object"),
            path=reader.at(key),
            hint="Step-3.5-Flash: num_attention_heads 96",
        )
    for name in ("num_attention_groups", "head_dim"):
        if other.get(name) not in (None, reader.raw(name)):
            raise UnsupportedError(
                Message("common.is_not_modelled_yet", what=f"{name}: {shown(other[name])}"),
                path=f"{reader.at(key)}/{name}",
                hint=Message("importers.plan_without_it"),
            )
    reader.took("sliding_attention_heads", key, other.get("num_attention_heads"))
    return fields | {"sliding_attention_heads": other.get("num_attention_heads")}
