"""The planner's estimates of several layouts of one run, whose layers are priced in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import Estimate, Layout, estimate_layout, template_layers
from autodeploy.specs.strategy import ChoiceKey
from tests.support.accounting.cases import candidates_of
from tests.support.accounting.ranks import Degrees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.inputs.context import Context

Placed: TypeAlias = tuple[Degrees, list[list[int]], dict[str, list[int]]]
"""A strategy, layers of every chunk [stage][chunk], layers of every stage that use each memory choice."""


def estimates(context: Context, placed: Sequence[Placed]) -> list[Estimate]:
    """One for each; pricing ten strategies takes as long as pricing one, and does not change any of them
    (`test_an_estimate_is_the_same_alone_and_in_a_batch`).
    """
    candidates = candidates_of([d for d, _, _ in placed])
    classes = step_classes(unit_costs(context, candidates), candidates, context)
    counts = tuple(c.count for c in classes.layers)
    found = []
    for index, (d, per_chunk, applied) in enumerate(placed):
        layers = template_layers(counts, d.pp, d.vpp, np.asarray(per_chunk), d.schedule)
        chosen = {ChoiceKey(name): np.asarray(values) for name, values in applied.items()}
        found.append(estimate_layout(Priced(classes, candidates, context, index), Layout(layers, chosen)))
    return found


def estimated(context: Context, d: Degrees, per_chunk: list[list[int]], applied: dict[str, list[int]]) -> Estimate:
    """Of one layout."""
    return estimates(context, [(d, per_chunk, applied)])[0]
