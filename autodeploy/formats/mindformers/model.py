"""The model of a MindFormers configuration, under its keys of both generations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from autodeploy.formats.megatron.recipe import untold
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.attention import LATENT
from autodeploy.specs.diagnostics import shown
from autodeploy.specs.launched import Network, network_of, networks
from autodeploy.specs.recipe import RopeScaling, RopeType, ScoringFunction, TopkMethod
from autodeploy.stack.features import FEATURES
from autodeploy.stack.flag_tables import defaults_of

if TYPE_CHECKING:
    from autodeploy.formats.common.value_readers import KeyReader
    from autodeploy.formats.megatron.launch import Launch
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.recipe import Recipe


CONFIG, EXPERTS = "model.model_config", "moe_config"
# Field -> its keys: all are read, and the field's own name is written.
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
    """Places of a value: in the model's configuration and, of experts, in `moe_config`."""
    places = [f"{CONFIG}.{name}" for name in names]
    return places + ([f"{EXPERTS}.{name}" for name in names] if experts else [])


def read_model(reader: KeyReader, name: str | None, otherwise: str) -> dict[str, Any]:
    """The `model` of a spec."""
    model: dict[str, Any] = {}
    for field, names in WIDTHS.items():
        number = reader.number(f"/model/{field}", *paths(names), least=1)
        if number is None:
            reader.raw("pretrained_model_dir")
            hint = Message("importers.add_config_keys")

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
    if "n_routed_experts" in model and not (model.get("first_k_dense_replace") or model.get("mlp_only_layers")):
        del model["intermediate_size"]
    if recipe := read_recipe(reader, has_experts="n_routed_experts" in model):
        model["recipe"] = recipe
    kind = reader.raw("trainer.model_name") or reader.raw(f"{CONFIG}.model_type")
    return {"name": name or str(kind or otherwise)[:200], **model}


def _attention(reader: KeyReader, model: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, int] = {}
    for field, flags, _ in LATENT.sizes:
        names = dict.fromkeys((field, *(flag[2:].replace("-", "_") for flag in flags)))
        if (value := reader.number(f"/model/{field}", *paths(tuple(names)))) is not None:
            fields[field] = value
    reader.raw(f"{CONFIG}.multi_latent_attention")
    if LATENT.field in fields:
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
    text = str(value or defaults_of("MindFormers")[f"{CONFIG}.hidden_act"]).lower()
    if value is None:
        reader.log.default("/model/hidden_act", text, Message("importers.default_of", framework="MindFormers"))
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


# The model in the keys of MindFormers' `model.model_config`.
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DISPATCHERS = {"hierarchical": "alltoall_deredundency"}
ACTIVATIONS = {"silu": "swiglu", "geglu": "geglu", "gelu": "gelu"}
MODEL_CONFIG = "model.model_config."


