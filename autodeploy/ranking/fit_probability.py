"""P(fits): how probable it is that a plan's peak of memory stays below what the framework may use of a card."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from autodeploy.calibration.families import configuration_digest, family_digest
from autodeploy.calibration.memory_belief import belief
from autodeploy.calibration.spreads import memory_spread
from autodeploy.ranking.uncertainty import run_of

if TYPE_CHECKING:
    from autodeploy.calibration.spreads import MemorySpread
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates

LEAST_P_FITS: Final = 0.9
"""Of a plan that is recommended: running out of memory costs a launch, and a launch costs a day."""
DIGITS: Final = 6
_NORMAL = NormalDist()


def memory_spread_of(candidate: Candidates, context: Context) -> MemorySpread:
    """How far the predicted peak on the card of a candidate's plans may be off, whatever their layout.

    What runs of this cluster and family of models have said of it counts; of other families it does not.
    """
    spread = memory_spread(context.family.split("-")[0], run_of(candidate, context))
    evidence = None if context.profile is None else context.profile.document.evidence
    if evidence is None or not evidence.memory:
        return spread
    family = family_digest(context.model)
    seen = tuple(each for each in evidence.memory if each.family == family)
    if not seen:
        return spread
    own = configuration_digest(context.model, context.seq_length, candidate.axes_at(0))
    basis = f"{spread.basis}; {len({each.configuration for each in seen})} runs of this cluster"
    return replace(spread, basis=basis, belief=belief(seen, own, spread.log_sigma, spread.peaks))


def p_fits(peak_bytes: float, limit_bytes: float, spread: MemorySpread) -> float:
    """P(fits): probability that a peak whose logarithm is normal about the predicted one stays within the limit."""
    ratio = math.log(limit_bytes / peak_bytes)
    chance = _NORMAL.cdf(ratio / spread.log_sigma) if spread.belief is None else spread.belief.at_most(ratio)
    return round(chance, DIGITS)


def roomy_limit_bytes(limit_bytes: float, spread: MemorySpread, least: float = LEAST_P_FITS) -> float:
    """The predicted peak up to which a plan fits with a probability of `least`."""
    if spread.belief is not None:
        return limit_bytes * math.exp(-spread.belief.quantile(least))
    return limit_bytes * math.exp(-_NORMAL.inv_cdf(least) * spread.log_sigma)
