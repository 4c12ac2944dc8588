"""What memory costs a stage in time, as rows of a linear programme over its layer counts.

The prices and the reasoning are those of `stage_bound`; here the layers of each chunk are apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.stage_bound import PRICES, gained, price_of_whole

if TYPE_CHECKING:
    from autodeploy.evaluation.inner_problem import Floats, InnerProblem


@dataclass(frozen=True, eq=False)
class Surcharge:
    """constant + sum of layer [vpp, classes] times counts <= what a micro batch adds to the stage; <= 0 for bytes."""

    stage: int
    constant: float
    layer: Floats
    seconds: bool


def surcharges(problem: InnerProblem) -> list[Surcharge]:
    """Rows of every stage and peak moment: everything saved must fit, and at each price what saving costs."""
    from autodeploy.solver.problem_bound import batch_of

    if not np.isfinite(problem.limit_bytes):
        return []
    batch = batch_of(problem, empty_classes=True)
    static = np.array([c.static_bytes for c in problem.classes])
    kept = np.array([c.activation_bytes for c in problem.classes])
    saved = np.array([part.choices.most_saved_bytes[0] for part in batch.layers])
    full = max(float(price_of_whole(part)[0]) for part in batch.layers)
    moments = problem.in_flight if problem.in_flight.ndim == 3 else problem.in_flight[:, None, :]
    found = []
    for stage in range(problem.pp):
        pieces = [p for p in problem.pieces if p.stage == stage]
        own = problem.fixed_bytes[stage] + sum(p.cost.static_bytes for p in pieces) - problem.limit_bytes
        for held in np.unique(moments[stage].astype(np.float64), axis=0):
            constant = own + sum(p.cost.activation_bytes * held[p.chunk] for p in pieces)
            lean = static[None] + held[:, None] * (kept - saved)[None]
            found.append(Surcharge(stage, float(constant), lean, seconds=False))
            if not problem.options or full <= 0.0:
                continue
            for price in PRICES[1:]:
                mu = price * full / max(float(held.mean()), 1e-9)
                gains = np.stack([gained(part, mu * held[None])[0] for part in batch.layers], axis=-1)
                layer = mu * (static[None] + held[:, None] * kept[None]) - gains
                found.append(Surcharge(stage, mu * float(constant), layer, seconds=True))
    return found
