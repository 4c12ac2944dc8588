"""The model of a MindFormers configuration, under its keys of both generations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.errors import UnsupportedError
from autodeploy.importers.diagnostics import shown
from autodeploy.importers.mindformers_recipe import read_recipe
from autodeploy.messages import Message
from autodeploy.specs.mindformers_networks import networks

if TYPE_CHECKING:
    from autodeploy.importers.key_reader import KeyReader

CONFIG, EXPERTS = "model.model_config", "moe_config"
WIDTHS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size",),
    "num_hidden_layers": ("num_hidden_layers", "num_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "num_heads", "n_head"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
}
OPTIONAL: dict[str, tuple[str, ...]] = {
    "num_key_value_heads": ("num_key_value_heads", "n_kv_heads", "num_query_groups", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "mtp_depth", "mtp_num_layers"),
}
LATENT: dict[str, tuple[str, ...]] = {
    "kv_lora_rank": ("kv_lora_rank",),
    "q_lora_rank": ("q_lora_rank",),
    "qk_nope_head_dim": ("qk_nope_head_dim", "qk_head_dim"),
    "qk_rope_head_dim": ("qk_rope_head_dim", "qk_pos_emb_head_dim"),
    "v_head_dim": ("v_head_dim",),
}
MOE: dict[str, tuple[str, ...]] = {
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_chosen", "moe_router_topk"),
    "moe_intermediate_size": ("moe_intermediate_size", "moe_ffn_hidden_size"),
    "n_shared_experts": ("n_shared_experts", "shared_expert_num"),
    "first_k_dense_replace": ("first_k_dense_replace",),
    "n_group": ("n_group", "moe_router_num_groups"),
    "topk_group": ("topk_group", "moe_router_group_topk"),
}
EXPERT_COUNT = ("n_routed_experts", "num_experts", "expert_num", "num_moe_experts")
GATED = frozenset({"silu", "swiglu", "fusedswiglu", "swish"})


def paths(names: tuple[str, ...], *, experts: bool = False) -> list[str]:
    """Where a value may stand: in the model's configuration and, of experts, in `moe_config`."""
    places = [f"{CONFIG}.{name}" for name in names]
    return places + ([f"{EXPERTS}.{name}" for name in names] if experts else [])


def read_model(reader: KeyReader, name: str | None, otherwise: str) -> dict[str, Any]:
    """The `model` of a spec."""
    model: dict[str, Any] = {}
    for field, names in WIDTHS.items():
        number = reader.number(f"/model/{field}", *paths(names), least=1)
        if number is None:
            reader.raw("pretrained_model_dir")
            hint = Message("importers.keys_of_config_json_beside_pretrained")

            reader.fail(f"{CONFIG}.{names[0]}", Message("common.is_required", name=names[0]), hint)
        model[field] = number
    for field, names in OPTIONAL.items():
        if (number := reader.number(f"/model/{field}", *paths(names))) is not None:
            model[field] = number
    if reader.raw(f"{CONFIG}.multi_query_attention") is False:
        model.pop("num_key_value_heads", None)
    model |= _attention(reader, model)
    model["hidden_act"] = _activation(reader)
    if not model.get("intermediate_size"):
        model["intermediate_size"] = _default_width(reader, model)
    untied = reader.raw(f"{CONFIG}.untie_embeddings_and_output_weights")
    tied = reader.take("/model/tie_word_embeddings", f"{CONFIG}.tie_word_embeddings")
    model["tie_word_embeddings"] = tied is True if tied is not None else untied is False
    if reader.switch("/model/norm_layout", f"{CONFIG}.sandwich_norm"):
        model["norm_layout"] = "sandwich"
    model |= _experts(reader, model["num_hidden_layers"])
    if "n_routed_experts" in model and not _has_dense(model):
        del model["intermediate_size"]
    if recipe := read_recipe(reader, has_experts="n_routed_experts" in model):
        model["recipe"] = recipe
    kind = reader.raw("trainer.model_name") or reader.raw(f"{CONFIG}.model_type")
    return {"name": name or str(kind or otherwise)[:200], **model}


