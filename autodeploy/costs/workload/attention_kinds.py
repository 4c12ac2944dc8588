"""Costs of every kind of attention, by the kind's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autodeploy.costs.workload.attention import GROUPED_COSTS, LATENT_COSTS
from autodeploy.costs.workload.compressed_attention import COMPRESSED_COSTS
from autodeploy.costs.workload.linear_attention import LINEAR_COSTS
from autodeploy.specs.attention import COMPRESSED_KEYS, GROUPED, LATENT, LINEAR, kind_of_attention

if TYPE_CHECKING:
    from autodeploy.costs.workload.attention_types import AttentionCosts, LayerKind
    from autodeploy.specs.model import ModelSpec

COSTS: Final = {
    GROUPED.name: GROUPED_COSTS,
    LATENT.name: LATENT_COSTS,
    LINEAR.name: LINEAR_COSTS,
    COMPRESSED_KEYS.name: COMPRESSED_COSTS,
}


def costs_of(model: ModelSpec, kind: LayerKind) -> AttentionCosts:
    """Costs of the attention that layers of the kind have."""
    return COSTS[kind_of_attention(model, kind.attention).name]
