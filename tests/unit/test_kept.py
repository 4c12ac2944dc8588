"""Answers are kept by number and by bytes."""

from __future__ import annotations

import numpy as np

from cost_models.kept import kept


def test_an_answer_is_computed_once_and_the_least_used_is_given_up() -> None:
    asked: list[int] = []

    @kept(2)
    def ones(count: int) -> np.ndarray:
        asked.append(count)
        return np.ones(count)

    for count in (1, 2, 1, 3, 1, 2):
        assert len(ones(count)) == count
    assert asked == [1, 2, 3, 2]


def test_large_answers_are_not_gathered() -> None:
    asked: list[int] = []

    @kept(64, most_bytes=1000)
    def ones(count: int) -> np.ndarray:
        asked.append(count)
        return np.ones(count)

    for count in (500, 500, 501, 500, 10, 11, 10):
        ones(count)
    assert asked == [500, 501, 500, 10, 11]
