"""When the fields of a model contradict each other. A fault names the field, what is wrong and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    "n_group",
    "topk_group",
    "capacity_factor",
)


def faults(model: ModelSpec) -> list[Fault]:
    """All faults of a model whose fields are valid one by one."""
    found = [*_attention_faults(model), *_layer_faults(model), *_type_faults(model), *_expert_faults(model)]
    if not found and model.total_params(include_mtp=True) > MAX_TOTAL_PARAMS:
        message = f"the model would have {model.total_params():.1e} parameters"
        found.append(("hidden_size", message, "check the sizes"))
    return found


def _attention_faults(model: ModelSpec) -> list[Fault]:
    found: list[Fault] = []
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    mla = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    if model.is_mla:
        missing = [name for name in mla if getattr(model, name) is None]
        found += [(name, "latent attention (kv_lora_rank) needs it", "DeepSeek-V3: 128, 64, 128") for name in missing]
        if kv_heads != heads:
            found.append(
                ("num_key_value_heads", f"{kv_heads}, but latent attention has one a head ({heads})", "omit it")
            )
        if not missing and model.head_dim != model.qk_head_dim:
            hint = f"omit it: qk_nope_head_dim + qk_rope_head_dim = {model.qk_head_dim}"
            found.append(("head_dim", f"{model.head_dim} contradicts the latent attention's dimensions", hint))
        return found
    for name in ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
        if getattr(model, name) is not None:
            found.append(
                (name, "belongs to latent attention, but kv_lora_rank is absent", "add kv_lora_rank or omit it")
            )
    if heads % kv_heads:
        hint = f"a divisor of {heads}"
        found.append(("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}", hint))
    if "head_dim" not in model.model_fields_set and model.hidden_size % heads:
        message = f"hidden_size {model.hidden_size} is not a multiple of num_attention_heads {heads}"
        found.append(("hidden_size", message, "give head_dim, or another number of heads"))
    return found


def _layer_faults(model: ModelSpec) -> list[Fault]:
    found: list[Fault] = []
    layers = model.num_hidden_layers
    if model.layer_types is not None:
        if len(model.layer_types) != layers:
            hint = f"give {layers} entries"
            found.append(("layer_types", f"{len(model.layer_types)} entries for {layers} layers", hint))
        if model.sliding_window is None and "sliding_attention" in model.layer_types:
            found.append(("sliding_window", "layer_types names sliding layers, but there is no window", "in tokens"))
    if model.first_k_dense_replace > layers:
        message = f"{model.first_k_dense_replace} dense layers of {layers}"
        found.append(("first_k_dense_replace", message, "num_hidden_layers counts the dense layers too"))
    if model.mlp_only_layers and model.mlp_only_layers[-1] >= layers:
        message = f"layer {model.mlp_only_layers[-1]} of {layers}"
        found.append(("mlp_only_layers", message, f"indices are 0 to {layers - 1}"))
    if model.num_dense_layers > 0 and model.intermediate_size is None:
        message = f"{model.num_dense_layers} layers are dense, but their width is absent"
        hint = "give it" if model.is_moe else "give it, or n_routed_experts and moe_intermediate_size"
        found.append(("intermediate_size", message, hint))
    return found


def _type_faults(model: ModelSpec) -> list[Fault]:
    """Types of layers and the sizes that they need."""
    found: list[Fault] = []
    types = model.layer_types or ()
    if model.attention_chunk_size is None and "chunked_attention" in types:
        message = "layer_types names chunked layers, but their chunk has no size"
        found.append(("attention_chunk_size", message, "in tokens"))
    if model.linear_attention is None and "linear_attention" in types:
        message = "layer_types names linear layers, but they have no sizes"
        found.append(("linear_attention", message, "kind, heads and head dimensions"))
    linear = model.linear_attention
    if linear is not None and "linear_attention" not in types:
        found.append(("linear_attention", "no layer is linear", "name them in layer_types, or omit it"))
    if linear is not None and linear.num_value_heads % linear.num_key_heads:
        message = f"{linear.num_key_heads} heads of keys do not divide {linear.num_value_heads} of values"
        found.append(("linear_attention", message, f"a divisor of {linear.num_value_heads}"))
    if model.attention_output_gate and model.is_mla:
        found.append(("attention_output_gate", "latent attention has none that is modelled", "omit it"))
    other = model.sliding_attention_heads
    if other is not None and "sliding_attention" not in types:
        found.append(("sliding_attention_heads", "no layer is sliding", "name them in layer_types, or omit it"))
    if other is not None and (model.is_mla or other % model.num_key_value_heads):
        message = f"{other} heads do not share {model.num_key_value_heads} of keys and values evenly"
        found.append(("sliding_attention_heads", message, f"a multiple of {model.num_key_value_heads}"))
    if model.attention_head_gate and (model.is_mla or model.attention_output_gate):
        message = "an output has one kind of gate, and a latent attention's none that is modelled"
        found.append(("attention_head_gate", message, "omit it"))
    if model.sparse_attention is not None and not model.is_mla:
        found.append(("sparse_attention", "an indexer needs latent attention", "add kv_lora_rank or omit it"))
    return found


def _expert_faults(model: ModelSpec) -> list[Fault]:
    experts, top_k = model.n_routed_experts, model.num_experts_per_tok
    if experts is None:
        hint = "add n_routed_experts or omit it"
        return [
            (name, "belongs to experts, but n_routed_experts is absent", hint)
            for name in _EXPERT_FIELDS
            if getattr(model, name)
        ]
    found: list[Fault] = []
    if top_k is None:
        found.append(("num_experts_per_tok", "routed experts need it", "experts a token is sent to"))
    elif top_k > experts:
        found.append(("num_experts_per_tok", f"{top_k} of {experts} experts", f"at most {experts}"))
    if model.moe_intermediate_size is None:
        found.append(("moe_intermediate_size", "routed experts need it", "the width of one expert"))
    if model.num_moe_layers == 0:
        message = "every layer is dense, but there are routed experts"
        found.append(("n_routed_experts", message, "lower first_k_dense_replace, or omit the experts"))
    if model.shared_expert_intermediate_size is not None and model.n_shared_experts == 0:
        message = "n_shared_experts is 0, but the shared experts have a width"
        found.append(("shared_expert_intermediate_size", message, "set n_shared_experts"))
    return found + _group_faults(model, experts, top_k)


def _group_faults(model: ModelSpec, experts: int, top_k: int | None) -> list[Fault]:
    groups, reach = model.n_group, model.topk_group
    if groups is None:
        return [("topk_group", "n_group is absent", "give both or none")] if reach is not None else []
    if experts % groups:
        return [("n_group", f"{groups} groups do not divide {experts} experts", f"a divisor of {experts}")]
    if reach is None:
        return [("topk_group", "n_group is given, but not how many groups a token may reach", "give both or none")]
    if reach > groups:
        return [("topk_group", f"{reach} of {groups} groups", f"at most {groups}")]
    if top_k is not None and top_k > reach * (experts // groups):
        message = f"{reach} groups of {experts // groups} experts hold fewer than num_experts_per_tok {top_k}"
        return [("topk_group", message, "raise topk_group")]
    return []
