"""The error box: every uncertain number that decides between plans, each with a width and what the width rests on.

Numbers that a fit found move together as its covariance says; each other one has a prior of its own
(`calibration/prior_widths.yaml`). What nothing in the spec reads is left out, and so are factors of old releases: plans
run on the current one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from autodeploy.calibration.uncertain_numbers import Uncertain, fitted_numbers, numbers_of_memory, prior_numbers
from autodeploy.costs.steps.scenarios import SHIFTED
from cost_models.arrays import product

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.steps.scenarios import Scenario
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile


# Points that fill a cube evenly, the same on every machine.
def low_discrepancy(count: int, dimensions: int) -> npt.NDArray[np.float64]:
    """The first points of a Kronecker sequence in a unit cube [count, dimensions].

    Notes
    -----
    Coordinate k of point n is what is behind the point of n sqrt(p), p the k-th prime number. Of two hundred points in
    twenty dimensions no two coordinates go along: they correlate by 0.23 at most, those of a Halton sequence by 0.7.

    References
    ----------
    R. D. Richtmyer, The evaluation of definite integrals, Los Alamos report LA-1342, 1951.
    """
    steps = np.array([sqrt(prime) for prime in _primes(dimensions)], dtype=np.float64)
    return np.asarray(np.arange(1, count + 1)[:, None] * steps % 1.0)


@cache
def _primes(count: int) -> tuple[int, ...]:
    """The first prime numbers."""
    primes: list[int] = []
    number = 2
    while len(primes) < count:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    return tuple(primes)


LOW_QUANTILE: Final = 0.1  # quantiles of a number's ends
HIGH_QUANTILE: Final = 0.9
DECIMALS: Final = 6  # of a draw: what all machines agree on
_NORMAL = NormalDist()


@dataclass(frozen=True)
class UncertaintySet:
    """Uncertain numbers of step time with their covariance [numbers, numbers].

    of_memory : numbers that move the peak of memory and no time; they are told, and no draw has them
        (`calibration.spreads.memory_spread` is the spread of a peak).
    """

    numbers: tuple[Uncertain, ...]
    covariance: Floats
    of_memory: tuple[Uncertain, ...] = ()

    def at(self, number: Uncertain, quantile: float) -> Scenario:
        """The world in which one number is at a quantile of its own and the others are as they were."""
        return {number.name: _NORMAL.inv_cdf(quantile) * number.log_sigma}

    def ends(self) -> list[Scenario]:
        """Each number alone at its 10th, then at its 90th percentile: two worlds a number, in their order."""
        return [self.at(number, quantile) for number in self.numbers for quantile in (LOW_QUANTILE, HIGH_QUANTILE)]

    def draws(self, count: int) -> Floats:
        """Joint draws of all numbers, as a world has them [count, numbers], the same on every machine.

        Evenly spread points in ranks, so that each number has all its quantiles once, through the normal distribution,
        without the little correlation that few points have, and through a root of the covariance.
        """
        ranks = low_discrepancy(count, len(self.numbers)).argsort(axis=0).argsort(axis=0)
        quantiles = np.array([_NORMAL.inv_cdf((rank + 0.5) / count) for rank in range(count)], dtype=np.float64)
        plain = quantiles[ranks]
        if count > 2 * len(self.numbers):
            plain = _solved(_root(product(plain.T, plain) / count), plain)
        return np.asarray(np.round(_times(_root(self.covariance), plain), DECIMALS) + 0.0)

    def world(self, draw: Sequence[float] | Floats) -> Scenario:
        """One draw as a world."""
        return {number.name: float(move) for number, move in zip(self.numbers, draw, strict=True)}

    def factors(self, number: Uncertain) -> tuple[float, float]:
        """Factors of a number at its ends; where it is one of `worlds.SHIFTED`, shifts."""
        low, high = (self.at(number, quantile)[number.name] for quantile in (LOW_QUANTILE, HIGH_QUANTILE))
        return (low, high) if SHIFTED.intersection(number.multiplies) else (math.exp(low), math.exp(high))


def uncertainty_set(profile: Profile, context: Context) -> UncertaintySet:
    """All that is uncertain about the step times of a spec, as its context reads it."""
    fitted, covariance = fitted_numbers(profile, context)
    others = prior_numbers(profile, context)
    whole = np.diag([0.0] * len(fitted) + [number.log_sigma**2 for number in others])
    whole[: len(fitted), : len(fitted)] = covariance
    return UncertaintySet((*fitted, *others), whole, numbers_of_memory(profile, context))


def _times(root: Floats, points: Floats) -> Floats:
    """L x of every point [count, numbers], term by term: the same sums on every machine."""
    times = np.zeros_like(points)
    for j in range(len(root)):
        times += points[:, j : j + 1] * root[:, j]
    return times


def _solved(root: Floats, points: Floats) -> Floats:
    """x with L x = point, of every point [count, numbers]."""
    solved = points.copy()
    for j in range(len(root)):
        solved[:, j] /= root[j, j]
        solved[:, j + 1 :] -= solved[:, j : j + 1] * root[j + 1 :, j]
    return solved


def _root(covariance: Floats) -> Floats:
    """Lower triangle L with L L^T the covariance; a direction that rounding left without variance stays out."""
    count = len(covariance)
    root = np.zeros((count, count))
    for i in range(count):
        for j in range(i + 1):
            left = float(covariance[i, j]) - math.fsum(root[i, :j] * root[j, :j])
            if i == j:
                root[i, i] = math.sqrt(max(left, 0.0))
            elif root[j, j] > 0.0:
                root[i, j] = left / root[j, j]
    return root
