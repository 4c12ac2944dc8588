"""The order in which a sweep hands its candidates to the solver, and which of them it takes to fit."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.costs.sweep.sweep import OVERFLOWS, Sweep, after_recompute_s, worst_stages

ROOM = 10.0
PLAIN, LEAN, LEAST = (
    np.array([12.0, 16.0, 20.0, 30.0]),
    np.array([4.0, 8.0, 11.0, 25.0]),
    np.array([3.0, 5.0, 9.0, 11.0]),
)


def order(*, whole: bool) -> np.ndarray:
    """Of four candidates with a step of 5 s: recomputing norms frees 4 bytes for 1 s, whole layers free 12 for 6 s."""
    saved = np.array([[4.0] * 4, [0.0] * 4, [0.0] * 4, [12.0] * 4])
    cost = np.array([[1.0] * 4, [0.0] * 4, [0.0] * 4, [6.0] * 4])
    return after_recompute_s(np.full(4, 5.0), (PLAIN, LEAN, LEAST), np.full(4, ROOM), saved, cost, whole)


def test_enough_is_recomputed_to_fit() -> None:
    # Two bytes of four; six of twelve; a template that overflows; one that no layout brings below the limit.
    assert order(whole=False) == pytest.approx([5.5, 8.0, OVERFLOWS * 10.0, np.inf])
    assert order(whole=True)[0] == pytest.approx(6.0), "a flag holds for every layer"


def test_a_template_that_overflows_does_not_fit_however_short_its_step() -> None:
    none = np.zeros(3)
    swept = Sweep(none, none, none, none, none, order(whole=False)[:3], LEAN[:3] <= ROOM, {})
    assert swept.fastest(3).tolist() == [0, 1, 2]
    assert swept.fastest_s == pytest.approx(5.5)
    assert swept.take(slice(2, 3)).fastest_s is None


def test_the_longest_tail_and_the_most_bytes_may_be_of_different_stages() -> None:
    zero = np.zeros((3, 1))
    stages = (np.array([[1.0], [3.0], [2.0]]), zero, zero, zero + 1.0, zero, np.array([[9.0], [1.0], [1.0]]), zero)
    rates = tuple(np.array([rate]) for rate in (0.5, 0.0, 0.25, 0.0, 2.0, 0.0))
    assert worst_stages(stages, rates)[:, 0].tolist() == [3.75, 3.0, 0.5, 0.25, 0.0, 11.0, 2.0]
