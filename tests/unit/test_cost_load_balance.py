"""Imbalance of an expert parallel group, from factors and from loads."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.expert_migration import variation_of
from cost_models.load_balance import (
    capped,
    contiguous,
    hot_share,
    imbalance_of,
    loads_of_ranks,
    series_of_factor,
    without_hottest,
)


def test_a_rank_has_the_sum_of_its_experts_loads() -> None:
    loads = np.array([[[1.0, 2.0, 3.0, 6.0]]])
    assert loads_of_ranks(loads, contiguous(1, 4, 2), 2).tolist() == [[[3.0, 9.0]]]
    assert loads_of_ranks(loads, np.array([[0, 1, 1, 0]]), 2).tolist() == [[[7.0, 5.0]]]
    assert imbalance_of(np.array([3.0, 9.0])) == 1.5
    assert variation_of(np.array([3.0, 9.0])) == 0.5


@pytest.mark.parametrize("ranks", [4, 16, 64, 256])
@pytest.mark.parametrize("factor", [1.05, 1.3, 2.0, 3.0])
def test_the_family_behind_a_factor_has_that_imbalance(factor: float, ranks: int) -> None:
    series = series_of_factor(factor, 256, ranks, 0.1, 50)
    found = imbalance_of(loads_of_ranks(series.loads[1:], contiguous(8, 256, ranks), ranks)).mean()
    assert found == pytest.approx(factor, rel=1e-6)
    assert series.steps.tolist() == [0, 50, 100, 150, 200]
    again = series_of_factor(factor, 256, ranks, 0.1, 50)
    assert np.array_equal(series.loads, again.loads)


def test_loads_of_the_family_change_by_the_stated_error() -> None:
    series = series_of_factor(2.0, 256, 32, 0.1, 50)
    assert np.std(np.diff(np.log(series.loads), axis=0)) == pytest.approx(0.1, rel=0.05)


def test_hot_experts_carry_the_largest_loads() -> None:
    loads = np.array([[4.0, 1.0, 3.0, 2.0]])
    assert hot_share(loads, 2).tolist() == [0.7]
    assert hot_share(loads, 0).tolist() == [0.0]
    assert without_hottest(loads, 2).tolist() == [[0.0, 1.0, 0.0, 2.0]]


@pytest.mark.parametrize("hottest", [1, 2, 8, 64])
def test_the_hottest_of_many_experts_are_taken_out(hottest: int) -> None:
    loads = np.random.default_rng(hottest).permutation(np.arange(1.0, 1025.0))[None]
    cold = without_hottest(loads, hottest)
    assert sorted(loads[cold == 0.0].tolist()) == list(range(1025 - hottest, 1025))


def test_capacity_drops_what_lies_above_it() -> None:
    assert capped(np.array([[6.0, 1.0, 1.0, 0.0]]), 1.5).tolist() == [[3.0, 1.0, 1.0, 0.0]]


def test_the_family_of_no_imbalance_is_even() -> None:
    assert (series_of_factor(1.0, 64, 8, 0.1, 50).loads == 1.0).all()
