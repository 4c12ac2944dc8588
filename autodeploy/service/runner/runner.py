"""Interface of every runner of searches."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from autodeploy.service.store.queue_state import SlotRules

if TYPE_CHECKING:
    from autodeploy.kit.settings import Settings
    from autodeploy.service.runner.workers import WorkerHeartbeat
    from autodeploy.service.store.database import Session


# What the settings say of the slots of a queue.
def slot_rules(settings: Settings, *, runs_here: bool = True) -> SlotRules:
    """The rules of a runner's slots, or of a process that runs no searches itself."""
    own = settings.workers if runs_here else 0
    return SlotRules(own=own, max_running=settings.key_running, alive_s=settings.worker_alive_s)


# Plain counters of one process, read by its metrics.
SEARCH_BUCKETS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0)
WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Distribution:
    """Number of values up to each bound, and their sum. Its owner holds a lock."""

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
        """Number of deaths of the process."""
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


class JobRunner(Protocol):
    """Runs queued searches. One contract, whichever machine the work is done on."""

    def start(self) -> None:
        """Takes back what dead runners left and begins to work."""

    def enqueue(self, session: Session, search_id: str) -> None:
        """Makes the search a job in the caller's transaction: both are there, or neither is."""

    def wake(self) -> None:
        """Says that a transaction with a new job is committed."""

    def is_alive(self) -> bool:
        """Whether queued searches will be run."""

    @property
    def tally(self) -> SearchTally:
        """Numbers of searches that this process ran, by their outcome."""

    @property
    def presence(self) -> WorkerHeartbeat | None:
        """Heartbeat of this process in the database; None where it has none."""

    def stop(self) -> None:
        """Stops working and hands running searches back to the queue."""
