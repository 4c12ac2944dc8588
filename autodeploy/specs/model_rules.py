"""Kinds of layers as records, and when fields of a model contradict each other.

A fault names the field, what is wrong and what to do. What layers of a kind compute is its `LayerCosts` in
`costs/workload`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autodeploy.messages import Message
from autodeploy.specs.attention import Part, attention_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.specs.attention import Fault
    from autodeploy.specs.model import ModelSpec

MAX_TOTAL_PARAMS = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind(Part):
    """Parts of layers beside attention and norms.

    layer_class : by which strategies count them. matrices : parameters of a layer with so many experts. halves : how
    often a layer has attention, norms and a dense MLP.
    """

    name: str
    layer_class: str
    matrices: Callable[[ModelSpec, float], int]
    halves: int = 1


def _routed_matrices(model: ModelSpec, experts: float) -> int:
    return model.router_params + model.shared_expert_params + round(experts * model.routed_expert_params)


def _shortcut_matrices(model: ModelSpec, experts: float) -> int:
    return _routed_matrices(model, experts) + model.halves * model.dense_mlp_params


DENSE: Final = LayerKind(name="dense", layer_class="dense", matrices=lambda model, experts: model.dense_mlp_params)
EXPERTS: Final = LayerKind(
    name="experts",
    layer_class="moe",
    matrices=_routed_matrices,
    field="n_routed_experts",
    fields=(
        *("num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "shared_expert_intermediate_size"),
        *("first_k_dense_replace", "mlp_only_layers", "num_hash_layers", "n_group", "topk_group"),
        *("capacity_factor", "n_zero_experts", "shortcut_moe"),
    ),
    needs=("num_experts_per_tok", "moe_intermediate_size"),
)
# Attention and a dense MLP twice, and experts on a shortcut beside them (ScMoE).
SHORTCUT: Final = LayerKind(
    name="shortcut",
    layer_class="moe",
    matrices=_shortcut_matrices,
    halves=2,
    field="shortcut_moe",
    needs=("intermediate_size",),
    excludes=(
        *("first_k_dense_replace", "mlp_only_layers", "layer_types", "sliding_window", "sparse_attention"),
        *("n_shared_experts", "num_nextn_predict_layers", "compressed_attention", "hyper_connections"),
    ),
)
LAYER_KINDS: Final = (SHORTCUT, EXPERTS, DENSE)


def _module_matrices(model: ModelSpec, experts: float) -> int:
    kinds = (model.module_attention, model.attention_type(model.module_like_layer))
    own, other = map(model.attention_params_of, kinds)
    return model.layer_matrix_params(model.module_like_layer, experts) + own - other + 2 * model.hidden_size**2


# A module of multi-token prediction: one more layer of the last layer's kind, with an indexer where others have one,
# three norms, and the projection of the joined hidden state and embedding, 2h x h (DeepSeek-V3, arXiv 2412.19437, 2.2).
MODULE: Final = LayerKind(name="module", layer_class="", field="num_nextn_predict_layers", matrices=_module_matrices)
# Of layers with experts.
PARTS: Final = (
    Part(field="n_shared_experts", fields=("shared_expert_intermediate_size",)),
    Part(field="n_zero_experts", excludes=("n_shared_experts", "n_group", "capacity_factor")),
    SHORTCUT,
    Part(field="n_group", fields=("topk_group",), needs=("topk_group",)),
)


def kind_of_layers(model: ModelSpec, layer_class: str) -> LayerKind:
    """The kind that a model's layers of a class are of."""
    return next(kind for kind in LAYER_KINDS if kind.layer_class == layer_class and kind.is_in(model))


def faults(model: ModelSpec) -> list[Fault]:
    """All faults of a model whose fields are valid one by one."""
    return [
        (field, message, hint or Message("specs.check_against_config_json")) for field, message, hint in _found(model)
    ]


def _found(model: ModelSpec) -> Iterator[Fault]:
    broken = [*attention_faults(model), *_layer_faults(model), *_expert_faults(model)]
    yield from broken
    if not broken and (count := model.total_params(include_mtp=True)) > MAX_TOTAL_PARAMS:
        yield "hidden_size", Message("specs.model_would_have_parameters", count=count), ""


def _layer_faults(model: ModelSpec) -> Iterator[Fault]:
    """Types of layers, the sizes that they need, and how many layers there are."""
    layers, types = model.num_hidden_layers, model.layer_types or ()
    if model.layer_types is not None and len(types) != layers:
        yield "layer_types", Message("common.entries_expected", count=layers, found=len(types)), ""
    for name, attention in (("sliding_window", "sliding_attention"), ("attention_chunk_size", "chunked_attention")):
        if getattr(model, name) is None and attention in types:
            yield name, Message("common.needs_it", what=f"layer_types: {attention}"), ""
    if model.first_k_dense_replace > layers:
        message = Message("common.exceeds", one=model.first_k_dense_replace, other=f"num_hidden_layers {layers}")
        yield "first_k_dense_replace", message, ""
    if model.mlp_only_layers and model.mlp_only_layers[-1] >= layers:
        message = Message("common.is_outside", value=model.mlp_only_layers[-1], range=f"[0, {layers - 1}]")
        yield "mlp_only_layers", message, ""
    if model.num_dense_layers > 0 and model.intermediate_size is None:
        yield "intermediate_size", Message("common.is_required", name="intermediate_size"), ""
    other = model.sliding_attention_heads
    if other is not None and "sliding_attention" not in types:
        message = Message("common.it_needs_field", name="layer_types: sliding_attention")
        yield "sliding_attention_heads", message, Message("common.leave_it_out")
    if other is not None and other % model.num_key_value_heads:
        part = f"num_key_value_heads {model.num_key_value_heads}"
        yield "sliding_attention_heads", Message("common.does_not_divide", part=part, whole=other), ""
    if model.attention_head_gate and model.attention_output_gate:
        message = Message("common.excludes_it", what="attention_output_gate")
        yield "attention_head_gate", message, Message("common.leave_it_out")


def _expert_faults(model: ModelSpec) -> Iterator[Fault]:
    experts, top_k = model.n_routed_experts, model.num_experts_per_tok
    groups, reach = model.n_group, model.topk_group
    if experts is None:
        yield from EXPERTS.without(model)
        return
    yield from EXPERTS.beside(model)
    for part in PARTS:
        yield from part.beside(model) if part.is_in(model) else part.without(model)
    if top_k is not None and top_k > model.router_choices:
        message = Message("common.exceeds", one=top_k, other=f"n_routed_experts {model.router_choices}")
        yield "num_experts_per_tok", message, ""
    if model.num_moe_layers == 0:
        yield "n_routed_experts", Message("specs.dense_with_experts"), ""
    if model.shortcut_moe and model.norm_layout != "pre":
        yield "norm_layout", Message("common.excludes_it", what="shortcut_moe"), Message("common.leave_it_out")
    if groups is not None and experts % groups:
        part_of = f"n_group {groups}"
        yield "n_group", Message("common.does_not_divide", part=part_of, whole=f"n_routed_experts {experts}"), ""
    elif groups is not None and reach is not None and reach > groups:
        yield "topk_group", Message("common.exceeds", one=reach, other=f"n_group {groups}"), ""
    elif groups and reach and top_k is not None and top_k > reach * (experts // groups):
        other = f"topk_group {reach} x {experts // groups}"
        yield "topk_group", Message("common.exceeds", one=f"num_experts_per_tok {top_k}", other=other), ""
