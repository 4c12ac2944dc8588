"""Unevenness of the ranks of an expert group: one family of loads behind a stated factor, in closed form.

The logarithm of an expert's load has a persistent part, which is the same in every micro batch, and a part of the
documents that the group has at hand, which averages over them. On top, a rank receives a finite number of tokens. A
rank's load is the sum over its experts; imbalance is the expected maximum over the ranks against the mean. A stated
factor fixes the deviation, at the expert parallelism that it was stated for; other groups follow.

Sources: that what persists does not shrink with the group: Ma et al., arXiv:2605.20982 (per-expert max / mean of five
routers changes by at most 5 % from 4 to 32 ranks); that the rest falls with the tokens looked at: Wang et al.,
arXiv:2408.15664, section 5 (balance against the computation batch); Qiu et al., arXiv:2501.11873.

Parameters
----------
family : the `SkewFamily` of a layer.
of_a_sequence : variance of one sequence's loads, relative.
noise : multinomial noise that counts [fraction].
scale : of what is above the mean [ratio].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from cost_models.arrays import Floats, Number


# The group that a factor without further words is stated for: TP x CP of 8, micro batch 1, as in the published runs of
# Pangu Ultra MoE (TP8 EP32) that the default factor is of.
REFERENCE_SPLIT = 8
MOST_VARIANCE = 4.0  # of the logarithm of a load: one of 256 experts has a seventh of all tokens
HALVINGS = 60
STEP = 1.0 / 16.0  # the sum over even steps of what is as smooth as this is exact to rounding
NORMAL = np.arange(-12.0, 14.0 + STEP / 2, STEP)  # values of a standard normal variable
LEAST_SKEW = 1e-6


def _log_cdf(z: float) -> float:
    """Of a standard normal variable; the upper tail by symmetry, where log1p keeps what 1 - x would lose."""
    tail = 0.5 * math.erfc(abs(z) / math.sqrt(2.0))
    return math.log(tail) if z < 0.0 else math.log1p(-tail)


LOG_CDF = np.array([_log_cdf(z) for z in NORMAL.tolist()])
LOG_DENSITY = -NORMAL * NORMAL / 2.0 + math.log(STEP / math.sqrt(2.0 * math.pi))


@dataclass(frozen=True, slots=True)
class SkewFamily:
    """Loads of the experts of a layer, stated by the factor of one group.

    experts : of a layer. value, at_ranks : max / mean over so many ranks. copies : of tokens that a rank of the
        reference group receives in a micro batch, in the mean [rows].
    persistent : share of the logarithm's variance that is the same in every micro batch, in the reference group
        [fraction].
    groups : of which every token takes equally many experts (1: any); whole groups are even.
    """

    experts: int
    value: float
    at_ranks: int
    copies: float
    persistent: float
    groups: int = 1

    @property
    def anchor(self) -> int:
        """Ranks that the factor is of: not more than there are experts."""
        return min(self.at_ranks, self.experts)

    @property
    def sequences(self) -> float:
        """Of the micro batch of the reference group."""
        return max(1.0, self.at_ranks / REFERENCE_SPLIT)


@dataclass(frozen=True, slots=True)
class Spread:
    """Variances behind a family: of the logarithm, persistent; of a sequence's loads, relative; how much of the
    multinomial noise counts (less than 1 where a factor leaves room for less). scale : of what is above the mean,
    where no variance in reach has the factor.
    """

    persistent: float
    of_a_sequence: float
    noise: float
    scale: float = 1.0


def family_imbalance(
    family: SkewFamily, ranks: Number, sequences: Number, copies: Number, layers: Number = 1.0
) -> Floats:
    """Expected expert load imbalance, max / mean over the ranks of a group [n], between 1 and the number of ranks.

    Parameters
    ----------
    ranks : of the group. sequences : in the group's micro batch, of which the documents average.
    copies : of tokens that a rank receives in a micro batch, in the mean [rows].
    layers : whose loads add up on a rank; their experts differ, so that all but the persistent part averages.
    """
    return _of_spread(spread_of(family), family.experts, family.groups, ranks, sequences, copies, layers)


def deviations(family: SkewFamily, ranks: int, sequences: float, copies: float) -> tuple[float, float]:
    """Standard deviations of the logarithm of an expert's load: of what every micro batch has, and of the rest."""
    spread = spread_of(family)
    noise = spread.noise * family.experts / ranks / copies
    passing = math.log1p(spread.of_a_sequence / sequences) + math.log1p(noise)
    return math.sqrt(spread.persistent), math.sqrt(passing)


