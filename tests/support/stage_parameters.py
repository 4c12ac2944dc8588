"""Parameters that a rank of each pipeline stage holds, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.layers.unit_costs import scalar_at
from cost_models.schedule import model_parts

if TYPE_CHECKING:
    from autodeploy.costs.stages.step_classes import StepClass, StepClasses
    from autodeploy.costs.steps.estimate import Layout
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Floats


@dataclass(frozen=True)
class StageParameters:
    """Counts on one rank [pp, vpp]: what data parallel ranks share, and routed experts."""

    dense: Floats
    experts: Floats

    @property
    def total(self) -> Floats:
        """Both."""
        return np.asarray(self.dense + self.experts)


def stage_parameters(classes: StepClasses, candidates: Candidates, index: int, layout: Layout) -> StageParameters:
    """Parameters of candidate `index` under a layout, whole where they are sharded over data parallel ranks."""
    pp, vpp = layout.layers.shape[:2]
    parts = model_parts(candidates.axes_at(index)["schedule"], pp, vpp)  # type: ignore[arg-type]

    def summed(field: str) -> Floats:
        def count(step: StepClass) -> float:
            return scalar_at(getattr(step.cost, field), index)

        found = layout.layers @ np.array([count(step) for step in classes.layers])
        for piece in classes.pieces:
            for place in parts[0] if piece is classes.embedding else parts[-1]:
                found[place] += count(piece)
        return np.asarray(found)

    return StageParameters(summed("dense_params"), summed("expert_params"))
