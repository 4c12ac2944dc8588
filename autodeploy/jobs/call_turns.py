"""Whose call is next: keys take turns, so that one that asks for much waits for itself."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

from autodeploy.errors import LimitError, OverloadError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Thing = TypeVar("Thing")


class CallTurns(Generic[Thing]):
    """Things that one caller uses at a time, and the callers who wait for one.

    Parameters
    ----------
    places : callers that use one or wait, of all keys.
    places_of_key : the same of one key; callers without a key may have all places.
    """

    def __init__(self, things: Sequence[Thing], *, places: int, places_of_key: int) -> None:
        self._idle = list(things)
        self._places = places
        self._places_of_key = places_of_key
        self._changed = threading.Condition()
        self._waiting: dict[int, str] = {}
        self._numbers = count()
        self._using: Counter[str] = Counter()
        self._ended: dict[str, float] = {}

    @contextmanager
    def turn(self, key: str, limit_s: float) -> Iterator[Thing]:
        """One of the things, for the block.

        Raises
        ------
        LimitError
            when the key has all the places that it may have.
        OverloadError
            when nobody may wait any more.
        TimeoutError
            when no turn came within `limit_s` seconds.
        """
        thing = self._wait(key, time.monotonic() + limit_s)
        try:
            yield thing
        finally:
            with self._changed:
                self._using[key] -= 1
                self._ended[key] = time.monotonic()
                self._idle.append(thing)
                self._forget()
                self._changed.notify_all()

    @property
    def in_use(self) -> int:
        """How many are used now."""
        return self._using.total()

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return len(self._waiting)

    def _wait(self, key: str, end_s: float) -> Thing:
        with self._changed:
            self._refuse_too_many(key)
            number = next(self._numbers)
            self._waiting[number] = key
            try:
                while not (self._idle and self._next() == number):
                    left_s = end_s - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError
                    self._changed.wait(left_s)
                self._using[key] += 1
                return self._idle.pop()
            finally:
                del self._waiting[number]
                self._changed.notify_all()  # another one may be next now

    def _refuse_too_many(self, key: str) -> None:
        if self.in_use + self.waiting >= self._places:
            raise OverloadError(
                Message("jobs.too_many_predictions_are_asked_for_at_once"), hint=Message("common.try_again")
            )
        of_key = self._using[key] + sum(other == key for other in self._waiting.values())
        if key and of_key >= self._places_of_key:
            raise LimitError(
                Message("jobs.predictions_of_this_key_wait_or_run_already", count=self._places_of_key),
            )

    def _next(self) -> int:
        """Of the key with the fewest in use, then of the one served longest ago, the one that waits longest."""
        return min(self._waiting, key=lambda number: (*self._rank(self._waiting[number]), number))

    def _rank(self, key: str) -> tuple[int, float]:
        return self._using[key], self._ended.get(key, float("-inf"))

    def _forget(self) -> None:
        """Keys that ask for nothing are as new."""
        asking = set(self._waiting.values()) | {key for key, number in self._using.items() if number}
        if len(self._ended) > 100 * max(1, len(asking)):
            self._ended = {key: moment_s for key, moment_s in self._ended.items() if key in asking}
            self._using = +self._using
