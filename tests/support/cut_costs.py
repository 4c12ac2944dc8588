"""Costs of any candidates by how they cut tensors, for searches over candidates that no search space has swept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.layers.unit_costs import CutCosts, unit_costs
from autodeploy.space.tree import distinct_cuts

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates


def cut_costs(candidates: Candidates, context: Context) -> CutCosts:
    """Costs of candidates of one context, in which no feature is open."""
    first, cut = distinct_cuts(candidates, by_replicas=context.cuts_by_replicas)
    return CutCosts((unit_costs(context, candidates.take(first)),), np.zeros_like(cut), cut)
