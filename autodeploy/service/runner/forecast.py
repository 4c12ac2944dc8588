"""Where a search stands in the queue and when it will start, looked up once for all who ask."""

from __future__ import annotations

import heapq
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autodeploy.service.store import queue_state
from autodeploy.service.store.base import now_in
from autodeploy.service.store.fair_order import SHORT_S, Running, Slots, Waiting, next_search

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.service.store.database import Session
    from autodeploy.service.store.queue_state import SlotRules


# When each search that waits will be started.
# What has run for longer than was expected goes on for a share of what it took.
OVERDUE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Start:
    """position : 1 is the next; wait_s : until it starts, None where it can't be said."""

    position: int
    wait_s: float | None


def forecast(waiting: Iterable[Waiting], slots: Slots, now_s: float, *, pace: float = 1.0) -> dict[str, Start]:
    """The start of every search that waits, by its id, if nobody asks for anything else.

    Parameters
    ----------
    waiting : the oldest first.
    pace : seconds that a search takes for each one that was expected.
    """
    lines: dict[tuple[str, bool, int], deque[Waiting]] = defaultdict(deque)
    for each in waiting:
        lines[each.key, each.left_behind, each.length].append(each)
    slots = replace(slots, used_s=dict(slots.used_s))
    ends = [(now_s + _left_s(each, now_s, pace), number, each) for number, each in enumerate(slots.running)]
    heapq.heapify(ends)
    starts: dict[str, Start] = {}
    moment_s = now_s
    while any(lines.values()):
        first = None
        if len(ends) < slots.count:
            first = next_search((line[0] for line in lines.values() if line), slots, moment_s)
        if first is not None:
            lines[first.key, first.left_behind, first.length].popleft()
            starts[first.id] = Start(len(starts) + 1, moment_s - now_s)
            takes_s = pace * _known(first.expected_s)
            run = Running(first.key, moment_s, first.expected_s)
            heapq.heappush(ends, (moment_s + takes_s, len(starts) + len(slots.running), run))
            used_s = {**slots.used_s, first.key: slots.used_s.get(first.key, 0.0) + takes_s}
            slots = replace(slots, running=tuple(each for *_, each in ends), used_s=used_s)
        elif ends:
            moment_s = max(moment_s, ends[0][0])
            heapq.heappop(ends)
            slots = replace(slots, running=tuple(each for *_, each in ends))
        else:
            break
    left = sorted((each for line in lines.values() for each in line), key=lambda each: each.id)
    return starts | {each.id: Start(len(starts) + number, None) for number, each in enumerate(left, 1)}


def _left_s(running: Running, now_s: float, pace: float) -> float:
    took_s = max(0.0, now_s - running.started_s)
    return max(pace * _known(running.expected_s) - took_s, OVERDUE_SHARE * took_s)


def _known(expected_s: float | None) -> float:
    return SHORT_S if expected_s is None else expected_s


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
        begun_s, now = time.monotonic(), now_in(session)
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
