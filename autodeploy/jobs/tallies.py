"""Plain counters of one process, read by its metrics: searches that ended here, calls that waited for a process."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter

SEARCH_BUCKETS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0)
WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Distribution:
    """How many values were at most each bound, and their sum. Its owner holds a lock."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and how many values lie below it, as Prometheus takes them."""
        counts, below = [], 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            below += count
            counts.append((str(bound), float(below)))
        return counts


class SearchTally:
    """Searches that this process ran: how each ended and how long it took; processes that died of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[str, Distribution] = {}
        self._deaths = 0

    def ended(self, status: str, duration_s: float) -> None:
        """A search ended with that status after so many seconds of running."""
        with self._lock:
            self._ends.setdefault(status, Distribution(SEARCH_BUCKETS_S)).observe(duration_s)

    def died(self) -> None:
        """The process of a search died: the search is tried again or has failed."""
        with self._lock:
            self._deaths += 1

    def deaths(self) -> int:
        """How often a process died."""
        with self._lock:
            return self._deaths

    def durations(self) -> dict[str, tuple[list[tuple[str, float]], float]]:
        """By status: the buckets and the sum of seconds."""
        with self._lock:
            return {status: (each.buckets(), each.total) for status, each in sorted(self._ends.items())}


class CallTally:
    """Calls that a request waited for: how long until they had a process, and how many were refused."""

    REASONS = ("key", "full", "slow", "died")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits = Distribution(WAIT_BUCKETS_S)
        self._refused: Counter[str] = Counter()

    def waited(self, seconds: float) -> None:
        """A call has a process after so long."""
        with self._lock:
            self._waits.observe(seconds)

    def refused(self, reason: str) -> None:
        """A call was not answered: its key has too many, all have, it took too long, its process died."""
        with self._lock:
            self._refused[reason] += 1

    def waits(self) -> tuple[list[tuple[str, float]], float]:
        """The buckets of waiting times and their sum in seconds."""
        with self._lock:
            return self._waits.buckets(), self._waits.total

    def refusals(self) -> dict[str, int]:
        """By reason."""
        with self._lock:
            return {reason: self._refused[reason] for reason in self.REASONS}
