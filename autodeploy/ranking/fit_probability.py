"""P(fits): how probable it is that a plan's peak of memory stays below what the framework may use of a card."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from autodeploy.calibration.memory_spread import memory_spread
from autodeploy.ranking.uncertainty import run_of

if TYPE_CHECKING:
    from autodeploy.calibration.memory_spread import MemorySpread
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates

LEAST_P_FITS: Final = 0.9
"""Of a plan that is recommended: running out of memory costs a launch, and a launch costs a day."""
DIGITS: Final = 6
_NORMAL = NormalDist()


def memory_spread_of(candidate: Candidates, context: Context) -> MemorySpread:
    """How far the predicted peak on the card of a candidate's plans may be off, whatever their layout."""
    return memory_spread(context.family.split("-")[0], run_of(candidate, context))


def p_fits(peak_bytes: float, limit_bytes: float, log_sigma: float) -> float:
    """Probability that a peak whose logarithm is normal about the predicted one stays within the limit."""
    return round(_NORMAL.cdf(math.log(limit_bytes / peak_bytes) / log_sigma), DIGITS)


def roomy_limit_bytes(limit_bytes: float, log_sigma: float, least: float = LEAST_P_FITS) -> float:
    """The predicted peak up to which a plan fits with a probability of `least`."""
    return limit_bytes * math.exp(-_NORMAL.inv_cdf(least) * log_sigma)
