"""Hugging Face `config.json` to a model spec. Reads the file only: no network, no code of the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from autodeploy.kit.errors import FieldError, SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.specs.diagnostics import NO_EFFECT, Diagnostics, DiagnosticsLog, not_modelled, shown
from autodeploy.specs.field_errors import field_errors, pointer
from autodeploy.specs.hf_architectures import (
    ARCHITECTURES,
    CHECK,
    HARMLESS,
    IGNORED,
    KEYS,
    LAYER_KINDS,
    MODEL_TYPES,
    NOT_MODELLED,
    TELLING,
    UNKNOWN,
    Architecture,
)
from autodeploy.specs.hf_attention import read_attention_types, refuse_marks, window_pattern
from autodeploy.specs.hf_recipe import read_recipe
from autodeploy.specs.model import MAX_LAYERS, ModelSpec
from autodeploy.specs.text_files import MAX_BYTES, MAX_DEPTH

MAX_NODES = 100_000
MAX_SHOWN = 20
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_IDENTITY = ("architectures", "model_type", "_name_or_path")


def read_hf_config(data: Mapping[str, Any] | bytes | str, name: str | None = None) -> tuple[ModelSpec, Diagnostics]:
    """The model a `config.json` describes, and what was taken, defaulted, ignored or contradicted.

    data : the file's content, or its mapping.
    name : the model's name; otherwise the file's `_name_or_path` or architecture.

    Raises SpecError when the content is not such a file, or its sizes make no sense; paths are JSON pointers into the
    file; UnsupportedError when the model has a mechanism that is not modelled, such as linear attention.
    """
    top = _mapping(data)
    _refuse_hostile(top)
    reader = Reader.of(top)
    _refuse_not_modelled(reader)
    fields = _read_attention(reader)
    fields |= _read_layers(reader)
    fields |= _read_experts(reader, fields)
    fields |= reader.architecture.fixed | _read_norms(reader)
    fields["recipe"] = read_recipe(reader, has_experts=fields.get("n_routed_experts") is not None) or None
    fields["name"] = (name or reader.model_name)[:200]
    _refuse_telling(reader)
    reader.note_rest()
    try:
        return ModelSpec.model_validate(fields), reader.log.finish()
    except ValidationError as error:
        raise SpecError(errors=tuple(map(reader.in_file, field_errors(error, model=ModelSpec)))) from error


class Reader:
    """The part of the file that describes the language model, with a log of what was done with each key."""

    def __init__(self, config: Mapping[str, Any], prefix: str, architecture: Architecture, model_name: str) -> None:
        self.config, self.prefix = config, prefix
        self.architecture, self.model_name = architecture, model_name
        self.log = DiagnosticsLog()
        self._sources: dict[str, str] = {}
        self._used: set[str] = set(_IDENTITY)
        self._beside: list[str] = []

    @classmethod
    def of(cls, top: Mapping[str, Any]) -> Reader:
        part = next((p for p in _TEXT_PARTS if isinstance(top.get(p), Mapping) and "hidden_size" not in top), None)
        config: Mapping[str, Any] = top if part is None else top[part]
        identity = _architecture_name(config) or _architecture_name(top)
        architecture = ARCHITECTURES.get(identity, UNKNOWN)
        file_name = config.get("_name_or_path") or top.get("_name_or_path")
        model_name = str(file_name).rstrip("/").rpartition("/")[2] if file_name else identity or "unnamed model"
        reader = cls(config, "" if part is None else pointer((part,)), architecture, model_name)
        if not architecture.known:
            reason: str = Message("importers.unknown_architecture", name=shown(identity))
            reader.log.default("architecture", "LlamaForCausalLM", reason)
            reader.log.doubt("", "", reason)
        if part is not None:
            if "tie_word_embeddings" in top and "tie_word_embeddings" not in config:
                reader.config = {**config, "tie_word_embeddings": top["tie_word_embeddings"]}
            for key in top:
                if key not in {part, "tie_word_embeddings", *_IDENTITY}:
                    reason = IGNORED.get(key, CHECK)
                    reader.log.ignore(pointer((key,)), top[key], reason)
                    reader._beside += [shown(key)] if reason == CHECK else []
        return reader

    def at(self, key: str) -> str:
        """The JSON pointer of a key."""
        return self.prefix + pointer((key,))

    def raw(self, key: str) -> Any:
        """The value of a key that needs interpretation, marked as read."""
        self._used.add(key)
        return self.config.get(key)

    def take(self, field: str) -> Any:
        """The field's value under the first of its names that the file has; others are compared with it."""
        value = None
        for key in self.architecture.names(field):
            raw = self.raw(key)
            if raw is None:
                continue
            if isinstance(raw, list) and raw and all(each == raw[0] for each in raw):
                raw = raw[0]  # one value for every layer
            if isinstance(raw, list | dict):
                message = Message("common.is_not_modelled_yet", what=f"{key}: {type(raw).__name__}")
                raise UnsupportedError(message, path=self.at(key), hint=Message("field_fault.a_number"))
            if value is None:
                value = raw
                self._sources[field] = self.at(key)
                self.log.take(self.at(key), field, raw)
            elif raw != value:
                self.log.contradict(
                    self.at(key),
                    field,
                    raw,
                    Message("importers.says", source=self._sources[field], value=shown(value)),
                )
        if value is None and (value := self.architecture.defaults.get(field)) is not None:
            self._sources[field] = self.at(self.architecture.names(field)[0])
            self.log.default(field, value, Message("importers.default_of", framework="Hugging Face"))
        return value

    def count(self, field: str, limit: int = 1_000_000) -> int | None:
        """`take` for a number that is calculated with before the model is validated."""
        value = self.take(field)
        return None if value is None else self.checked_count(value, self._sources[field], limit)

    @staticmethod
    def checked_count(value: Any, path: str, limit: int) -> int:
        """The value if it is a whole number from 0 to the limit."""
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise SpecError(Message("importers.not_whole_number", value=shown(value), least=0, most=limit), path=path)
        return value

    def took(self, field: str, key: str, value: Any, note: str = "") -> None:
        """Notes that the key became the field."""
        self._sources[field] = self.at(key)
        self.log.take(self.at(key), field, value, note)

    def contradicts(self, field: str, key: str, value: Any, taken: Any) -> None:
        """Notes a key that says otherwise than the one that the field was taken from."""
        self.log.contradict(
            self.at(key), field, value, Message("importers.says", source=self._sources[field], value=shown(taken))
        )

    def source(self, field: str) -> str:
        """The JSON pointer that the field's value came from."""
        return self._sources.get(field, self.prefix)

    def forget(self, field: str, value: Any, reason: str) -> None:
        """A value that was read but does not apply to this model."""
        if value is not None:
            self.log.forget(self.source(field), field, value, reason)

    def note_rest(self) -> None:
        """Every key that nothing has read is ignored, with a reason."""
        unknown = []
        for key, value in self.config.items():
            if key not in self._used:
                reason = IGNORED.get(key, CHECK)
                self.log.ignore(self.at(key), value, reason)
                unknown += [shown(key)] if reason == CHECK else []
        unknown = [*self._beside, *unknown]
        if unknown:
            more = f" and {len(unknown) - MAX_SHOWN} more" if len(unknown) > MAX_SHOWN else ""
            named = ", ".join(unknown[:MAX_SHOWN]) + more
            self.log.doubt("", "", Message("common.place", place=named, message=CHECK))

    def unread(self) -> list[tuple[str, Any]]:
        """Keys that nothing has read, those of sections by the section's name and their own."""
        unread = []
        for key, value in self.config.items():
            if key in self._used or key in IGNORED or not isinstance(key, str):
                continue
            inner = value if isinstance(value, Mapping) else {}
            unread += [(f"{key}/{name}", part) for name, part in inner.items() if f"{key}/{name}" not in IGNORED]
            unread += [] if inner else [(key, value)]
        return unread

    def in_file(self, error: FieldError) -> FieldError:
        """An error of the model spec at the place in the file that its value came from."""
        field, slash, rest = error.path.removeprefix("/").partition("/")
        if field == "recipe":
            inner, slash, rest = rest.partition("/")
            field = f"recipe/{inner}"
        path = self._sources.get(field) or self.at((KEYS.get(field) or (field,))[0])
        return FieldError(path + slash + rest, error.message, error.hint)


