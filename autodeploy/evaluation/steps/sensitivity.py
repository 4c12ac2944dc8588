"""How a strategy's step time follows the factors of a profile: d log(step time) / d log(factor), at a fixed layout.

Forward differences through the formulas of the estimate: a world for each factor, in which it alone has moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.steps.worlds import reads, step_times_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.steps.estimate import Layout
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Floats
    from hardware_profiles.covariance import FittedFactor

STEP = 0.02  # of a log factor, as in the Jacobian of the fit


def sensitivities(
    candidates: Candidates,
    context: Context,
    layouts: Sequence[Layout],
    factors: Sequence[FittedFactor],
    at: Mapping[str, float] | None = None,
) -> Floats:
    """Slopes of the log step time of each candidate under its layout [n, factors].

    Parameters
    ----------
    context : with the profile whose numbers the factors multiply.
    at : numbers in place of the profile's, where the slopes are wanted.
    """
    slopes = np.zeros((len(candidates), len(factors)))
    moved = [number for number, f in enumerate(factors) if any(reads(context, name) for name in f.multiplies)]
    if moved and len(candidates):
        worlds: list[dict[str, float]] = [{}, *({factors[number].name: STEP} for number in moved)]
        times = step_times_in(candidates, context, layouts, factors, worlds, at=at, limits=False)
        slopes[:, moved] = np.log(times[:, 1:] / times[:, :1]) / STEP
    return slopes
