"""What one layer of each kind takes for one micro batch, by part: what a rehearsal and its plan have in common."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from autodeploy.evaluation.layers.layer_cost import PhaseCost
from autodeploy.evaluation.layers.unit_costs import unit_costs
from autodeploy.evaluation.stages.step_classes import step_classes

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates

PARTS = tuple(field.name for field in fields(PhaseCost))


def unit_times(context: Context, candidate: Candidates) -> dict[str, dict[str, float]]:
    """Seconds of a layer, forward and backward together, by kind of layer and by part.

    Parameters
    ----------
    context, candidate : `autodeploy.planner.lowered` of a plan.
    """
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    return {
        step.name: {
            part: float(getattr(step.cost.forward, part)[0] + getattr(step.cost.backward, part)[0]) for part in PARTS
        }
        for step in classes.layers
    }
