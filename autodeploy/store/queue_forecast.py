"""When each search that waits will be started: the order of the queue, played through."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autodeploy.store.fair_order import SHORT_S, Running, Slots, Waiting, next_search

if TYPE_CHECKING:
    from collections.abc import Iterable

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
