"""The model that a launch's flags describe. Defaults are Megatron-LM's (`megatron/training/arguments.py`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autodeploy.errors import SpecError
from autodeploy.importers.known_models import model_name, read_vocabulary
from autodeploy.importers.megatron_attention import read_attention_types
from autodeploy.importers.megatron_compressed import is_compressed, read_compressed, read_positions
from autodeploy.importers.megatron_layers import noop_numbers, noops_before
from autodeploy.importers.megatron_recipe import read_recipe
from autodeploy.messages import Message
from autodeploy.specs.model import MAX_LAYERS

if TYPE_CHECKING:
    from autodeploy.importers.flag_reader import FlagReader

SIZES = {
    "--hidden-size": "hidden_size",
    "--num-attention-heads": "num_attention_heads",
}
LATENT = {
    "--q-lora-rank": "q_lora_rank",
    "--kv-lora-rank": "kv_lora_rank",
    "--qk-head-dim": "qk_nope_head_dim",
    "--qk-nope-head-dim": "qk_nope_head_dim",
    "--qk-pos-emb-head-dim": "qk_rope_head_dim",
    "--qk-rope-head-dim": "qk_rope_head_dim",
    "--v-head-dim": "v_head_dim",
}
CAPACITY, PADDED = "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity"
LATENT_SWITCHES = ("--multi-latent-attention", "--multi-head-latent-attention")
LATENT_DEFAULTS = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
NOT_MODELLED = {
    "--hybrid-layer-pattern": Message("mechanism.other_layers"),
    "--hybrid-override-pattern": Message("mechanism.other_layers"),
    "--mamba-num-heads": Message("mechanism.recurrent_layers"),
    "--mamba-state-dim": Message("mechanism.recurrent_layers"),
    "--enable-mhc-connections": Message("mechanism.hyper_connections"),
    "--experimental-attention-variant": Message("mechanism.other_attention"),
    "--linear-attention-freq": Message("mechanism.linear_attention"),
    "--heterogeneous-layers-config-path": Message("mechanism.layers_of_several_shapes"),
    "--heterogeneous-layers-config-encoded-json": Message("mechanism.layers_of_several_shapes"),
    "--indexer-qk-quant-scheme": Message("mechanism.quantised_indexer"),
    "--is-hybrid-model": Message("mechanism.other_layers"),
    "--mtp-hybrid-override-pattern": Message("mechanism.other_layers"),
    "--moe-latent-size": Message("mechanism.latent_experts"),
    "--attention-output-gate": Message("mechanism.output_gate"),
    "--encoder-num-layers": Message("mechanism.encoder"),
    "--language-model-type": Message("mechanism.media_encoder"),
}
# --gelu-tanh is gated: mindspeed_llm/core/transformer/mlp.py sets gated_linear_unit with it.
GATED = (("--swiglu", "silu"), ("--geglu", "geglu"), ("--quick-geglu", "geglu"), ("--gelu-tanh", "geglu"))
SHORTCUT_SPEC = "mindspeed_llm.tasks.models.spec.longcat_spec"
_RUNS = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")


def read_model(reader: FlagReader, layers: int, name: str | None, otherwise: str) -> dict[str, Any]:
    """The `model` of a spec, with `layers` layers without padding."""
    for flag, mechanism in NOT_MODELLED.items():
        if reader.has(flag):
            reader.refuse_mechanism(flag, mechanism)
    model: dict[str, Any] = {"num_hidden_layers": layers}
    for flag, field in SIZES.items():
        model[field] = _required(reader, flag, f"/model/{field}")
    model["hidden_act"] = _activation(reader)
    compressed = is_compressed(reader)
    model |= _attention(reader, model)
    if compressed:
        model = read_compressed(reader, model, layers)
    else:
        model |= read_attention_types(reader, layers)
    model |= _ends(reader)
    ffn = reader.number("--ffn-hidden-size", "/model/intermediate_size")
    if ffn is None:
        wide = 4 * model["hidden_size"]
        ffn = int(wide * 2 / 3 / 64) * 64 if model["hidden_act"] == "silu" else wide
        reader.log.default("/model/intermediate_size", ffn, Message("importers.default_of", framework="Megatron"))
    model |= _experts(reader, layers, ffn)
    if (mtp := reader.number("--mtp-num-layers", "/model/num_nextn_predict_layers")) is not None:
        model["num_nextn_predict_layers"] = mtp
    model["vocab_size"] = read_vocabulary(reader, model, otherwise)
    model["recipe"] = read_recipe(reader, model) | (read_positions(reader) if compressed else {})
    return {"name": name or model_name(reader, model, otherwise), **model}


def _required(reader: FlagReader, flag: str, field: str) -> int:
    number = reader.number(flag, field)
    if number is None:
        raise SpecError(Message("common.is_required", name=flag), path=field)
    if number < 1:
        reader.fail(flag, Message("field_fault.is_too_small", value=number))
    return number


def _activation(reader: FlagReader) -> str:
    for flag, name in GATED:
        if reader.switch(flag, "/model/hidden_act"):
            return name
    reader.log.default("/model/hidden_act", "gelu", Message("importers.default_of", framework="Megatron"))
    return "gelu"


def _attention(reader: FlagReader, model: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    grouped = reader.switch("--group-query-attention", "/model/num_key_value_heads")
    groups = reader.number("--num-query-groups", "/model/num_key_value_heads")
    channels = reader.number("--kv-channels", "/model/head_dim")
    norm = reader.has("--qk-layernorm")
    latent = [reader.switch(flag, "/model/kv_lora_rank") for flag in LATENT_SWITCHES]
    if any(latent):
        for flag, field in LATENT.items():
            if (value := reader.number(flag, f"/model/{field}")) is not None:
                fields[field] = value
        for field, value in LATENT_DEFAULTS.items():
            if field not in fields:
                fields[field] = value
                reader.log.default(f"/model/{field}", value, Message("importers.default_of", framework="Megatron"))
    else:
        if groups is not None and (grouped or groups == model["num_attention_heads"]):
            fields["num_key_value_heads"] = groups
        if channels is not None:
            fields["head_dim"] = channels
        if norm:
            fields["qk_norm"] = reader.switch("--qk-layernorm", "/model/qk_norm")
    if reader.switch("--post-norm", "/model/norm_layout") or reader.switch("--sandwich-norm", "/model/norm_layout"):
        fields["norm_layout"] = "sandwich"
    return fields | _windows(reader)


def _windows(reader: FlagReader) -> dict[str, Any]:
    alternating = reader.number("--interleave-sliding-window", "/model/sliding_window")
    if alternating is not None:
        return {"sliding_window": alternating, "layer_types": "alternating sliding and full attention"}
    window = reader.number("--sliding-window", "/model/sliding_window")
    if (size := reader.text("--window-size", "/model/sliding_window")) is not None:
        left = size.strip("()\"' ").partition(",")[0]
        if not left.removeprefix("-").isdigit() or len(left) > 9:
            reader.fail("--window-size", Message("field_fault.is_invalid", value=repr(size[:40])), "1024,0")
        window = int(left) + 1
    if window is None or window < 1:
        return {}
    if reader.number("--window-attn-skip-freq", "/model/layer_types") == 2:
        return {"sliding_window": window, "layer_types": "alternating sliding and full attention"}
    return {"sliding_window": window}


def _ends(reader: FlagReader) -> dict[str, Any]:
    """Embedding, head and positions."""
    untied = reader.switch("--untie-embeddings-and-output-weights", "/model/tie_word_embeddings")
    if not untied:
        reader.log.default("/model/tie_word_embeddings", True, Message("importers.default_of", framework="Megatron"))
    rotary = reader.has("--use-rotary-position-embeddings")
    kind = reader.text("--position-embedding-type", "/model/learned_position_embeddings")
    absent = reader.has("--no-position-embedding")
    fields: dict[str, Any] = {"tie_word_embeddings": not untied}
    if (kind or "learned_absolute") == "learned_absolute" and not rotary and not absent:
        rows = reader.number("--max-position-embeddings", "/model/learned_position_embeddings")
        fields |= {} if rows is None else {"learned_position_embeddings": rows}
    return fields


def _experts(reader: FlagReader, layers: int, ffn: int) -> dict[str, Any]:
    experts = reader.number("--num-experts", "/model/n_routed_experts")
    if not experts:
        return {"intermediate_size": ffn}
    width = reader.number("--moe-ffn-hidden-size", "/model/moe_intermediate_size") or reader.number(
        "--moe-intermediate-size", "/model/moe_intermediate_size"
    )
    if width is None:
        width = ffn
        reader.log.default("/model/moe_intermediate_size", ffn, Message("importers.default_of", framework="Megatron"))
    topk = reader.number("--moe-router-topk", "/model/num_experts_per_tok")
    if topk is None:
        topk = 2
        reader.log.default("/model/num_experts_per_tok", topk, Message("importers.default_of", framework="Megatron"))
    fields: dict[str, Any] = {"n_routed_experts": experts, "num_experts_per_tok": topk, "moe_intermediate_size": width}
    if zero := reader.number("--num-zero-experts", "/model/n_zero_experts"):
        fields["n_zero_experts"] = zero
    if reader.is_told("--spec") and SHORTCUT_SPEC in reader.script.flags["--spec"].text:
        fields |= {"shortcut_moe": True, "intermediate_size": ffn}
        reader.log.take(reader.script.flags["--spec"].place, "/model/shortcut_moe", True)
    shared = reader.number("--moe-shared-expert-intermediate-size", "/model/shared_expert_intermediate_size")
    count = reader.number("--n-shared-experts", "/model/n_shared_experts")
    if shared:
        whole = width and shared % width == 0
        fields["n_shared_experts"] = count or (shared // width if whole else 1)
        if fields["n_shared_experts"] * width != shared:
            fields["shared_expert_intermediate_size"] = shared
    elif count:
        fields["n_shared_experts"] = count
    groups = _first(reader, ("--moe-router-num-groups", "--n-group"), "/model/n_group")
    reached = _first(reader, ("--moe-router-group-topk", "--topk-group"), "/model/topk_group")
    if groups and reached:
        fields |= {"n_group": groups, "topk_group": reached}
    # Without padding the tokens above the capacity are dropped, and the others are no more: a feature of the strategy.
    if reader.has(PADDED):
        capacity = reader.decimal(CAPACITY, "/model/capacity_factor")
        if capacity is not None and capacity > 0:
            fields["capacity_factor"] = capacity
    dense = _dense_layers(reader, layers)
    lead = next((i for i, layer in enumerate(dense) if i != layer), len(dense))
    fields |= {"first_k_dense_replace": lead, "mlp_only_layers": dense[lead:]}
    if dense:
        fields["intermediate_size"] = ffn
    return fields


def _first(reader: FlagReader, flags: tuple[str, ...], field: str) -> int | None:
    """The number after the first of the flags that is given; the later ones are older names of the same."""
    numbers = [reader.number(flag, field) for flag in flags]
    return next((number for number in numbers if number is not None), None)


def _dense_layers(reader: FlagReader, layers: int) -> list[int]:
    """Layers without experts. -1 is MindSpeed-LLM's word for none; a pattern is one number a layer."""
    first = reader.number("--first-k-dense-replace", "/model/first_k_dense_replace") or 0
    first -= noops_before(reader, first)  # it counts padding
    text = reader.text("--moe-layer-freq", "/model/mlp_only_layers") or "1"
    plain = text.strip("\"' ").replace(" ", "")
    if plain.removeprefix("-").isdigit() and len(plain) <= 6:
        every = max(1, int(plain))
        return [i for i in range(layers) if i < first or i % every]
    body = plain.removeprefix("(").removesuffix(")")
    pattern: list[int] = []
    for part in re.split(r"\+(?=\[)", body):
        match = _RUNS.fullmatch(part)
        if match is None or len(pattern) > MAX_LAYERS:
            reader.fail("--moe-layer-freq", Message("field_fault.is_invalid", value=repr(text[:40])), "([0]*3+[1]*58)")
        pattern += [int(flag) for flag in match[1].split(",")] * int(match[2] or 1)
    noops = noop_numbers(reader)
    pattern = [kind for number, kind in enumerate(pattern) if number not in noops]  # it counts padding, too
    return [i for i in range(layers) if i < first or not (pattern[i] if i < len(pattern) else 1)]
