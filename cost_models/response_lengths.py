"""Lengths of responses: a few with their shares, and the correlation of responses of one prompt.

A histogram stands for itself, a truncated lognormal by its quantiles, so that nothing is drawn at random and a plan can
be repeated. Everything that `rollout.py` needs of a distribution follows from the shares.

Parameters
----------
z : standard normal variable.
tokens : lengths of responses, ascending.
share, shares : of the responses that have each length [fraction].
responses : of one rank in a step [responses].
count : of normal variables [count].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import product
from cost_models.expert_skew import LOG_CDF, LOG_DENSITY, NORMAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cost_models.arrays import Floats, Number


QUANTILES = 128  # lengths that stand for a lognormal: its largest of 10^5 then is right within a percent
FARTHEST = 6.0  # standard deviations of the logarithm up to which they reach: one response of 10^9 is longer
LEAST_LENGTH = 1.0  # [tokens]
HALVINGS = 80
UNIT = NormalDist()
# Of the survival of a standard normal variable, by whose logarithm values between are read (relative error 2e-6).
FINE = np.linspace(-12.0, 12.0, 24 * 256 + 1)
LOG_SURVIVAL = np.log(np.array([0.5 * math.erfc(z / math.sqrt(2.0)) for z in FINE.tolist()]))
COMMON = np.linspace(-8.0, 8.0, 129)  # what a prompt gives its responses, in standard deviations
COMMON_SHARE = np.exp(-(COMMON**2) / 2.0) / np.exp(-(COMMON**2) / 2.0).sum()
LEAST_SHARE = 1e-300
MOST_CORRELATED = 1.0 - 1e-6  # above it all responses of a prompt are equally long


def survival_of_normal(z: Floats) -> Floats:
    """Probability that a standard normal variable is above z [...]."""
    return np.asarray(np.exp(np.interp(z, FINE, LOG_SURVIVAL)))


@dataclass(frozen=True, eq=False)
class Lengths:
    """Lengths of responses, ascending [Q, tokens], and the share of responses that has each [Q], of sum 1."""

    tokens: Floats
    share: Floats

    @cached_property
    def survival(self) -> Floats:
        """Share of responses that is still running in the stretch that ends at each length [Q]; 1 in the first."""
        after = np.cumsum(self.share[::-1])[::-1] / self.share.sum()
        after[0] = 1.0
        return np.asarray(np.clip(after, 0.0, 1.0))

    @cached_property
    def stretch(self) -> Floats:
        """Tokens between each length and the one before [Q]."""
        return np.diff(self.tokens, prepend=0.0)

    @property
    def mean(self) -> float:
        """Mean length [tokens], to a millionth: whole packs of a batch are counted with it."""
        return round(float(product(self.stretch, self.survival)), 6)

    @property
    def mean_square(self) -> float:
        """Mean of the squared length [tokens^2]."""
        return float(product(self.share / self.share.sum(), self.tokens**2))

    @property
    def longest(self) -> float:
        """The greatest length [tokens]."""
        return float(self.tokens[-1])


def lognormal_lengths(mean: float, cv: float, longest: float) -> Lengths:
    """Lengths of a lognormal distribution that is cut at `longest`, by its mean after the cut.

    Parameters
    ----------
    mean : of the cut lengths, at most `longest` [tokens]. cv : standard deviation over mean before the cut
        [ratio].
    longest : what is longer counts as this: an engine stops there [tokens].

    Notes
    -----
    s = sqrt(ln(1 + cv^2)); E min(X, c) = exp(m + s^2 / 2) F((ln c - m - s^2) / s) + c (1 - F((ln c - m) / s)) grows
    with m and gives it. Lengths lie evenly in the quantiles' z up to the cut; shares between them keep the mean: the
    survival of a stretch is its mean survival, (E min(X, b) - E min(X, a)) / (b - a).

    References
    ----------
    AReaL, arXiv:2505.24298, and StreamRL, arXiv:2504.15930: response lengths are skewed with a long tail that the cap
    cuts. The lognormal is an assumption that fits their reported quantiles.
    """
    if not 0.0 < mean <= longest:
        raise ValueError(f"a mean of {mean:g} tokens does not lie between 0 and the longest response of {longest:g}")
    return _lognormal(float(mean), float(cv), float(longest))


@lru_cache(maxsize=256)
def _lognormal(mean: float, cv: float, longest: float) -> Lengths:
    sigma = math.sqrt(math.log1p(cv * cv))
    if sigma <= 0.0 or mean >= longest:
        return Lengths(np.array([mean]), np.array([1.0]))
    low, high = math.log(mean) - sigma**2, math.log(longest) + (FARTHEST + 4.0) * sigma
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if _cut_mean(middle, sigma, longest) < mean:
            low = middle
        else:
            high = middle
    center = (low + high) / 2.0
    top = min((math.log(longest) - center) / sigma, FARTHEST)
    tokens = np.exp(center + sigma * np.linspace(min(-4.0, top - 1.0), top, QUANTILES))
    tokens[-1] = longest if top < FARTHEST else min(longest, tokens[-1])
    tokens = np.unique(np.maximum(tokens, min(LEAST_LENGTH, mean)))
    up_to = np.array([_cut_mean(center, sigma, length) for length in tokens.tolist()])
    survival = np.minimum(np.diff(up_to, prepend=0.0) / np.diff(tokens, prepend=0.0), 1.0)
    survival = np.minimum.accumulate(survival)
    share = survival - np.append(survival[1:], 0.0)
    share[0] += 1.0 - survival[0]
    lengths = Lengths(tokens, share)
    # What the first stretch and lengths beyond the greatest leave out of the mean, below 1e-4: the others make it up.
    rest = float(product(share[:-1], tokens[:-1]))
    scale = 1.0 + (mean - lengths.mean) / rest if rest > 0.0 else 1.0
    # To a millionth of a token: a last bit, which processors differ in, would move the edge of a pack.
    return Lengths(np.round(np.minimum(np.append(tokens[:-1] * scale, tokens[-1]), longest), 6), share)


def _cut_mean(center: float, sigma: float, cut: float) -> float:
    """E min(X, cut) of a lognormal variable X."""
    z = (math.log(cut) - center) / sigma
    below = math.exp(center + sigma * sigma / 2.0 + math.log(max(UNIT.cdf(z - sigma), 1e-300)))
    return below + cut * 0.5 * math.erfc(z / math.sqrt(2.0))


def histogram_lengths(shares: Mapping[int, float]) -> Lengths:
    """Lengths as they are given: tokens -> share of responses, of any sum above 0."""
    pairs = sorted((float(length), float(share)) for length, share in shares.items() if share > 0.0)
    if not pairs or pairs[0][0] <= 0.0:
        raise ValueError("a histogram of lengths needs a length above 0 with a share above 0")
    tokens, share = np.array(pairs).T
    return Lengths(tokens, np.asarray(share / share.sum()))


def equal_lengths(tokens: float) -> Lengths:
    """All responses equally long: what stands in where a mean is not known."""
    return Lengths(np.array([float(tokens)]), np.array([1.0]))


@dataclass(frozen=True, eq=False)
class Likeness:
    """Correlation of `group_size` responses of one prompt on one rank, by the stretches of `Lengths` [Q].

    variance, covariance : of lengths: of a response, between two of a prompt [tokens^2].
    independent : of the logarithm that all have ended, the part that as many independent responses would have [ratio].
    clustered : variance of the number that still runs against that of independent responses [ratio].
    follows : by how much the share that runs grows with a token more in a rank's mean length [1 / tokens].
    missing : mean tokens that a response has less where all of a prompt have ended by then [tokens].
    """

    variance: float
    covariance: float
    independent: Floats
    clustered: Floats
    follows: Floats
    missing: Floats

    def deviation_of_sum(self, responses: Number, group_size: int) -> Floats:
        """Standard deviation of the tokens of so many responses, `group_size` of each prompt [tokens]."""
        each = self.variance + (group_size - 1) * self.covariance
        return np.sqrt(np.maximum(0.0, np.asarray(responses, dtype=np.float64) * each))


@lru_cache(maxsize=64)
def likeness(lengths: Lengths, correlation: float, group_size: int) -> Likeness:
    """Correlation of the responses of a prompt.

    Parameters
    ----------
    correlation : between the normal quantiles of the lengths of two responses of a prompt, 0 to 1. group_size :
        responses of a prompt on one rank; with one there is nothing to have in common [responses].

    Notes
    -----
    Gaussian copula: the quantile of a response is z = sqrt(c) prompt + sqrt(1 - c) own. Given the prompt, responses are
    independent; moments are sums over the prompt's part.
    """
    running, mean = lengths.survival, lengths.mean
    ended = 1.0 - running
    variance = max(0.0, lengths.mean_square - mean**2)
    # Cov(running at l, length) of one response: E[length, running] - P(running) E[length].
    weight = lengths.share / lengths.share.sum()
    own = np.cumsum((weight * lengths.tokens)[::-1])[::-1] - running * mean
    if group_size <= 1 or correlation <= 0.0 or variance <= 0.0:
        follows = own / variance if variance > 0.0 else np.zeros(len(running))
        missing = np.where(ended > 0.0, own / np.maximum(ended, LEAST_SHARE), 0.0)
        ones = np.ones(len(running))
        return Likeness(variance, 0.0, ones, ones, np.asarray(follows), missing)
    shared = min(correlation, MOST_CORRELATED)
    z = np.array([UNIT.inv_cdf(p) if 1e-15 < p < 1.0 - 1e-15 else math.copysign(9.0, p - 0.5) for p in ended.tolist()])
    above = (z[:, None] - math.sqrt(shared) * COMMON) / math.sqrt(1.0 - shared)
    given = survival_of_normal(np.clip(above, -12.0, 12.0))
    given[0] = 1.0
    means = product(lengths.stretch, given)
    covariance = max(0.0, float(product(COMMON_SHARE, means**2)) - float(product(COMMON_SHARE, means)) ** 2)
    cross = product(given * means, COMMON_SHARE) - product(given, COMMON_SHARE) * float(product(COMMON_SHARE, means))
    pairs = product(given * given, COMMON_SHARE) - product(given, COMMON_SHARE) ** 2
    alone = np.maximum(running * ended, 1e-300)
    clustered = 1.0 + (group_size - 1) * np.clip(pairs / alone, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        others_given = np.exp((group_size - 1) * np.log1p(-np.minimum(given, 1.0 - 1e-12)))
        all_ended = np.maximum(product(others_given * (1.0 - given), COMMON_SHARE), LEAST_SHARE)
        if_alone = group_size * np.log(np.maximum(ended, LEAST_SHARE))
        independent = np.where((ended > 0.0) & (if_alone < 0.0), np.log(all_ended) / if_alone, 1.0)
    # E[length, all of the prompt have ended] of the lengths up to each stretch, given the prompt.
    shares = given - np.vstack([given[1:], np.zeros_like(COMMON)])
    upto = np.vstack([np.zeros_like(COMMON), np.cumsum(shares * lengths.tokens[:, None], axis=0)[:-1]])
    known = product(upto * others_given, COMMON_SHARE) / all_ended
    missing = np.where((ended > 0.0) & (all_ended > LEAST_SHARE), np.maximum(0.0, mean - known), 0.0)
    each = variance + (group_size - 1) * covariance
    follows = (own + (group_size - 1) * cross) / each
    independent = np.clip(independent, 1.0 / group_size, 1.0)
    return Likeness(variance, covariance, independent, clustered, np.asarray(follows), missing)


COUNTS = np.exp2(np.arange(0.0, 24.25, 0.25))
LARGEST = np.array([n * float(product(np.exp(LOG_DENSITY + (n - 1.0) * LOG_CDF), NORMAL)) for n in COUNTS.tolist()])
LARGEST[0] = 0.0


def largest_normal(count: Number) -> Floats:
    """Expected largest of so many independent standard normal variables [...]; 0 of one."""
    return np.asarray(np.interp(np.log2(np.maximum(count, 1.0)), np.log2(COUNTS), LARGEST))
