"""Lengths of responses: the truncated lognormal, histograms, the longest of many, responses of one prompt."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cost_models.response_lengths import (
    Lengths,
    equal_lengths,
    histogram_lengths,
    largest_normal,
    likeness,
    lognormal_lengths,
    survival_of_normal,
)
from tests.support.rollout_events import drawn


def expected_longest(lengths, count):
    return float(lengths.stretch @ -np.expm1(count * np.log1p(-np.minimum(lengths.survival, 1 - 1e-12))))


@pytest.mark.parametrize(
    ("mean", "cv", "longest"),
    [(2500, 0.8, 8192), (3203, 0.8, 4096), (701, 0.8, 1536), (110, 3.0, 8192), (4000, 0.8, 4096), (50, 0.05, 8192)],
)
def test_the_mean_after_the_cut_is_the_given_one(mean, cv, longest):
    lengths = lognormal_lengths(mean, cv, longest)
    assert lengths.mean == pytest.approx(mean, rel=1e-9)
    assert lengths.longest <= longest
    assert lengths.share.sum() == pytest.approx(1.0)
    assert np.all(np.diff(lengths.tokens) > 0)
    assert np.all(lengths.share >= -1e-12)


def _variation(lengths: Lengths) -> float:
    """Standard deviation over mean."""
    mean = float(np.average(lengths.tokens, weights=lengths.share))
    return math.sqrt(float(np.average((lengths.tokens - mean) ** 2, weights=lengths.share))) / mean


def test_far_below_the_cut_it_is_the_lognormal_itself():
    lengths = lognormal_lengths(1000, 0.8, 1e7)
    assert _variation(lengths) == pytest.approx(0.8, rel=0.01)
    sigma = math.sqrt(math.log1p(0.64))
    median = 1000 * math.exp(-(sigma**2) / 2)
    assert np.interp(0.5, np.cumsum(lengths.share), lengths.tokens) == pytest.approx(median, rel=0.03)


@pytest.mark.parametrize(("count", "within"), [(100, 0.06), (1000, 0.10)])
def test_the_longest_of_many_is_near_the_known_approximation(count, within):
    """mean exp(s sqrt(2 ln K) - s^2 / 2) is its first order, which is too large at finite K."""
    sigma = math.sqrt(math.log1p(0.64))
    near = 1000 * math.exp(sigma * float(largest_normal(count)) - sigma**2 / 2)
    found = expected_longest(lognormal_lengths(1000, 0.8, 1e7), count)
    assert found == pytest.approx(near, rel=within)
    assert found < 1000 * math.exp(sigma * math.sqrt(2 * math.log(count)) - sigma**2 / 2)


def test_the_longest_of_many_is_that_of_draws():
    lengths, random = lognormal_lengths(2500, 0.8, 8192), np.random.RandomState(3)
    drawn_longest = [drawn(random, lengths, 64, 1, 0.0).max() for _ in range(400)]
    assert expected_longest(lengths, 64) == pytest.approx(np.mean(drawn_longest), rel=0.02)


def test_a_cut_moves_mass_to_the_greatest_length():
    lengths = lognormal_lengths(3203, 0.8, 4096)
    assert lengths.share[-1] == pytest.approx(0.46, abs=0.02)
    assert _variation(lengths) < 0.4


def test_responses_without_spread_are_equal():
    assert lognormal_lengths(700, 0.0, 2048).tokens.tolist() == [700.0]
    assert lognormal_lengths(2048, 0.8, 2048).tokens.tolist() == [2048.0]
    assert equal_lengths(2048).mean == 2048.0


def test_a_mean_above_the_longest_is_refused():
    with pytest.raises(ValueError, match="a mean of 5000 tokens does not lie between 0 and the longest"):
        lognormal_lengths(5000, 0.8, 4096)


def test_a_histogram_stands_for_itself():
    lengths = histogram_lengths({4000: 1.0, 1000: 3.0, 7: 0.0})
    assert lengths.tokens.tolist() == [1000.0, 4000.0]
    assert lengths.share.tolist() == [0.75, 0.25]
    assert lengths.mean == 1750.0
    assert lengths.mean_square == 0.75 * 1000**2 + 0.25 * 4000**2


@pytest.mark.parametrize("shares", [{}, {100: 0.0}, {0: 1.0}])
def test_a_histogram_without_lengths_is_refused(shares):
    with pytest.raises(ValueError, match="needs a length above 0"):
        histogram_lengths(shares)


def test_one_response_a_prompt_has_nothing_in_common():
    lengths = lognormal_lengths(2500, 0.8, 8192)
    alone, unlike = likeness(lengths, 0.5, 1), likeness(lengths, 0.0, 16)
    for one in (alone, unlike):
        assert one.covariance == 0.0
        assert np.all(one.independent == 1.0)
        assert np.all(one.clustered == 1.0)


def test_moments_of_correlated_responses_are_those_of_draws():
    lengths, random = lognormal_lengths(2500, 0.8, 8192), np.random.RandomState(5)
    each = drawn(random, lengths, 20_000, 8, 0.5).reshape(-1, 8)
    like = likeness(lengths, 0.5, 8)
    assert like.variance == pytest.approx(each.var(), rel=0.02)
    assert like.covariance == pytest.approx(np.cov(each.T)[np.triu_indices(8, 1)].mean(), rel=0.03)
    assert float(like.deviation_of_sum(8, 8)) == pytest.approx(each.sum(axis=1).std(), rel=0.02)
    place = 100
    level = lengths.tokens[place - 1]
    runs = (each > level).sum(axis=1)
    survival = float(lengths.survival[place])
    assert like.clustered[place] == pytest.approx(runs.var() / (8 * survival * (1 - survival)), rel=0.05)
    assert (1 - survival) ** (8 * like.independent[place]) == pytest.approx((runs == 0).mean(), abs=0.01)
    assert float(lengths.stretch @ like.follows) == pytest.approx(1.0)


def test_fully_correlated_responses_are_one():
    lengths = lognormal_lengths(2500, 0.8, 8192)
    like = likeness(lengths, 1.0, 16)
    assert like.covariance == pytest.approx(like.variance, rel=1e-3)
    assert like.independent[60] == pytest.approx(1 / 16, rel=1e-2)


def test_the_largest_of_normal_variables():
    # Harter, "Expected values of normal order statistics", Biometrika 48 (1961).
    assert largest_normal(np.array([1, 2, 10, 100])) == pytest.approx([0.0, 0.56419, 1.53875, 2.50759], abs=1e-3)
    assert float(survival_of_normal(np.array(1.959964))) == pytest.approx(0.025, rel=1e-5)
