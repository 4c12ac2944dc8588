"""The model of a MindFormers configuration, under its keys of both generations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.formats.mindformers.recipe import read_recipe, recipe_keys
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.diagnostics import shown
from autodeploy.specs.mindformers_networks import Network, network_of, networks
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.formats.common.value_readers import KeyReader
    from autodeploy.formats.megatron.launch import Launch
    from autodeploy.specs.model import ModelSpec


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


# The model in the keys of MindFormers' `model.model_config`.
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DISPATCHERS = {"hierarchical": "alltoall_deredundency"}
ACTIVATIONS = {"silu": "swiglu", "geglu": "geglu", "gelu": "gelu"}
MODEL_CONFIG = "model.model_config."


def model_config(launch: Launch) -> dict[str, Any]:
    """Network, shape, number formats and features; the layers' placement is the caller's.

    Raises
    ------
    UnsupportedError
        for a model that no network of MindFormers computes.
    """
    model = launch.spec.model
    network = _network(model)
    config: dict[str, Any] = {
        "model_type": network.model_type,
        "architectures": [network.architectures],
        "seq_length": launch.spec.training.seq_length,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "hidden_act": ACTIVATIONS[model.hidden_act],
        "gated_linear_unit": model.is_gated,
        "tie_word_embeddings": model.tie_word_embeddings,
        "compute_dtype": DTYPES[launch.spec.training.precision],
        "num_nextn_predict_layers": model.num_nextn_predict_layers,
    }
    config["intermediate_size"] = model.intermediate_size or model.moe_intermediate_size
    config |= _attention_keys(model)
    if model.is_moe:
        config |= _expert_keys(launch, network)
    config |= recipe_keys(launch) | _switches(launch)
    for name in ("sliding_window", "mlp_only_layers"):
        if getattr(model, name):
            launch.arguments.note(Message("exporters.model_s_code_has_to_say", what=name))
    return config


def _network(model: ModelSpec) -> Network:
    network = network_of(model)
    if network is None:
        message = Message("exporters.cannot_launch_axis", target="MindFormers", axis="model", value=model.name[:60])
        trained = ", ".join(each.model_type for each in networks())
        raise UnsupportedError(message, path="/model", hint=Message("exporters.networks_that_compute", names=trained))
    return network


def _switches(launch: Launch) -> dict[str, bool]:
    """Features that have a key of their own; a note on each of the plan that nothing in the file says."""
    features, release = launch.plan.strategy.features, launch.arguments.release
    switches: dict[str, bool] = {}
    for name, feature in FEATURES.items():
        variant = feature.variant(release)
        key = variant.keys[0].removeprefix(MODEL_CONFIG) if variant is not None and variant.keys else ""
        if variant is not None and key and (launch.spec.model.is_moe or not key.startswith("moe_")):
            switches[key] = name in features or variant.always
        elif name in features and (variant is None or not variant.by):
            launch.arguments.note(Message("exporters.has_no_flag_in", name=name, framework="MindFormers"))
    return switches


def _attention_keys(model: ModelSpec) -> dict[str, Any]:
    if model.attention.own_keys:
        keys: dict[str, Any] = {"num_key_value_heads": model.num_key_value_heads, "head_dim": model.head_dim}
        return keys | ({"qk_layernorm": True} if model.qk_norm else {})
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {"multi_latent_attention": True, **{name: getattr(model, name) for name in names}, "qk_layernorm": True}


def _expert_keys(launch: Launch, network: Network) -> dict[str, Any]:
    model, strategy = launch.spec.model, launch.plan.strategy
    keys: dict[str, Any] = {
        network.experts: model.n_routed_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "moe_intermediate_size": model.moe_intermediate_size,
        "n_shared_experts": model.n_shared_experts,
        "first_k_dense_replace": model.first_k_dense_replace,
        "n_group": model.n_group,
        "topk_group": model.topk_group,
        "moe_token_dispatcher_type": DISPATCHERS.get(strategy.moe_dispatcher or "alltoall", "alltoall"),
    }
    if model.shared_expert_intermediate_size is not None:
        keys["moe_shared_expert_intermediate_size"] = model.shared_expert_intermediate_size
    if launch.spec.training.router == "forced":
        keys["moe_router_force_expert_balance"] = True
    if strategy.moe_dispatcher == "hierarchical":
        from autodeploy.formats.common.target_release import profile_of

        profile = profile_of(launch.spec)
        keys["npu_nums_per_device"] = min(strategy.ep, profile.ranks_per_node if profile else 8)
    return keys