def _attention(reader: KeyReader, model: dict[str, Any]) -> dict[str, Any]:
    fields = {
        field: value
        for field, names in LATENT.items()
        if (value := reader.number(f"/model/{field}", *paths(names))) is not None
    }
    reader.raw(f"{CONFIG}.multi_latent_attention")
    if "kv_lora_rank" in fields:
        model.pop("num_key_value_heads", None)
        model.pop("head_dim", None)
        return {field: value for field, value in fields.items() if value}
    if reader.switch("/model/qk_norm", f"{CONFIG}.qk_layernorm", f"{CONFIG}.use_qk_norm"):
        return {"qk_norm": True}
    built = reader.raw(f"{CONFIG}.model_type")
    fixed = next((dict(each.fixed) for each in networks() if each.model_type == built), {})
    for name, value in fixed.items():
        reader.log.default(f"/model/{name}", value, Message("importers.follows_from", what=f"model_type: {built}"))
    return fixed


def _activation(reader: KeyReader) -> str:
    value = reader.take("/model/hidden_act", f"{CONFIG}.hidden_act", f"{CONFIG}.activation_func")
    gated = reader.raw(f"{CONFIG}.gated_linear_unit")
    text = "silu" if value is None else str(value).lower()
    if value is None:
        reader.log.default("/model/hidden_act", "silu", Message("importers.default_of", framework="MindFormers"))
    if text in GATED:
        return "silu"
    if "gelu" in text:
        return "geglu" if gated or text == "geglu" else "gelu"
    raise UnsupportedError(
        Message("common.is_not_modelled_yet", what=f"hidden_act {text[:40]}"),
        path="/model/model_config/hidden_act",
        hint=Message("common.one_of", names="silu, gelu"),
    )


def _default_width(reader: KeyReader, model: dict[str, Any]) -> int:
    """Llama's rule of MindFormers: 2/3 of four times the width, scaled, rounded up to `multiple_of`."""
    multiple = reader.number("/model/intermediate_size", f"{CONFIG}.multiple_of", least=1) or 256
    factor = reader.raw(f"{CONFIG}.ffn_dim_multiplier")
    width = int(8 * model["hidden_size"] / 3)
    if isinstance(factor, int | float) and not isinstance(factor, bool) and 0 < factor < 100:
        width = int((factor + 0.01) * width)
    width = multiple * -(-width // multiple)
    reader.log.default("/model/intermediate_size", width, Message("importers.follows_from", what="8/3 x hidden_size"))
    return width


def _experts(reader: KeyReader, layers: int) -> dict[str, Any]:
    count = reader.number("/model/n_routed_experts", *paths(EXPERT_COUNT, experts=True))
    if not count or count == 1:
        return {}
    fields: dict[str, Any] = {"n_routed_experts": count}
    for field, names in MOE.items():
        value = reader.number(f"/model/{field}", *paths(names, experts=True))
        if value:
            fields[field] = value
    if "moe_intermediate_size" not in fields:
        width = reader.raw(f"{CONFIG}.intermediate_size") or reader.raw(f"{CONFIG}.ffn_hidden_size")
        if isinstance(width, int):
            fields["moe_intermediate_size"] = width
            reader.log.default(
                "/model/moe_intermediate_size", width, Message("importers.follows_from", what="intermediate_size")
            )
    fields |= _dense_layers(reader, layers)
    if not ("n_group" in fields and "topk_group" in fields):
        fields.pop("n_group", None)
        fields.pop("topk_group", None)
    shared = reader.number("/model/shared_expert_intermediate_size", f"{CONFIG}.moe_shared_expert_intermediate_size")
    if shared and shared != fields.get("n_shared_experts", 0) * fields.get("moe_intermediate_size", 0):
        fields["shared_expert_intermediate_size"] = shared
        fields.setdefault("n_shared_experts", 1)
    return fields


def _dense_layers(reader: KeyReader, layers: int) -> dict[str, Any]:
    """Layers without experts as `moe_layer_freq` says them: every so many, or one flag a layer."""
    path = f"{CONFIG}.moe_layer_freq"
    given = reader.take("/model/mlp_only_layers", path)
    if given is None or given == 1:
        return {}
    if isinstance(given, list) and len(given) == layers:
        return {"mlp_only_layers": [layer for layer, flag in enumerate(given) if not flag]}
    if type(given) is not int or not 1 <= given <= layers:
        fault = Message("field_fault.is_invalid", value=shown(given))
        if isinstance(given, list):
            fault = Message("common.entries_expected", count=layers, found=len(given))
        reader.fail(path, fault)
    return {"mlp_only_layers": [layer for layer in range(layers) if layer % given]}


def _has_dense(model: dict[str, Any]) -> bool:
    return bool(model.get("first_k_dense_replace") or model.get("mlp_only_layers"))
