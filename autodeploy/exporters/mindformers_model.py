"""The model in the keys of MindFormers' `model.model_config`.

What a model does not have is written as null: a network's own default would be another model's number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.errors import UnsupportedError
from autodeploy.exporters.mindformers_recipe import recipe_keys
from autodeploy.messages import Message
from autodeploy.specs.mindformers_networks import Network, network_of, networks
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.exporters.launch_arguments import Launch
    from autodeploy.specs.model import ModelSpec

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
    config |= _attention(model)
    if model.is_moe:
        config |= _experts(launch, network)
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


def _attention(model: ModelSpec) -> dict[str, Any]:
    if not model.is_mla:
        keys: dict[str, Any] = {"num_key_value_heads": model.num_key_value_heads, "head_dim": model.head_dim}
        return keys | ({"qk_layernorm": True} if model.qk_norm else {})
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {"multi_latent_attention": True, **{name: getattr(model, name) for name in names}, "qk_layernorm": True}


def _experts(launch: Launch, network: Network) -> dict[str, Any]:
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
        from autodeploy.exporters.target_release import profile_of

        profile = profile_of(launch.spec)
        keys["npu_nums_per_device"] = min(strategy.ep, profile.ranks_per_node if profile else 8)
    return keys
