"""Costs of every kind of attention and of layers, by the name of the kind's record in `autodeploy.specs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autodeploy.costs.workload.attention import GROUPED_COSTS, LATENT_COSTS
from autodeploy.costs.workload.compressed_attention import COMPRESSED_COSTS
from autodeploy.costs.workload.linear_attention import LINEAR_COSTS
from autodeploy.costs.workload.mlp import DENSE_COSTS, ROUTED_COSTS, SHORTCUT_COSTS
from autodeploy.specs.attention import COMPRESSED_KEYS, GROUPED, LATENT, LINEAR, kind_of_attention
from autodeploy.specs.model_rules import DENSE, EXPERTS, SHORTCUT, kind_of_layers

if TYPE_CHECKING:
    from autodeploy.costs.workload.attention_types import AttentionCosts, LayerKind
    from autodeploy.costs.workload.mlp import LayerCosts
    from autodeploy.specs.model import ModelSpec

ATTENTION: Final = {
    LINEAR.name: LINEAR_COSTS,
    GROUPED.name: GROUPED_COSTS,
    LATENT.name: LATENT_COSTS,
    COMPRESSED_KEYS.name: COMPRESSED_COSTS,
}
LAYERS: Final = {DENSE.name: DENSE_COSTS, EXPERTS.name: ROUTED_COSTS, SHORTCUT.name: SHORTCUT_COSTS}


def costs_of(model: ModelSpec, kind: LayerKind) -> AttentionCosts:
    """Costs of the attention that layers of the kind have."""
    return ATTENTION[kind_of_attention(model, kind.attention).name]


def layer_costs_of(model: ModelSpec, kind: LayerKind) -> LayerCosts:
    """Costs of what else they have."""
    return LAYERS[kind_of_layers(model, kind.mlp).name]
