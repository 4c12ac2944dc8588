"""Where a search stands in the queue and when it will start, looked up once for all who ask."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autodeploy.store import queue_state
from autodeploy.store.clock import utc_now
from autodeploy.store.queue_forecast import forecast

if TYPE_CHECKING:
    from autodeploy.store.database import Session
    from autodeploy.store.queue_forecast import Start
    from autodeploy.store.queue_state import SlotRules

# A forecast is as good as new for so long, or for as much longer as it took to make.
FRESH_S = 1.0
FRESH_TIMES = 20.0
PACE_FRESH_S = 30.0
MOST_FORECAST = 2000


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a search waits.

    position : 1 is the next; waiting : searches of everybody that wait; slots : that run at the same time; expected_s :
    of the search itself, expected_wait_s : until it starts, both in seconds of this machine and None where unknown.
    """

    position: int
    waiting: int
    slots: int
    expected_s: float | None
    expected_wait_s: float | None


class QueueOutlook:
    """The forecast of one process, kept for a moment: whoever waits asks often."""

    def __init__(self, rules: SlotRules) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._starts: dict[str, Start] = {}
        self._slots = 0
        self._fresh_until_s = float("-inf")
        self._pace = 1.0
        self._pace_until_s = float("-inf")

    def place(self, session: Session, search_id: str, expected_s: float | None) -> QueuePlace | None:
        """Where a queued search stands; None when it waits no longer, or too many do."""
        with self._lock:
            if time.monotonic() > self._fresh_until_s or search_id not in self._starts:
                self._look(session)
            start = self._starts.get(search_id)
            if start is None:
                return None
            return QueuePlace(
                position=start.position,
                waiting=len(self._starts),
                slots=self._slots,
                expected_s=None if expected_s is None else _rounded(self._pace * expected_s),
                expected_wait_s=None if start.wait_s is None else _rounded(start.wait_s),
            )

    def _look(self, session: Session) -> None:
        begun_s, now = time.monotonic(), utc_now()
        if begun_s > self._pace_until_s:
            self._pace, self._pace_until_s = queue_state.pace(session, now=now), begun_s + PACE_FRESH_S
        waiting = queue_state.all_waiting(session, limit=MOST_FORECAST)
        slots = queue_state.slots(session, self._rules, {each.key for each in waiting}, now=now)
        slots = replace(slots, used_s=queue_state.used_s(session, waiting, now=now))
        self._starts = forecast(waiting, slots, now.timestamp(), pace=self._pace)
        self._slots = slots.count
        done_s = time.monotonic()
        self._fresh_until_s = done_s + max(FRESH_S, FRESH_TIMES * (done_s - begun_s))


def _rounded(seconds: float) -> float:
    return round(seconds, 1)
