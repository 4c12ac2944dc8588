"""Intervals of plans and ties between them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.calibration.families import configuration_digest, family_digest, work_digest
from autodeploy.calibration.overlays import covariance_of
from autodeploy.costs.prediction_spread import (
    NO_RUNS,
    Spread,
    TimedRuns,
    belief,
    coverage,
    memory_spread,
    run_in_context,
    spread_of,
)
from autodeploy.costs.steps.scenarios import sensitivities
from autodeploy.costs.workload.attention_types import unmeasured_types
from autodeploy.search.ranking.explanation import holds
from autodeploy.specs.planset import Plan, Uncertainty
from autodeploy.specs.tuning import TUNINGS
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.prediction_spread import MemorySpread
    from autodeploy.costs.steps.estimate import Layout
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Floats
    from hardware_profiles.covariance import Covariance, FittedFactor


Z_ONE_IN_FIVE = 0.8416  # of a normal distribution, one-sided
DECIMALS = 6  # of a sensitivity, which finite differences know to about as many; + 0.0 makes -0.0 plain


class _Described:
    """The run that was described last: all that is said of one plan asks for its own, one after the other."""

    last: tuple[Candidates, Context, dict[str, object]] | None = None


def run_of(candidate: Candidates, context: Context, *, features: bool = True) -> dict[str, object]:
    """A candidate as the coverage table describes runs; without its features where nobody asks for them."""
    if not features:
        return _described(candidate, context, features=False)
    last = _Described.last
    if last is None or last[0] is not candidate or last[1] is not context:
        _Described.last = last = candidate, context, _described(candidate, context, features=True)
    return last[2]


def _described(candidate: Candidates, context: Context, *, features: bool) -> dict[str, object]:
    # Features whose effect on time rests on records; the others are on in every record or change no time.
    measured_features = [feature for feature in FEATURES.values() if feature.measured and features]
    used = {each.mechanism for each in measured_features if holds(each.measured, candidate, context)}
    if features:
        used |= unmeasured_types(context.model)
        used |= {each.name for each in TUNINGS if context.facts[each.fact]}
    return run_in_context(candidate, context, used)


def factors_of(context: Context) -> tuple[FittedFactor, ...]:
    """Fitted factors of the context's profile."""
    assert context.profile is not None
    return covariance_of(context.profile).factors


def slopes_of(candidates: Candidates, context: Context, layouts: Sequence[Layout]) -> Floats:
    """d log(step time) / d log(factor) of strategies of one context [n, factors of its profile's covariance]."""
    return sensitivities(candidates, context, layouts, factors_of(context))


def interval(step_time_s: float, candidate: Candidates, context: Context, slopes: Floats) -> Uncertainty:
    """80 % interval of a step time, what it rests on and where it extrapolates; `slopes`: its row of `slopes_of`."""
    assert context.profile is not None
    covariance = covariance_of(context.profile)
    variance = parameter_variance(covariance, slopes)
    origin = context.profile.document.calibration.spread_of
    named = {f.name: float(slope) for f, slope in zip(covariance.factors, slopes, strict=True)}
    cluster = _timed_runs(candidate, context, named)
    spread: Spread = spread_of(context.family, run_of(candidate, context), variance, origin, cluster)
    low, high = spread.interval(step_time_s)
    return Uncertainty(
        low_s=low,
        high_s=high,
        basis=spread.basis,
        nearest_record=spread.nearest_record,
        extrapolated=spread.extrapolated,
        parameter_log_sigma=math.sqrt(variance),
        sensitivity={name: round(slope, DECIMALS) + 0.0 for name, slope in named.items()},
    )


def _timed_runs(candidate: Candidates, context: Context, slopes: Mapping[str, float]) -> TimedRuns:
    """Runs of the context's cluster as evidence on a candidate's step time; `slopes`: by factor."""
    assert context.profile is not None
    evidence = context.profile.document.evidence
    if evidence is None:
        return NO_RUNS
    work = work_digest(context.model, context.seq_length, candidate.axes_at(0))
    # Half the variance by which two works differ is that of one. Runs that missed their intervals widen it.
    of_work = 0.5 * (evidence.time_scale * float(coverage()["pair_log_sigma"])) ** 2
    alike = [entry.variance_of(slopes, of_work) for entry in evidence.alike if entry.work == work]
    return TimedRuns(
        timed=family_digest(context.model) in evidence.timed,
        scale=evidence.time_scale,
        alike_variance=min(alike, default=None),
    )


def parameter_variance(covariance: Covariance, slopes: Floats) -> float:
    """Variance of log step time from the uncertainty of the factors, less what residuals of other clusters hold."""
    return max(0.0, covariance.variance_of(slopes) - covariance.in_residuals)


def ratio_log_sigma(first: Plan, second: Plan, covariance: Covariance) -> float:
    """Standard deviation of the log ratio of two plans' step times on one cluster; 0 of a plan with itself.

    Errors that both plans share cancel. What is left is the spread over pairs of records, and what the factors do to
    one plan and not to the other: (J1 - J2) C (J1 - J2)^T. Pairs are of residuals that the fit has seen, which hold
    none of the factors' uncertainty, so nothing counts twice.
    """
    if first.strategy == second.strategy:
        return 0.0
    ours, theirs = first.uncertainty.sensitivity, second.uncertainty.sensitivity
    slopes = np.array([ours.get(f.name, 0.0) - theirs.get(f.name, 0.0) for f in covariance.factors])
    return math.sqrt(float(coverage()["pair_log_sigma"]) ** 2 + covariance.variance_of(slopes))


def tied(first: Plan, second: Plan, covariance: Covariance) -> bool:
    """Whether the order of two plans on one cluster is uncertain: wrong with a probability above one in five."""
    resolution = Z_ONE_IN_FIVE * ratio_log_sigma(first, second, covariance)
    return abs(math.log(first.step_time_s / second.step_time_s)) < resolution


# P(fits).
LEAST_P_FITS: Final = 0.9
"""Of a plan that is recommended: running out of memory costs a launch, and a launch costs a day."""
GROWTH, GROWTH_WITH_EXPERTS = 0.01, 0.02
"""By how much the logarithm of a peak grows from a run's first steps to its worst: fragmentation takes 2 to 5 % of a
card, a third of which differs within a run, and routing varies as much again: judgement."""
DIGITS: Final = 6
_NORMAL = NormalDist()


def memory_spread_of(candidate: Candidates, context: Context) -> MemorySpread:
    """Spread of the predicted peak on the card of a candidate's plans, whatever their layout.

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


def p_starts(peak_bytes: float, limit_bytes: float, spread: MemorySpread, *, moe: bool) -> float:
    """P(starts): the same of the first steps, whose peak is lower than that of a run."""
    grown = math.exp(GROWTH_WITH_EXPERTS if moe else GROWTH)
    return p_fits(peak_bytes, limit_bytes * grown, spread)


def roomy_limit_bytes(limit_bytes: float, spread: MemorySpread, least: float = LEAST_P_FITS) -> float:
    """The predicted peak up to which a plan fits with a probability of `least`."""
    if spread.belief is not None:
        return limit_bytes * math.exp(-spread.belief.quantile(least))
    return limit_bytes * math.exp(-_NORMAL.inv_cdf(least) * spread.log_sigma)
