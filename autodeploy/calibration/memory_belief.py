"""What runs of a cluster and a family of models say of the memory of other plans there.

The error of a predicted peak, x = log(met / predicted), is b + e: b is shared by all plans of one family of models on
one cluster, e by those of one configuration (degrees, micro batch, schedule). A measured peak says what x was; a run
that ran out of memory says that x was at least something (a censored observation, Tobin 1958).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.calibration.spreads import ASSUMED_BESIDE_ALLOCATOR, widening

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_models.arrays import Floats
    from hardware_profiles.evidence import MemorySeen

SHARED_VARIANCE: Final = 0.5
"""Share of the variance that b has. Of the shipped peaks of Ascend most of it lies between families, of those of other
makers next to none: judgement."""
_POINTS: Final = 1201
_BEYOND: Final = 8.0
"""Standard deviations on both sides of what was seen that a grid covers."""


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """Distribution of x of plans of a family; `same`: what runs of these plans' own configuration said.

    shared : values of b [points]. weights : their probabilities [points]. omega : standard deviation of e.
    """

    shared: Floats
    weights: Floats
    omega: float
    same: tuple[MemorySeen, ...]

    def at_most(self, log_ratio: float) -> float:
        """Probability that x stays within log_ratio."""
        exact = [seen.log_ratio for seen in self.same if not seen.at_least]
        least = max((seen.log_ratio for seen in self.same if seen.at_least), default=-math.inf)
        if log_ratio <= least:
            return 0.0
        if exact:  # e is known but for what lies beside the allocator
            return NormalDist(math.fsum(exact) / len(exact), _measured_sigma(len(exact))).cdf(log_ratio)
        log_above = _log_cdf((self.shared - log_ratio) / self.omega)
        if self.same:
            log_above = log_above - _log_cdf((self.shared - least) / self.omega)
        return float(np.clip(1.0 - self.weights @ np.exp(log_above), 0.0, 1.0))

    def quantile(self, probability: float) -> float:
        """The x that is met with this probability at most, by bisection to 1e-9."""
        return _quantile(self, probability)


@lru_cache(maxsize=256)
def _quantile(believed: Belief, probability: float) -> float:
    low, high = (
        float(end) + side * _BEYOND * believed.omega
        for end, side in ((believed.shared[0], -1.0), (believed.shared[-1], 1.0))
    )
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if believed.at_most(middle) < probability else (low, middle)
    return 0.5 * (low + high)


@lru_cache(maxsize=512)
def belief(seen: tuple[MemorySeen, ...], configuration: str, log_sigma: float, peaks: int) -> Belief:
    """What is believed of the plans of one configuration.

    Parameters
    ----------
    seen : of one family on one cluster, at least one. configuration : digest of these plans' own. log_sigma : standard
        deviation of x before anything was seen. peaks : measured peaks that it rests on.

    Notes
    -----
    Where what was seen is farther off than log_sigma says, all spreads grow: `widening` with `peaks` degrees of freedom
    and one square per configuration. Of a censored observation at c standard deviations the expected square counts,
    1 + c h(c), h the hazard of the normal distribution.
    """
    groups: dict[str, list[MemorySeen]] = {}
    for each in seen:
        groups.setdefault(each.configuration, []).append(each)
    squares = [max(_square(each, log_sigma) for each in group) for group in groups.values()]
    scale = widening(peaks, squares)
    tau, omega = scale * log_sigma * math.sqrt(SHARED_VARIANCE), scale * log_sigma * math.sqrt(1.0 - SHARED_VARIANCE)
    ratios = [0.0, *(each.log_ratio for each in seen)]
    shared = np.linspace(min(ratios) - _BEYOND * tau, max(ratios) + _BEYOND * tau, _POINTS)
    log_weights = -0.5 * (shared / tau) ** 2
    for group in groups.values():
        log_weights += _log_likelihood(group, shared, omega)
    weights = np.exp(log_weights - log_weights.max())
    return Belief(shared, weights / weights.sum(), omega, tuple(groups.get(configuration, ())))


def _log_likelihood(group: Sequence[MemorySeen], shared: Floats, omega: float) -> Floats:
    """Of what runs of one configuration said, for each b, up to a constant [points]."""
    exact = [each.log_ratio for each in group if not each.at_least]
    if exact:
        sigma = math.hypot(omega, _measured_sigma(len(exact)))
        return np.asarray(-0.5 * ((math.fsum(exact) / len(exact) - shared) / sigma) ** 2)
    least = max(each.log_ratio for each in group)
    return _log_cdf((shared - least) / omega)


def _measured_sigma(runs: int) -> float:
    """Of x where the allocator's peak was measured: what lies beside the allocator."""
    return ASSUMED_BESIDE_ALLOCATOR / math.sqrt(runs)


def _square(seen: MemorySeen, log_sigma: float) -> float:
    """Expected square of what was seen, in variances."""
    if not seen.at_least:
        return seen.log_ratio**2 / (log_sigma**2 + ASSUMED_BESIDE_ALLOCATOR**2)
    at = seen.log_ratio / log_sigma
    log_hazard = -0.5 * at**2 - 0.5 * math.log(2.0 * math.pi) - float(_log_cdf(np.array([-at]))[0])
    return 1.0 + at * math.exp(log_hazard)


def _log_cdf(x: Floats) -> Floats:
    """Logarithm of the normal distribution's cumulative probability; far below, its asymptotic series."""
    plain = -np.maximum(x, -20.0) / math.sqrt(2.0)
    near = np.log(0.5 * np.array(list(map(math.erfc, plain.ravel().tolist())))).reshape(plain.shape)
    far = np.minimum(x, -20.0)
    # Abramowitz and Stegun 26.2.12; at -20 the next term is 15 / x^6 < 3e-7.
    series = -0.5 * far**2 - np.log(-far) - 0.5 * math.log(2.0 * math.pi) + np.log1p(-1.0 / far**2 + 3.0 / far**4)
    return np.asarray(np.where(x < -20.0, series, near))
