"""The recipe of a model in MindFormers' keys (`mindformers/parallel_core/transformer_config_utils.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.exporters.recipe_arguments import untold
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.exporters.launch_arguments import Launch
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.recipe import Recipe, RopeScaling

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
YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
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
        keys |= _router(recipe)
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
    if scaling.rope_type != "yarn" or not model.is_mla:
        launch.arguments.note(Message("exporters.model_s_code_has_to_say", what=f"rope_type {scaling.rope_type}"))
        return keys
    return keys | _yarn(scaling)


def _yarn(scaling: RopeScaling) -> dict[str, Any]:
    """Yarn of latent attention; `max_position_embeddings` is the context before."""
    keys: dict[str, Any] = {"position_embedding_type": "yarn", "rotary_scaling_factor": scaling.factor}
    if scaling.original_max_position_embeddings is not None:
        keys["max_position_embeddings"] = scaling.original_max_position_embeddings
    return keys | {name: value for name in YARN if (value := getattr(scaling, name)) is not None}


def _router(recipe: Recipe) -> dict[str, Any]:
    scale = recipe.routed_scaling_factor
    keys: dict[str, Any] = {"routed_scaling_factor": 1.0 if scale is None else scale}
    keys |= _named(recipe, EXPERT_KEYS) | {"moe_router_enable_expert_bias": recipe.has_expert_bias}
    if recipe.router_aux_loss_coef is not None:
        keys["moe_router_load_balancing_type"] = "seq_aux_loss" if recipe.seq_aux else "gbs_aux_loss"
    if recipe.router_dtype in DTYPES:
        keys["router_dense_type"] = DTYPES[recipe.router_dtype]
    return keys
