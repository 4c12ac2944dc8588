"""When the fields of a model contradict each other. A fault names the field, what is wrong and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message
from autodeploy.specs.attention import attention_faults

if TYPE_CHECKING:
    from autodeploy.specs.attention import Fault
    from autodeploy.specs.model import ModelSpec

MAX_TOTAL_PARAMS = 10**15

_EXPERT_FIELDS = (
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
    "mlp_only_layers",
    "num_hash_layers",
    "n_group",
    "topk_group",
    "capacity_factor",
    "n_zero_experts",
    "shortcut_moe",
)


def faults(model: ModelSpec) -> list[Fault]:
    """All faults of a model whose fields are valid one by one."""
    return [
        (field, message, hint or Message("specs.check_against_config_json")) for field, message, hint in _found(model)
    ]


def _found(model: ModelSpec) -> list[Fault]:
    broken = [*attention_faults(model), *_layer_faults(model), *_type_faults(model), *_expert_faults(model)]
    if not broken and model.total_params(include_mtp=True) > MAX_TOTAL_PARAMS:
        message = Message("specs.model_would_have_parameters", count=model.total_params())
        broken.append(("hidden_size", message, ""))
    return broken


def _layer_faults(model: ModelSpec) -> list[Fault]:
    broken: list[Fault] = []
    layers = model.num_hidden_layers
    if model.layer_types is not None:
        if len(model.layer_types) != layers:
            message = Message("common.entries_expected", count=layers, found=len(model.layer_types))
            broken.append(("layer_types", message, ""))
        if model.sliding_window is None and "sliding_attention" in model.layer_types:
            broken.append(
                (
                    "sliding_window",
                    Message("common.needs_it", what="layer_types: sliding_attention"),
                    "",
                )
            )
    if model.first_k_dense_replace > layers:
        message = Message("common.exceeds", one=model.first_k_dense_replace, other=f"num_hidden_layers {layers}")
        broken.append(("first_k_dense_replace", message, ""))
    if model.mlp_only_layers and model.mlp_only_layers[-1] >= layers:
        message = Message("common.is_outside", value=model.mlp_only_layers[-1], range=f"[0, {layers - 1}]")
        broken.append(("mlp_only_layers", message, ""))
    if model.num_dense_layers > 0 and model.intermediate_size is None:
        broken.append(("intermediate_size", Message("common.is_required", name="intermediate_size"), ""))
    return broken


def _type_faults(model: ModelSpec) -> list[Fault]:
    """Types of layers and the sizes that they need."""
    broken: list[Fault] = []
    types = model.layer_types or ()
    if model.attention_chunk_size is None and "chunked_attention" in types:
        message = Message("common.needs_it", what="layer_types: chunked_attention")
        broken.append(("attention_chunk_size", message, ""))
    other = model.sliding_attention_heads
    if other is not None and "sliding_attention" not in types:
        message = Message("common.it_needs_field", name="layer_types: sliding_attention")
        broken.append(("sliding_attention_heads", message, Message("common.leave_it_out")))
    if other is not None and other % model.num_key_value_heads:
        part = f"num_key_value_heads {model.num_key_value_heads}"
        message = Message("common.does_not_divide", part=part, whole=other)
        broken.append(("sliding_attention_heads", message, ""))
    if model.attention_head_gate and model.attention_output_gate:
        message = Message("common.excludes_it", what="attention_output_gate")
        broken.append(("attention_head_gate", message, Message("common.leave_it_out")))
    return broken


def _expert_faults(model: ModelSpec) -> list[Fault]:
    experts, top_k = model.n_routed_experts, model.num_experts_per_tok
    if experts is None:
        hint = Message("common.leave_it_out_or", instead="n_routed_experts")
        return [
            (name, Message("common.it_needs_field", name="n_routed_experts"), hint)
            for name in _EXPERT_FIELDS
            if getattr(model, name)
        ]
    broken: list[Fault] = []
    if top_k is None:
        broken.append(
            (
                "num_experts_per_tok",
                Message("common.needs_it", what="n_routed_experts"),
                "",
            )
        )
    elif top_k > model.router_choices:
        broken.append(
            (
                "num_experts_per_tok",
                Message("common.exceeds", one=top_k, other=f"n_routed_experts {model.router_choices}"),
                "",
            )
        )
    if model.moe_intermediate_size is None:
        broken.append(
            (
                "moe_intermediate_size",
                Message("common.needs_it", what="n_routed_experts"),
                "",
            )
        )
    if model.num_moe_layers == 0:
        message = Message("specs.every_layer_is_dense_but_there_are_routed")
        broken.append(("n_routed_experts", message, ""))
    if model.shared_expert_intermediate_size is not None and model.n_shared_experts == 0:
        message = Message("common.it_needs_field", name="n_shared_experts")
        broken.append(("shared_expert_intermediate_size", message, "n_shared_experts: 1"))
    return broken + _shortcut_faults(model) + _group_faults(model, experts, top_k)


def _shortcut_faults(model: ModelSpec) -> list[Fault]:
    """What layers with a shortcut, and experts that return what they get, are modelled with."""
    broken: list[Fault] = []
    if model.n_zero_experts:
        beside = ("n_shared_experts", "n_group", "capacity_factor")
        broken += [
            (name, Message("common.excludes_it", what="n_zero_experts"), Message("common.leave_it_out"))
            for name in beside
            if getattr(model, name)
        ]
    if not model.shortcut_moe:
        return broken
    if model.intermediate_size is None:
        message = Message("common.needs_it", what="shortcut_moe")
        broken.append(("intermediate_size", message, ""))
    unlike = (
        *("first_k_dense_replace", "mlp_only_layers", "layer_types", "sliding_window", "sparse_attention"),
        *("n_shared_experts", "num_nextn_predict_layers", "compressed_attention", "hyper_connections"),
    )
    shapes = [name for name in unlike if getattr(model, name)]
    shapes += ["norm_layout"] if model.norm_layout != "pre" else []
    broken += [
        (name, Message("common.excludes_it", what="shortcut_moe"), Message("common.leave_it_out")) for name in shapes
    ]
    return broken


def _group_faults(model: ModelSpec, experts: int, top_k: int | None) -> list[Fault]:
    groups, reach = model.n_group, model.topk_group
    if groups is None:
        return (
            [
                (
                    "topk_group",
                    Message("common.it_needs_field", name="n_group"),
                    Message("common.leave_it_out_or", instead="n_group"),
                )
            ]
            if reach is not None
            else []
        )
    if experts % groups:
        return [
            (
                "n_group",
                Message("common.does_not_divide", part=f"n_group {groups}", whole=f"n_routed_experts {experts}"),
                "",
            )
        ]
    if reach is None:
        return [("topk_group", Message("common.needs_it", what="n_group"), "")]
    if reach > groups:
        return [
            (
                "topk_group",
                Message("common.exceeds", one=reach, other=f"n_group {groups}"),
                "",
            )
        ]
    if top_k is not None and top_k > reach * (experts // groups):
        message = Message(
            "common.exceeds", one=f"num_experts_per_tok {top_k}", other=f"topk_group {reach} x {experts // groups}"
        )
        return [("topk_group", message, "")]
    return []