def model_config(launch: Launch) -> dict[str, Any]:
    """Network, shape, number formats and features; the layers' placement is the caller's.

    Raises UnsupportedError for a model that no network of MindFormers computes.
    """
    model = launch.spec.model
    network = _network(model)
    config: dict[str, Any] = {
        "model_type": network.model_type,
        "architectures": [network.architectures],
        "seq_length": launch.spec.training.seq_length,
        "vocab_size": model.vocab_size,
        **{field: getattr(model, field) for field in WIDTHS},
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
            launch.arguments.leaves_to_code(name)
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
            launch.arguments.lacks(name, "MindFormers")
    return switches


def _attention_keys(model: ModelSpec) -> dict[str, Any]:
    if model.attention.own_keys:
        keys: dict[str, Any] = {"num_key_value_heads": model.num_key_value_heads, "head_dim": model.head_dim}
        return keys | ({"qk_layernorm": True} if model.qk_norm else {})
    sizes = {field: getattr(model, field) for field, _, _ in model.attention.sizes}
    return {"multi_latent_attention": True, **sizes, "qk_layernorm": True}


def _expert_keys(launch: Launch, network: Network) -> dict[str, Any]:
    model, strategy = launch.spec.model, launch.plan.strategy
    keys: dict[str, Any] = {
        network.experts: model.n_routed_experts,
        **{field: getattr(model, field) for field in MOE},
        "moe_token_dispatcher_type": DISPATCHERS.get(strategy.moe_dispatcher or "alltoall", "alltoall"),
    }
    if model.shared_expert_intermediate_size is not None:
        keys["moe_shared_expert_intermediate_size"] = model.shared_expert_intermediate_size
    if launch.spec.training.router == "forced":
        keys["moe_router_force_expert_balance"] = True
    if strategy.moe_dispatcher == "hierarchical":
        from autodeploy.formats.common.flag_effects import profile_of

        profile = profile_of(launch.spec)
        keys["npu_nums_per_device"] = min(strategy.ep, profile.ranks_per_node if profile else 8)
    return keys


# Field of the recipe -> its keys: every one is read, the first is written as the field stands.
RECIPE: dict[str, tuple[str, ...]] = {
    "rope_theta": ("rope_theta", "theta", "rotary_base"),
    "rope_interleave": ("rotary_interleaved",),
    "normalization": ("normalization",),
    "rms_norm_eps": ("rms_norm_eps", "layernorm_epsilon", "layer_norm_epsilon"),
    "initializer_range": ("initializer_range", "init_method_std"),
    "attention_bias": ("attention_bias", "qkv_has_bias", "add_qkv_bias"),
    "attention_dropout": ("attention_dropout",),
    "hidden_dropout": ("hidden_dropout",),
    "max_position_embeddings": ("max_position_embeddings",),
}
MTP_LOSS = ("mtp_loss_factor", "mtp_loss_scaling_factor")
ROUTER: dict[str, tuple[str, ...]] = {
    "router_aux_loss_coef": ("moe_aux_loss_coeff", "router_aux_loss_coef"),
    "router_z_loss_coef": ("moe_z_loss_coeff", "z_loss_factor"),
    "router_bias_update_rate": ("moe_router_bias_update_rate", "topk_bias_update_rate"),
}
SCALING_FACTOR = ("routed_scaling_factor", "moe_router_topk_scaling_factor")
NUMBERS = (
    *("rope_theta", "max_position_embeddings", "rms_norm_eps", "initializer_range"),
    *("attention_dropout", "hidden_dropout"),
)
YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
NOT_CARRIED = Message("importers.not_carried_over")


def read_recipe(reader: KeyReader, *, has_experts: bool) -> dict[str, Any]:
    """The `recipe` of the model."""
    numbers = {field: RECIPE[field] for field in NUMBERS}
    recipe: dict[str, Any] = _numbers(reader, {**numbers, "mtp_loss_scaling_factor": MTP_LOSS})
    for field in ("attention_bias", "mlp_bias", "rope_interleave"):
        if (value := _take(reader, field, RECIPE.get(field, ("add_bias_linear",)))) is not None:
            recipe[field] = value is True
    if (norm := _take(reader, "normalization", RECIPE["normalization"])) in {"RMSNorm", "LayerNorm"}:
        recipe["normalization"] = norm
    if (share := _number(reader, "partial_rotary_factor", ("partial_rotary_factor", "rotary_percent"))) is not None:
        recipe["partial_rotary_factor"] = share
    recipe |= _scaling(reader)
    return recipe | (_router(reader) if has_experts else {})


def _places(keys: tuple[str, ...]) -> list[str]:
    return [f"{CONFIG}.{key}" for key in keys] + [f"{EXPERTS}.{key}" for key in keys]


def _take(reader: KeyReader, field: str, keys: tuple[str, ...]) -> Any:
    return reader.take(f"/model/recipe/{field}", *_places(keys))


def _number(reader: KeyReader, field: str, keys: tuple[str, ...]) -> float | None:
    value = _take(reader, field, keys)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(reader: KeyReader, table: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    return {field: value for field, keys in table.items() if (value := _number(reader, field, keys)) is not None}


def _scaling(reader: KeyReader) -> dict[str, Any]:
    """`rope_scaling` as Hugging Face writes it, or yarn in keys of its own."""
    given = reader.raw(f"{CONFIG}.rope_scaling")
    kind = _take(reader, "rope_scaling", ("position_embedding_type", "extend_method"))
    factor = _number(reader, "rope_scaling/factor", ("rotary_scaling_factor", "scaling_factor", "factor"))
    details = {name: value for name in YARN if (value := _number(reader, f"rope_scaling/{name}", (name,))) is not None}
    if isinstance(given, Mapping):
        named = given.get("rope_type", given.get("type"))
        if named in get_args(RopeType) and not given.keys() - set(RopeScaling.model_fields) - {"type"}:
            reader.log.take("/model/model_config/rope_scaling", "/model/recipe/rope_scaling", given)
            return {"rope_scaling": {**given, "rope_type": named} if "type" not in given else dict(given)}
        reader.log.unmodelled("/model/model_config/rope_scaling", given, NOT_CARRIED)
        return {}
    if str(kind).lower() != "yarn" or not factor or factor <= 1:
        return {}
    before = _number(reader, "rope_scaling/original_max_position_embeddings", ("original_max_position_embeddings",))
    before = before or _number(reader, "max_position_embeddings", ("max_position_embeddings",))
    original = {} if before is None else {"original_max_position_embeddings": int(before)}
    return {"rope_scaling": {"rope_type": "yarn", "factor": factor, **original, **details}}


def _router(reader: KeyReader) -> dict[str, Any]:
    router: dict[str, Any] = _numbers(reader, {"routed_scaling_factor": SCALING_FACTOR, **ROUTER})
    scores = _take(reader, "scoring_func", ("scoring_func", "moe_router_score_function", "use_gating_sigmoid"))
    if isinstance(scores, bool):
        scores = "sigmoid" if scores else "softmax"
    if scores in get_args(ScoringFunction):
        router["scoring_func"] = scores
    if (method := _take(reader, "topk_method", ("topk_method",))) in get_args(TopkMethod):
        router["topk_method"] = method
    if _take(reader, "topk_method", ("moe_router_enable_expert_bias", "balance_via_topk_bias")) is True:
        router["topk_method"] = "noaux_tc"
    if (normed := _take(reader, "norm_topk_prob", ("norm_topk_prob",))) is not None:
        router["norm_topk_prob"] = normed is True
    if _take(reader, "seq_aux", ("moe_router_load_balancing_type",)) == "seq_aux_loss":
        router["seq_aux"] = True
    if _take(reader, "router_dtype", ("moe_router_dtype", "router_dense_type")) in {"float32", "fp32"}:
        router["router_dtype"] = "fp32"
    return router


# The recipe of a model in MindFormers' keys (`mindformers/parallel_core/transformer_config_utils.py`).
WORDS = {"scoring_func": "moe_router_score_function", "topk_method": "topk_method", "norm_topk_prob": "norm_topk_prob"}
ROUTER_DTYPES = {"fp32": "float32"}
# Fields that change what is trained and have no key.
NO_KEY = (
    *("embedding_multiplier", "logits_multiplier", "final_logit_softcapping", "attn_logit_softcapping"),
    *("query_pre_attn_scalar", "device_aux_loss_coef", "communication_aux_loss_coef", "router_jitter_noise"),
    *("attention_out_bias", "shared_expert_gate"),
)
# Chosen by their best expert; router.py, _group_limited_topk, adds up the best two.
GREEDY_GROUPS = "group_limited_greedy"


def recipe_keys(launch: Launch) -> dict[str, Any]:
    """Keys of `model.model_config`; what no key says is a note."""
    model, note = launch.spec.model, launch.arguments.note
    recipe = model.recipe_or_default
    keys = _named(recipe, _first(RECIPE)) | {"add_bias_linear": bool(recipe.mlp_bias)}
    keys |= _positions(launch, model)
    if model.num_nextn_predict_layers and recipe.mtp_loss_scaling_factor is not None:
        keys[MTP_LOSS[0]] = recipe.mtp_loss_scaling_factor
    if model.is_moe:
        keys |= _router_keys(recipe)
    lost = [name for name in NO_KEY if getattr(recipe, name)]
    if recipe.topk_method == GREEDY_GROUPS:
        lost.append(f"topk_method {GREEDY_GROUPS}")
    if lost:
        note(Message("exporters.set_in_model_code", what=", ".join(lost)))
    silent = untold(model) + ([] if recipe.rope_theta else ["rope_theta"])
    if silent:
        note(Message("exporters.not_given", field="model.recipe", names=", ".join(silent)))
    return keys


def _first(table: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {field: keys[0] for field, keys in table.items()}


def _named(recipe: Recipe, keys: dict[str, str]) -> dict[str, Any]:
    given = {key: getattr(recipe, field) for field, key in keys.items()}
    return {key: value for key, value in given.items() if value is not None}


def _positions(launch: Launch, model: ModelSpec) -> dict[str, Any]:
    recipe = model.recipe_or_default
    keys: dict[str, Any] = {"position_embedding_type": "rope"}
    scaling = recipe.rope_scaling
    if scaling is None:
        return keys
    if scaling.rope_type != "yarn" or not model.attention.own_positions:
        launch.arguments.leaves_to_code(f"rope_type {scaling.rope_type}")
        return keys
    return keys | _yarn(scaling)


def _yarn(scaling: RopeScaling) -> dict[str, Any]:
    """Yarn of latent attention; `max_position_embeddings` is the context before."""
    keys: dict[str, Any] = {"position_embedding_type": "yarn", "rotary_scaling_factor": scaling.factor}
    if scaling.original_max_position_embeddings is not None:
        keys["max_position_embeddings"] = scaling.original_max_position_embeddings
    return keys | {name: value for name in YARN if (value := getattr(scaling, name)) is not None}


def _router_keys(recipe: Recipe) -> dict[str, Any]:
    scale = recipe.routed_scaling_factor
    keys: dict[str, Any] = {SCALING_FACTOR[0]: 1.0 if scale is None else scale}
    keys |= _named(recipe, WORDS | _first(ROUTER)) | {"moe_router_enable_expert_bias": recipe.has_expert_bias}
    if recipe.router_aux_loss_coef is not None:
        keys["moe_router_load_balancing_type"] = "seq_aux_loss" if recipe.seq_aux else "gbs_aux_loss"
    if recipe.router_dtype in ROUTER_DTYPES:
        keys["router_dense_type"] = ROUTER_DTYPES[recipe.router_dtype]
    return keys
