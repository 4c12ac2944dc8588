"""The queue of a real database, with simulated searches and a simulated clock: who waits how long, without waiting."""

from __future__ import annotations

import heapq
import itertools
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from autodeploy.service.store.base import first_id_at
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.queue_state import SlotRules
from autodeploy.service.store.searches import Searches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autodeploy.service.store.database import Database
    from autodeploy.service.store.tables import SearchRow

BEGIN = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Asked:
    """A search that a key asks for at a moment, s after the beginning, and that takes so long."""

    at_s: float
    key: str
    takes_s: float
    expected_s: float | None = None
    origin: str = "server"


@dataclass(frozen=True, slots=True)
class Started:
    """The same search, and when it was claimed."""

    asked: Asked
    at_s: float

    @property
    def waited_s(self) -> float:
        return self.at_s - self.asked.at_s


def simulate(
    database: Database, asked: Iterable[Asked], *, num_slots: int, new_row: Callable[[str], SearchRow]
) -> list[Started]:
    """Lets all of them arrive, wait and run; in the order in which they were claimed.

    Parameters
    ----------
    new_row : a queued search of that id.
    """
    arrivals = sorted(asked, key=lambda each: each.at_s)
    known: dict[str, Asked] = {}
    ends: list[tuple[float, int, object]] = []
    started: list[Started] = []
    numbers = itertools.count()
    rules = SlotRules(own=num_slots)
    while arrivals or ends:
        now_s = min([each.at_s for each in arrivals[:1]] + [end_s for end_s, *_ in ends[:1]])
        now = BEGIN + timedelta(seconds=now_s)
        with database.write() as session:
            queue = Queue(session)
            while ends and ends[0][0] <= now_s:
                assert queue.end(heapq.heappop(ends)[2], "failed", None, now=now)  # type: ignore[arg-type]
            while arrivals and arrivals[0].at_s <= now_s:
                each = arrivals.pop(0)
                search_id = f"{first_id_at(now)}{len(known):06}"
                known[search_id] = each
                row = new_row(search_id)
                row.created_at, row.principal, row.origin = now, each.key, each.origin
                row.expected_s = each.takes_s if each.expected_s is None else each.expected_s
                Searches(session).add(row)
            while len(ends) < num_slots and (claim := queue.claim_next("simulated", now=now, rules=rules)):
                each = known[claim.search_id]
                started.append(Started(each, now_s))
                heapq.heappush(ends, (now_s + each.takes_s, next(numbers), claim))
    return started


def p95_s(waits_s: Iterable[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(waits_s, n=20, method="inclusive")[-1]
