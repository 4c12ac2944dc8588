"""When the fields of a model contradict each other. A fault names the field, what is wrong and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message
from autodeploy.specs.attention import COMPRESSED

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec

Fault = tuple[str, str, str]  # field, message, hint

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
    broken = [*_attention_faults(model), *_layer_faults(model), *_type_faults(model), *_expert_faults(model)]
    broken += _compressed_faults(model)
    if not broken and model.total_params(include_mtp=True) > MAX_TOTAL_PARAMS:
        message = Message("specs.model_would_have_parameters", count=model.total_params())
        broken.append(("hidden_size", message, ""))
    return broken


def _attention_faults(model: ModelSpec) -> list[Fault]:
    broken: list[Fault] = []
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    mla = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    if model.is_mla:
        missing = [name for name in mla if getattr(model, name) is None]
        broken += [
            (name, Message("common.needs_it", what="kv_lora_rank"), "DeepSeek-V3: 128, 64, 128") for name in missing
        ]
        if kv_heads != heads:
            broken.append(
                (
                    "num_key_value_heads",
                    Message("specs.but_latent_attention_has_one_head", heads=kv_heads, all=heads),
                    Message("common.leave_it_out"),
                )
            )
        if not missing and model.head_dim != model.qk_head_dim:
            hint = Message("specs.omit_it_sum", sum=model.qk_head_dim)
            broken.append(("head_dim", Message("field_fault.is_invalid", value=model.head_dim), hint))
        return broken
    own = () if model.compressed_attention is None else ("q_lora_rank", "qk_rope_head_dim")
    for name in ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
        if getattr(model, name) is not None and name not in own:
            broken.append(
                (
                    name,
                    Message("common.it_needs_field", name="kv_lora_rank"),
                    Message("common.leave_it_out_or", instead="kv_lora_rank"),
                )
            )
    if heads % kv_heads:
        message = Message("common.does_not_divide", part=kv_heads, whole=f"num_attention_heads {heads}")
        broken.append(("num_key_value_heads", message, ""))
    if "head_dim" not in model.model_fields_set and model.hidden_size % heads:
        message = Message("common.does_not_divide", part=f"num_attention_heads {heads}", whole=model.hidden_size)
        broken.append(("hidden_size", message, Message("specs.give_head_dim_or_another_number_of_heads")))
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
    if model.linear_attention is None and "linear_attention" in types:
        message = Message("common.needs_it", what="layer_types: linear_attention")
        broken.append(("linear_attention", message, ""))
    linear = model.linear_attention
    if linear is not None and "linear_attention" not in types:
        broken.append(
            (
                "linear_attention",
                Message("common.it_needs_field", name="layer_types: linear_attention"),
                Message("common.leave_it_out"),
            )
        )
    if linear is not None and linear.num_value_heads % linear.num_key_heads:
        message = Message(
            "common.does_not_divide",
            part=f"num_key_heads {linear.num_key_heads}",
            whole=f"num_value_heads {linear.num_value_heads}",
        )
        broken.append(("linear_attention", message, ""))
    if model.attention_output_gate and model.is_mla:
        broken.append(
            (
                "attention_output_gate",
                Message("common.excludes_it", what="kv_lora_rank"),
                Message("common.leave_it_out"),
            )
        )
    other = model.sliding_attention_heads
    if other is not None and "sliding_attention" not in types:
        broken.append(
            (
                "sliding_attention_heads",
                Message("common.it_needs_field", name="layer_types: sliding_attention"),
                Message("common.leave_it_out"),
            )
        )
    if other is not None and (model.is_mla or other % model.num_key_value_heads):
        message = Message(
            "common.does_not_divide", part=f"num_key_value_heads {model.num_key_value_heads}", whole=other
        )
        if model.is_mla:
            message = Message("common.excludes_it", what="kv_lora_rank")
        broken.append(("sliding_attention_heads", message, ""))
    if model.attention_head_gate and (model.is_mla or model.attention_output_gate):
        message = Message("common.excludes_it", what="kv_lora_rank" if model.is_mla else "attention_output_gate")
        broken.append(("attention_head_gate", message, Message("common.leave_it_out")))
    if model.sparse_attention is not None and not model.is_mla:
        broken.append(
            (
                "sparse_attention",
                Message("common.it_needs_field", name="kv_lora_rank"),
                Message("common.leave_it_out_or", instead="kv_lora_rank"),
            )
        )
    return broken


def _compressed_faults(model: ModelSpec) -> list[Fault]:
    """Attention to compressed keys: its layers, and what of other attention it excludes."""
    compressed = model.compressed_attention
    types = set(model.layer_types or ())
    if compressed is None:
        if types & COMPRESSED:
            hint = "o_groups, o_lora_rank, index_topk, index_n_heads, index_head_dim"
            return [
                (
                    "compressed_attention",
                    Message("common.needs_it", what="layer_types: compressed_sparse_attention"),
                    hint,
                )
            ]
        return []
    broken: list[Fault] = []
    if not types & COMPRESSED or types - COMPRESSED - {"sliding_attention"}:
        message = Message("specs.layers_beside_compressed_ones_have_window")
        broken.append(
            ("layer_types", message, "compressed_sparse_attention, heavily_compressed_attention, sliding_attention")
        )
    needed = ("q_lora_rank", "qk_rope_head_dim", "sliding_window")
    broken += [
        (name, Message("common.needs_it", what="compressed_attention"), "DeepSeek-V4-Flash: 1024, 64, 128")
        for name in needed
        if getattr(model, name) is None
    ]
    if model.num_key_value_heads != 1:
        message = Message("specs.attention_to_compressed_keys_has_one_key")
        broken.append(("num_key_value_heads", message, "1"))
    if model.num_attention_heads % compressed.o_groups:
        message = Message(
            "common.does_not_divide",
            part=f"o_groups {compressed.o_groups}",
            whole=f"num_attention_heads {model.num_attention_heads}",
        )
        broken.append(("compressed_attention", message, ""))
    excluded = ("kv_lora_rank", "sparse_attention", "linear_attention", "sliding_attention_heads", "v_head_dim")
    switched = ("qk_norm", "attention_output_gate", "attention_head_gate", "tie_word_embeddings")
    broken += [
        (name, Message("common.excludes_it", what="compressed_attention"), Message("common.leave_it_out"))
        for name in (*excluded, *switched)
        if getattr(model, name)
    ]
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