def _mapping(data: Mapping[str, Any] | bytes | str) -> Mapping[str, Any]:
    if isinstance(data, bytes | str):
        if len(data) > MAX_BYTES:
            raise SpecError(Message("common.is_larger_than_bytes", limit=MAX_BYTES, file="config.json"), path="")
        try:
            data = json.loads(data, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
        except RecursionError:
            raise SpecError(Message("profiles.nested_too_deep", depth=MAX_DEPTH), path="") from None
        except ValueError as error:  # also of undecodable bytes and of numbers with thousands of digits
            raise SpecError(Message("common.not_of_format", reason=error, format="JSON"), path="") from error
    if not isinstance(data, Mapping):
        raise SpecError(Message("importers.not_json_object"), path="")
    return data


def _no_constant(text: str) -> Any:
    raise ValueError(Message("field_fault.is_not_finite", value=text))


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping and mapping[key] != value:
            raise ValueError(Message("common.given_twice", name=repr(key[:80])))
        mapping[key] = value
    return mapping


def _refuse_hostile(top: Mapping[str, Any]) -> None:
    """Depth, size and finite numbers, without recursion."""
    stack: list[tuple[Any, tuple[str | int, ...]]] = [(top, ())]
    nodes = 0
    while stack:
        value, location = stack.pop()
        nodes += 1
        if nodes > MAX_NODES:
            raise SpecError(Message("field_fault.at_most_entries", bound=f"{MAX_NODES:,}"), path="")
        if len(location) > MAX_DEPTH:
            raise SpecError(Message("profiles.nested_too_deep", depth=MAX_DEPTH), path=pointer(location[:3]))
        if isinstance(value, Mapping):
            stack += [(item, (*location, str(key))) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            stack += [(item, (*location, index)) for index, item in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise SpecError(Message("field_fault.is_not_finite", value=value), path=pointer(location))
        elif isinstance(value, int) and value.bit_length() > 128:
            raise SpecError(Message("field_fault.is_too_big", value=quoted(value)), path=pointer(location))


def _architecture_name(config: Mapping[str, Any]) -> str:
    """The first known of `architectures`, else what `model_type` stands for, else the first name given."""
    given = config.get("architectures")
    names = [n for n in given if isinstance(n, str)] if isinstance(given, list | tuple) else []
    architecture = next((n for n in names if n in ARCHITECTURES), None)
    model_type = str(config.get("model_type") or "")
    return architecture or MODEL_TYPES.get(model_type.lower(), "") or next(iter(names), model_type)


def _refuse_not_modelled(reader: Reader) -> None:
    reads = reader.architecture.reads
    for key, mechanism in NOT_MODELLED.items():
        if key not in reads and reader.config.get(key):
            hint = Message("importers.plan_without_it")
            raise UnsupportedError(not_modelled(mechanism, key), path=reader.at(key), hint=hint)
    refuse_marks(reader)
    if refused := reader.architecture.refused:
        hint = Message("importers.plan_without_it")
        raise UnsupportedError(not_modelled(refused, "architectures"), path=reader.at("architectures"), hint=hint)
    for key, modelled in LAYER_KINDS.items():
        kinds = reader.raw(key)
        modelled = modelled | reader.architecture.layer_kinds
        for index, kind in enumerate(kinds if isinstance(kinds, list) else ()):
            if not (isinstance(kind, str | int) and kind in modelled):
                hint = Message("importers.plan_without_it")
                message = not_modelled(shown(kind), key)
                raise UnsupportedError(message, path=f"{reader.at(key)}/{index}", hint=hint)


def _refuse_telling(reader: Reader) -> None:
    """An unknown architecture may have no key that nothing has read and whose name says experts or other layers."""
    if reader.architecture.known:
        return
    for key, value in reader.unread():
        words = key.lower()
        if value and any(word in words for word in TELLING) and not any(word in words for word in HARMLESS):
            raise UnsupportedError(
                Message("importers.key_of_unknown_architecture", key=shown(key)),
                path=reader.prefix + pointer(key.split("/")),
                hint=Message("importers.write_model_inline"),
            )


def _read_attention(reader: Reader) -> dict[str, Any]:
    """Hidden size, heads and, where the file has latent ranks, the latent attention's dimensions."""
    fields = {name: reader.take(name) for name in ("hidden_size", "num_attention_heads", "vocab_size")}
    kv_heads, head_dim = reader.take("num_key_value_heads"), reader.take("head_dim")
    mla = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    fields |= {name: reader.take(name) for name in mla}
    if fields["kv_lora_rank"] is not None:
        reader.forget("num_key_value_heads", kv_heads, Message("importers.follows_from", what="kv_lora_rank"))
        reader.forget("head_dim", head_dim, Message("importers.follows_from", what="kv_lora_rank"))
        return fields
    if reader.raw("multi_query_attention") is False:
        kv_heads = None
    if kv_heads is None:
        reader.log.default(
            "num_key_value_heads",
            fields["num_attention_heads"],
            Message("importers.follows_from", what="num_attention_heads"),
        )
    if head_dim is None and fields["qk_nope_head_dim"] is None:
        reader.log.default(
            "head_dim", "hidden_size / num_attention_heads", Message("importers.default_of", framework="Hugging Face")
        )
    fields |= {"num_key_value_heads": kv_heads, "head_dim": head_dim}
    nope, rope = fields.pop("qk_nope_head_dim"), fields.pop("qk_rope_head_dim")
    if nope is not None and rope is not None:  # Pangu Pro MoE V2: grouped queries, wider queries and keys than values
        limit = 8192
        fields["head_dim"] = sum(reader.checked_count(d, reader.prefix, limit) for d in (nope, rope))
    return fields


def _read_layers(reader: Reader) -> dict[str, Any]:
    """Layers, windows, the activation and the ends of the model."""
    layers = reader.count("num_hidden_layers", MAX_LAYERS)
    fields: dict[str, Any] = {"num_hidden_layers": layers}
    fields["num_nextn_predict_layers"] = reader.take("num_nextn_predict_layers")
    fields["learned_position_embeddings"] = reader.take("learned_position_embeddings")
    tied = reader.take("tie_word_embeddings")
    if tied is None:
        tied = reader.architecture.tied_by_default
        reader.log.default("tie_word_embeddings", tied, Message("importers.default_of", framework="Hugging Face"))
        if not reader.architecture.known:  # transformers ties where neither the file nor the architecture says
            reader.log.doubt("/model/tie_word_embeddings", tied, Message("common.missing", word="tie_word_embeddings"))
    fields["tie_word_embeddings"] = tied
    fields["hidden_act"] = _activation(reader)
    types = read_attention_types(reader, layers or 0)
    if "layer_types" in types:
        return fields | types
    return fields | types | _read_windows(reader, layers)


def _activation(reader: Reader) -> str:
    value = reader.take("hidden_act")
    gated = reader.architecture.gated
    if value is None:
        value = "silu" if gated else "gelu"
        reader.log.default("hidden_act", value, Message("importers.default_of", framework="Hugging Face"))
    text = str(value).lower()
    if "gelu" in text or text == "geglu":
        return "geglu" if gated else "gelu"
    if gated and text in {"silu", "swish", "swiglu"}:
        return "silu"
    if not gated and text in {"relu", "silu", "swish"}:
        reader.log.default("hidden_act", "gelu", Message("specs.read_as_nearest", name=text, word="gelu"))
        return "gelu"
    hint = Message("common.one_of", names="silu, gelu")
    raise UnsupportedError(
        Message("common.is_not_modelled_yet", what=f"hidden_act {shown(value)}"),
        path=reader.at("hidden_act"),
        hint=hint,
    )


def _read_windows(reader: Reader, layers: int | None) -> dict[str, Any]:
    """Sliding windows: `layer_types` says which layers have one; Qwen2 switches them with `use_sliding_window`."""
    window, types = reader.raw("sliding_window"), reader.raw("layer_types")
    switch, first = reader.raw("use_sliding_window"), reader.raw("max_window_layers")
    if window is None or switch is False:
        if window is not None:
            reader.log.ignore(reader.at("sliding_window"), window, "use_sliding_window=false")
        return {"layer_types": types} if isinstance(types, list) and set(map(str, types)) != {"full_attention"} else {}
    reader.log.take(reader.at("sliding_window"), "sliding_window", window)
    if types is not None:
        reader.log.take(reader.at("layer_types"), "layer_types", types)
    elif layers is not None and (pattern := window_pattern(reader, layers)) is not None:
        types = pattern
    elif switch and first is not None and layers is not None:
        full = reader.checked_count(first, reader.at("max_window_layers"), MAX_LAYERS)
        types = ["full_attention" if i < full else "sliding_attention" for i in range(layers)]
        reader.log.take(reader.at("max_window_layers"), "layer_types", first)
    return {"sliding_window": window, "layer_types": types}


def _read_norms(reader: Reader) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if (sandwich := reader.raw("sandwich_norm")) is not None:
        fields["norm_layout"] = "sandwich" if sandwich else "pre"
        reader.log.take(reader.at("sandwich_norm"), "norm_layout", fields["norm_layout"])
    if (qk_norm := reader.raw("use_qk_norm")) is not None:
        fields["qk_norm"] = bool(qk_norm)
        reader.log.take(reader.at("use_qk_norm"), "qk_norm", fields["qk_norm"])
    return fields


def _read_experts(reader: Reader, fields: Mapping[str, Any]) -> dict[str, Any]:
    """MLP widths and, where there are routed experts, which layers have them."""
    experts, width = reader.count("n_routed_experts"), reader.take("intermediate_size")
    if reader.architecture.halves_intermediate and isinstance(width, int):
        width //= 2
        reader.log.default(
            "intermediate_size",
            width,
            Message("importers.follows_from", what=f"{reader.source('intermediate_size')} / 2"),
        )
    names = ("num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group")
    named = {name: reader.take(name) for name in names}
    shared, shared_width = reader.count("n_shared_experts"), reader.count("shared_expert_intermediate_size")
    dense = _dense_layers(reader, fields["num_hidden_layers"] or 0)
    shortcut = bool(reader.architecture.fixed.get("shortcut_moe"))
    if not experts:
        for name, value in (*named.items(), ("n_shared_experts", shared or None)):
            reader.forget(name, value, NO_EFFECT)
        if width is None and not reader.architecture.gated and isinstance(fields["hidden_size"], int):
            width = 4 * fields["hidden_size"]
            reader.log.default("intermediate_size", width, Message("importers.follows_from", what="4 x hidden_size"))
        return {"intermediate_size": width}
    if named["moe_intermediate_size"] is None and width is not None:
        named["moe_intermediate_size"] = width
        reader.log.take(reader.source("intermediate_size"), "moe_intermediate_size", width)
    elif not dense and not shortcut:
        reader.forget("intermediate_size", width, NO_EFFECT)
    lead = next((i for i, layer in enumerate(dense) if i != layer), len(dense))
    if not shared and shared_width:
        expert_width = named["moe_intermediate_size"]
        whole = isinstance(expert_width, int) and expert_width > 0 and shared_width % expert_width == 0
        shared = shared_width // expert_width if whole else 1
        reader.log.default(
            "n_shared_experts", shared, Message("importers.follows_from", what="shared_expert_intermediate_size")
        )
    placed = {"first_k_dense_replace": lead, "mlp_only_layers": tuple(dense[lead:])}
    widths = {
        "intermediate_size": width if dense or shortcut else None,
        "shared_expert_intermediate_size": shared_width or None,
    }
    placed |= _beside_experts(reader)
    return named | placed | widths | {"n_routed_experts": experts, "n_shared_experts": shared or 0}


def _beside_experts(reader: Reader) -> dict[str, Any]:
    """Experts that return what they get, of the architectures that have them, and their modules of prediction."""
    key, modules = "zero_expert_num", "num_nextn_predict_layers"
    if key not in reader.architecture.reads:
        return {}
    number, kind = reader.raw(key) or 0, reader.raw("zero_expert_type")
    if number and kind not in {None, "identity"}:
        path, hint = reader.at("zero_expert_type"), Message("importers.plan_without_it")
        message = not_modelled(shown(kind), "zero_expert_type")
        raise UnsupportedError(message, path=path, hint=hint)
    reader.took("n_zero_experts", key, number)
    if (halves := reader.raw("num_hidden_layers")) is not None:
        reader.log.ignore(reader.at("num_hidden_layers"), halves, Message("importers.follows_from", what="num_layers"))
    if (value := reader.raw(modules)) or (value := reader.raw("mtp_num_layers")):
        reason = Message("importers.not_predicted")
        reader.log.ignore(reader.at(modules), value, reason)
        reader.log.doubt(f"/{modules}", value, reason)
    return {"n_zero_experts": number}


def _outside_experts(reader: Reader, layers: int) -> set[int]:
    """Layers before the first and after the last with experts, as ERNIE-4.5 says it; -1 is the model's last."""
    start, end = reader.raw("moe_layer_start_index"), reader.raw("moe_layer_end_index")
    first = reader.checked_count(start or 0, reader.at("moe_layer_start_index"), MAX_LAYERS)
    to_the_end = end in (None, -1)
    last = layers - 1 if to_the_end else reader.checked_count(end, reader.at("moe_layer_end_index"), MAX_LAYERS)
    return {layer for layer in range(layers) if not first <= layer <= last}


def _dense_layers(reader: Reader, layers: int) -> list[int]:
    """Layers without experts, ascending. DeepSeek counts its frequency from layer 0, Qwen's sparse step from 1."""
    first = reader.count("first_k_dense_replace", MAX_LAYERS) or 0
    frequency, step = reader.raw("moe_layer_freq"), reader.raw("decoder_sparse_step")
    only = reader.raw("mlp_only_layers") or []
    if not isinstance(only, list | tuple):
        raise SpecError(Message("field_fault.is_no_list", value=shown(only)), path=reader.at("mlp_only_layers"))
    named = {reader.checked_count(i, reader.at("mlp_only_layers"), MAX_LAYERS) for i in only}
    if isinstance(frequency, list):  # Megatron's form: one flag a layer
        if len(frequency) != layers:
            raise SpecError(
                Message("common.entries_expected", count=layers, found=len(frequency)),
                path=reader.at("moe_layer_freq"),
            )
        named |= {i for i, flag in enumerate(frequency) if not flag}
        frequency = None
    named |= _outside_experts(reader, layers)
    step = step or reader.raw("moe_layer_interval") or reader.raw("interleave_moe_layer_step")
    if (moe_layers := reader.raw("moe_layers")) is not None:  # Llama-4 and others: the layers with experts
        if not isinstance(moe_layers, list):
            raise SpecError(Message("field_fault.is_no_list", value=shown(moe_layers)), path=reader.at("moe_layers"))
        named |= set(range(layers)) - {reader.checked_count(i, reader.at("moe_layers"), MAX_LAYERS) for i in moe_layers}
        step = 1
    reads = "moe_layers_enum" in reader.architecture.reads
    if reads and (text := reader.raw("moe_layers_enum")) is not None:  # the same as text, "3,4,5"
        listed = str(text).replace(" ", "").split(",")
        path = reader.at("moe_layers_enum")
        if not all(each.isdigit() for each in listed):
            raise SpecError(Message("field_fault.is_invalid", value=repr(shown(text))), path=path, hint="3,4,5")
        named |= set(range(layers)) - {reader.checked_count(int(each[:9]), path, MAX_LAYERS) for each in listed}
    every = max(1, reader.checked_count(frequency or 1, reader.at("moe_layer_freq"), MAX_LAYERS))
    sparse = max(1, reader.checked_count(step or 1, reader.at("decoder_sparse_step"), MAX_LAYERS))
    return [i for i in range(layers) if i < first or i in named or i % every or (i + 1) % sparse]
