"""What a MindFormers configuration says of the model besides its shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from autodeploy.formats.megatron.recipe_writer import untold
from autodeploy.messages import Message
from autodeploy.specs.recipe import RopeScaling, RopeType, ScoringFunction, TopkMethod

if TYPE_CHECKING:
    from autodeploy.formats.common.value_readers import KeyReader
    from autodeploy.formats.megatron.launch import Launch
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.recipe import Recipe


CONFIG, EXPERTS = "model.model_config", "moe_config"
NUMBERS: dict[str, tuple[str, ...]] = {
    "rope_theta": ("rope_theta", "theta", "rotary_base"),
    "max_position_embeddings": ("max_position_embeddings",),
    "rms_norm_eps": ("rms_norm_eps", "layernorm_epsilon", "layer_norm_epsilon"),
    "initializer_range": ("initializer_range", "init_method_std"),
    "attention_dropout": ("attention_dropout",),
    "hidden_dropout": ("hidden_dropout",),
    "mtp_loss_scaling_factor": ("mtp_loss_factor", "mtp_loss_scaling_factor"),
}
OF_ROUTER: dict[str, tuple[str, ...]] = {
    "routed_scaling_factor": ("routed_scaling_factor", "moe_router_topk_scaling_factor"),
    "router_aux_loss_coef": ("moe_aux_loss_coeff", "router_aux_loss_coef"),
    "router_z_loss_coef": ("moe_z_loss_coeff", "z_loss_factor"),
    "router_bias_update_rate": ("moe_router_bias_update_rate", "topk_bias_update_rate"),
}
SWITCHES: dict[str, tuple[str, ...]] = {
    "attention_bias": ("attention_bias", "qkv_has_bias", "add_qkv_bias"),
    "mlp_bias": ("add_bias_linear",),
    "rope_interleave": ("rotary_interleaved",),
}
YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
NOT_CARRIED = Message("importers.not_understood_launch_script_cannot_carry_it")


def read_recipe(reader: KeyReader, *, has_experts: bool) -> dict[str, Any]:
    """The `recipe` of the model."""
    recipe = {field: value for field, keys in NUMBERS.items() if (value := _number(reader, field, keys)) is not None}
    for field, keys in SWITCHES.items():
        if (value := _take(reader, field, keys)) is not None:
            recipe[field] = value is True
    if (norm := _take(reader, "normalization", ("normalization",))) in {"RMSNorm", "LayerNorm"}:
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
    router: dict[str, Any] = {
        field: value for field, keys in OF_ROUTER.items() if (value := _number(reader, field, keys)) is not None
    }
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
# Field of the recipe -> key; what a key says is the same.
KEYS = {
    "rope_theta": "rope_theta",
    "rope_interleave": "rotary_interleaved",
    "normalization": "normalization",
    "rms_norm_eps": "rms_norm_eps",
    "initializer_range": "initializer_range",
    "attention_bias": "attention_bias",
    "attention_dropout": "attention_dropout",
    "hidden_dropout": "hidden_dropout",
    "max_position_embeddings": "max_position_embeddings",
}
EXPERT_KEYS = {
    "scoring_func": "moe_router_score_function",
    "topk_method": "topk_method",
    "norm_topk_prob": "norm_topk_prob",
    "router_aux_loss_coef": "moe_aux_loss_coeff",
    "router_z_loss_coef": "moe_z_loss_coeff",
    "router_bias_update_rate": "moe_router_bias_update_rate",
}
DTYPES = {"fp32": "float32"}
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
    recipe = model.told
    keys = _named(recipe, KEYS) | {"add_bias_linear": bool(recipe.mlp_bias)}
    keys |= _positions(launch, model)
    if model.num_nextn_predict_layers and recipe.mtp_loss_scaling_factor is not None:
        keys["mtp_loss_factor"] = recipe.mtp_loss_scaling_factor
    if model.is_moe:
        keys |= _router_keys(recipe)
    lost = [name for name in NO_KEY if getattr(recipe, name)]
    if recipe.topk_method == GREEDY_GROUPS:
        lost.append(f"topk_method {GREEDY_GROUPS}")
    if lost:
        note(Message("exporters.model_s_code_has_to_say", what=", ".join(lost)))
    silent = untold(model) + ([] if recipe.rope_theta else ["rope_theta"])
    if silent:
        note(Message("exporters.not_given", field="model.recipe", names=", ".join(silent)))
    return keys


def _named(recipe: Recipe, keys: dict[str, str]) -> dict[str, Any]:
    given = {key: getattr(recipe, field) for field, key in keys.items()}
    return {key: value for key, value in given.items() if value is not None}


def _positions(launch: Launch, model: ModelSpec) -> dict[str, Any]:
    recipe = model.told
    keys: dict[str, Any] = {"position_embedding_type": "rope"}
    scaling = recipe.rope_scaling
    if scaling is None:
        return keys
    if scaling.rope_type != "yarn" or not model.attention.own_positions:
        launch.arguments.note(Message("exporters.model_s_code_has_to_say", what=f"rope_type {scaling.rope_type}"))
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
    keys: dict[str, Any] = {"routed_scaling_factor": 1.0 if scale is None else scale}
    keys |= _named(recipe, EXPERT_KEYS) | {"moe_router_enable_expert_bias": recipe.has_expert_bias}
    if recipe.router_aux_loss_coef is not None:
        keys["moe_router_load_balancing_type"] = "seq_aux_loss" if recipe.seq_aux else "gbs_aux_loss"
    if recipe.router_dtype in DTYPES:
        keys["router_dense_type"] = DTYPES[recipe.router_dtype]
    return keys
