"""Cache of results, the least recently used given up first: by number, and by the bytes of its arrays.

Parameters
----------
most : answers of a function that are kept [count].
most_bytes : of their arrays together.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

Given = ParamSpec("Given")
Found = TypeVar("Found")
Subject = TypeVar("Subject", bound="Hashable")
Case = TypeVar("Case", bound="Hashable")

MOST_BYTES = 16 * 1024 * 1024
"""Of one function's answers together; the last one is kept however large it is."""


class BoundedCache(Generic[Given, Found]):
    """A function of hashable arguments whose answers, arrays or dataclasses of arrays, are kept."""

    def __init__(self, function: Callable[Given, Found], most: int, most_bytes: int) -> None:
        self._function, self._most, self._most_bytes = function, most, most_bytes
        self._answers: OrderedDict[Hashable, tuple[Found, int]] = OrderedDict()
        self._bytes = 0
        update_wrapper(self, function)

    def __call__(self, *args: Given.args, **none: Given.kwargs) -> Found:
        kept = self._answers.get(args)
        if kept is not None:
            self._answers.move_to_end(args)
            return kept[0]
        answer = self._function(*args, **none)
        size = _bytes_of(answer)
        self._answers[args] = answer, size
        self._bytes += size
        while len(self._answers) > 1 and (len(self._answers) > self._most or self._bytes > self._most_bytes):
            self._bytes -= self._answers.popitem(last=False)[1][1]
        return answer


def kept(most: int, most_bytes: int = MOST_BYTES) -> Callable[[Callable[Given, Found]], BoundedCache[Given, Found]]:
    """Keep at most so many answers of a function, and no more than so many bytes of them."""
    return lambda function: BoundedCache(function, most, most_bytes)


class BoundedCaseCache(Generic[Subject, Case, Found]):
    """A function of a subject and cases, one answer a case: each is asked once, the new ones of a call together."""

    def __init__(self, function: Callable[[Subject, Sequence[Case]], Sequence[Found]], most: int) -> None:
        self._function, self._most = function, most
        self._answers: OrderedDict[Subject, dict[Case, Found]] = OrderedDict()
        update_wrapper(self, function)

    def __call__(self, subject: Subject, cases: Sequence[Case]) -> list[Found]:
        answers = self._answers.setdefault(subject, {})
        self._answers.move_to_end(subject)
        new = list(dict.fromkeys(case for case in cases if case not in answers))
        if new:
            answers.update(zip(new, self._function(subject, new), strict=True))
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)
        return [answers[case] for case in cases]

    def cache_clear(self) -> None:
        """Forget all answers."""
        self._answers.clear()


def kept_each(
    most: int,
) -> Callable[[Callable[[Subject, Sequence[Case]], Sequence[Found]]], BoundedCaseCache[Subject, Case, Found]]:
    """Keep the answers about at most so many subjects."""
    return lambda function: BoundedCaseCache(function, most)


def _bytes_of(answer: Any) -> int:
    if isinstance(answer, np.ndarray):
        return answer.nbytes
    return sum(value.nbytes for field in fields(answer) if isinstance(value := getattr(answer, field.name), np.ndarray))