@lru_cache(maxsize=256)
def spread_of(family: SkewFamily) -> Spread:
    """The variances with which the family has its factor in its reference group."""
    if family.value <= 1.0:
        return Spread(0.0, 0.0, 0.0)

    def spread(variance: float, noise: float = 1.0) -> Spread:
        passing = math.expm1((1.0 - family.persistent) * variance)
        return Spread(family.persistent * variance, passing * family.sequences, noise)

    # A factor stated for ranks that groups keep even says how uneven experts would be without them.
    groups = family.groups if family.anchor > family.groups else 1

    def above(candidate: Spread) -> float:
        imbalance = _of_spread(candidate, family.experts, groups, family.anchor, family.sequences, family.copies, 1.0)
        return float(imbalance) - family.value

    if above(spread(0.0)) >= 0.0:
        return spread(0.0, _crossing(lambda noise: above(spread(0.0, noise)), 1.0))
    of_family = spread(_crossing(lambda variance: above(spread(variance)), MOST_VARIANCE))
    missing = -above(of_family)
    if missing <= 1e-9 * family.value:
        return of_family
    reached = family.value - missing
    if reached <= 1.0:  # a single rank, which nothing makes uneven
        return Spread(0.0, 0.0, 0.0)
    return replace(of_family, scale=(family.value - 1.0) / (reached - 1.0))


def _crossing(value: Callable[[float], float], most: float) -> float:
    """Zero of a growing function between 0 and `most`; the upper end where there is none."""
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if value(middle) < 0.0:
            low = middle
        else:
            high = middle
    return high


def _of_spread(
    spread: Spread, experts: int, groups: int, ranks: Number, sequences: Number, copies: Number, layers: Number
) -> Floats:
    """Max / mean over ranks [n].

    A rank's load has the first three central moments of E / EP loads, each a lognormal variable times a mean of
    lognormal ones, and of a Poisson count; it is taken as lognormal, shifted.
    """
    ranks = np.asarray(ranks, dtype=np.float64)
    own, layers = np.maximum(experts / ranks, 1.0), np.asarray(layers, dtype=np.float64)
    lasting = math.expm1(spread.persistent)
    # The mean over documents and layers; of a lognormal variable of mean 1 the third moment is v^2 (v + 3).
    number = np.asarray(sequences, dtype=np.float64) * layers
    passing, third_passing = spread.of_a_sequence / number, _third_moment(spread.of_a_sequence) / number**2
    # Of the product of both.
    load = lasting + passing + lasting * passing
    third_load = (
        _third_moment(lasting) * (1.0 + 3.0 * passing + third_passing)
        + 3.0 * lasting * (2.0 * passing + third_passing)
        + third_passing
    )
    noise = spread.noise / (np.asarray(copies, dtype=np.float64) * layers)
    variance = load / own + noise
    third = third_load / own**2 + 3.0 * load / own * noise + noise**2
    within = np.maximum(0.0, 1.0 - groups / ranks) if groups > 1 else 1.0
    variance, third = variance * within, third * within
    uneven = (ranks > 1.0) & (variance > 0.0)
    deviation = np.sqrt(np.where(uneven, variance, 1.0))
    skew = np.where(uneven, third, 0.0) / deviation**3
    expected = 1.0 + spread.scale * deviation * _expected_maximum(ranks, skew)
    return np.asarray(np.where(uneven, np.clip(expected, 1.0, ranks), 1.0))


def _third_moment(variance: float) -> float:
    """Third central moment of a lognormal variable of mean 1."""
    return variance**2 * (variance + 3.0)


def _expected_maximum(number: Floats, skew: Floats) -> Floats:
    """Expected maximum of so many independent variables of mean 0, variance 1 and this skewness [n].

    Each is (Y - 1) / sqrt(w - 1), Y lognormal with mean 1 and variance w - 1: skewness (w + 2) sqrt(w - 1). The
    largest of n normal variables has the density n f F^(n - 1).
    """
    number, skew = np.broadcast_arrays(number, np.maximum(skew, LEAST_SKEW))
    shape, number, skew = number.shape, number.ravel(), skew.ravel()
    half = skew / 2.0
    # Root of the cubic, in the form that loses nothing at small skewness: w - 1 = 4 sinh^2(asinh(skew / 2) / 3).
    excess = 4.0 * np.sinh(np.arcsinh(half) / 3.0) ** 2
    sigma = np.sqrt(np.log1p(excess))
    counts, which = np.unique(number, return_inverse=True)
    weights = np.stack([_density_of_largest(count) for count in counts.tolist()])
    above = np.expm1(sigma[:, None] * NORMAL - sigma[:, None] ** 2 / 2.0)
    maximum = np.einsum("ij,ij->i", weights[which], above) / np.sqrt(excess)
    return np.asarray(maximum.reshape(shape))


@lru_cache(maxsize=256)
def _density_of_largest(number: float) -> Floats:
    """Of so many normal variables at the values of NORMAL, times STEP."""
    return np.asarray(number * np.exp(LOG_DENSITY + (number - 1.0) * LOG_CDF))
