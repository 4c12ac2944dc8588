"""Searches as callers see them, values without rows: status, place in the queue, expected wait, plans."""

from __future__ import annotations

import heapq
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, GetPydanticSchema
from pydantic_core import core_schema

from autodeploy.service.store import queue_state
from autodeploy.service.store.base import now_in, to_json
from autodeploy.service.store.plan_rows import StoredSearch  # noqa: TC001 - pydantic reads the annotation
from autodeploy.service.store.queue_state import Running, Slots, Waiting, next_search
from autodeploy.service.store.tables import DEFAULT_TEAM, SHORT_S
from autodeploy.specs.planset import FINISHED
from autodeploy.specs.resources import QueueDocument, SearchState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from autodeploy.service.store.database import Session
    from autodeploy.service.store.queue_state import SlotRules
    from autodeploy.specs.planset import Plan, PlanSet


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

    def place(self, session: Session, search_id: str, expected_s: float | None) -> QueueDocument | None:
        """Place of a queued search; None when it waits no longer, or too many do."""
        with self._lock:
            if time.monotonic() > self._fresh_until_s or search_id not in self._starts:
                self._look(session)
            start = self._starts.get(search_id)
            if start is None:
                return None
            return QueueDocument(
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
        slots = replace(slots, used_s=queue_state.used_s(session, waiting, slots.running, now=now))
        self._starts = forecast(waiting, slots, now.timestamp(), pace=self._pace)
        self._slots = slots.count
        done_s = time.monotonic()
        self._fresh_until_s = done_s + max(FRESH_S, FRESH_TIMES * (done_s - begun_s))


def _rounded(seconds: float) -> float:
    return round(seconds, 1)


class SearchView(SearchState):
    """One search: its PlanSet as it is stored, without plans until it is finished, and what is known besides."""

    stored: Annotated[StoredSearch, Field(exclude=True), GetPydanticSchema(lambda *_: core_schema.any_schema())]

    @cached_property
    def plan_set(self) -> PlanSet:
        """Read when it is asked for: whoever only sends it on needs its text."""
        return self.stored.plan_set()

    def text(self) -> str:
        """The document of the search as JSON, put together as text: the PlanSet in it is valid already."""
        more = self.model_dump(mode="json")
        if self.team == DEFAULT_TEAM and not self.author:
            more.pop("team", None)
        return _joined(self.stored.json(), more)

    @property
    def id(self) -> str:
        return self.stored.id

    @property
    def status(self) -> str:
        return self.stored.status

    @property
    def updated_at(self) -> datetime:
        return self.stored.updated_at

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED


def _joined(document: str, more: Mapping[str, Any]) -> str:
    """A JSON object, which has at least one key, with further keys."""
    return f"{document[:-1]},{to_json(more)[1:]}" if more else document


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan and the PlanSet that holds it."""

    plan: Plan
    plan_set: PlanSet
    stale: bool | None = False


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan as JSON text, and the newest search that found it."""

    search_id: str
    plan: str
    stale: bool | None

    def text(self) -> str:
        """The document of the plan as JSON."""
        more = {"search_id": self.search_id, "stale": self.stale}
        return _joined(self.plan, {name: value for name, value in more.items() if value is not False})
