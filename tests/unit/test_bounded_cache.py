"""Answers are kept by number and by bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.bounded_cache import kept, kept_each

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def test_new_cases_of_a_subject_are_asked_together_and_once() -> None:
    asked: list[tuple[str, list[int]]] = []

    @kept_each(1)
    def doubled(subject: str, cases: Sequence[int]) -> list[int]:
        asked.append((subject, list(cases)))
        return [2 * case for case in cases]

    assert doubled("a", [3, 1, 3]) == [6, 2, 6]
    assert doubled("a", [1, 4]) == [2, 8]
    assert doubled("b", [1]) == [2]
    assert doubled("a", []) == []
    assert doubled("a", [4]) == [8]
    assert asked == [("a", [3, 1]), ("a", [4]), ("b", [1]), ("a", [4])]
