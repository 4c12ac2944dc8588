"""Which search is next where many keys share a few slots: rules without a database.

Keys take turns: the one with the fewest running searches, then the one that used its slots least of late, so that a key
with a thousand searches waits for itself. Within a key short searches pass long ones, for a while. One slot is kept for
short searches where there are two or more. What the command line left behind comes after what the server was asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHORT_S = 30.0
"""A slot is kept for searches that are expected to take less."""
LENGTHS_S = (1.0, 2.0, 4.0, 8.0, 15.0, SHORT_S, 60.0, 120.0, 240.0, 480.0, 960.0)
"""Searches between two of these count as equally long: an expectation is no better than that."""
WINDOW_S = 300.0
"""How far back the use of slots counts."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued search. `expected_s` is None where nobody said; moments are seconds since 1970."""

    id: str
    key: str
    created_s: float
    expected_s: float | None = None
    left_behind: bool = False

    @property
    def length(self) -> int:
        """The place of its expected time among LENGTHS_S."""
        return length_of(self.expected_s)

    @property
    def is_short(self) -> bool:
        return self.expected_s is not None and self.expected_s < SHORT_S

    @property
    def turn_s(self) -> float:
        """Within a key the least is next: when it came, and what longer ones let shorter ones pass.

        A search is passed only by those that came at most as much later as it is longer, so that none waits for ever.
        """
        return self.created_s + (LENGTHS_S[self.length - 1] if self.length else 0.0)


@dataclass(frozen=True, slots=True)
class Running:
    """A search in a slot since `started_s`."""

    key: str
    started_s: float
    expected_s: float | None = None

    def is_long(self, now_s: float) -> bool:
        """Whether it was expected to be, or has turned out to be."""
        return self.expected_s is None or max(self.expected_s, now_s - self.started_s) >= SHORT_S


@dataclass(frozen=True, slots=True)
class Slots:
    """What the order depends on besides the searches that wait.

    Parameters
    ----------
    count : searches that can run at the same time, over all live workers.
    running : those that do.
    used_s : seconds of slots that each key had within the last WINDOW_S.
    most_running : searches of a key at the same time, where its own entry in `most_of_key` says nothing; None: any.
    """

    count: int
    running: tuple[Running, ...] = ()
    used_s: Mapping[str, float] = field(default_factory=dict)
    most_running: int | None = None
    most_of_key: Mapping[str, int] = field(default_factory=dict)


def length_of(expected_s: float | None) -> int:
    """The place of an expected time among LENGTHS_S; that of SHORT_S where it is not known."""
    return bisect_right(LENGTHS_S, SHORT_S if expected_s is None else expected_s)


def eligible(heads: Iterable[Waiting], slots: Slots, now_s: float) -> tuple[Waiting, ...]:
    """Those that may run in a slot that is free now."""
    heads = tuple(heads)
    asked = tuple(head for head in heads if not head.left_behind)
    running = Counter(each.key for each in slots.running)
    long_ones = sum(each.is_long(now_s) for each in slots.running)
    keep_one = slots.count > 1 and long_ones >= slots.count - 1
    return tuple(
        head
        for head in asked or heads
        if (head.is_short or not keep_one) and not _has_all(head.key, running[head.key], slots)
    )


def _has_all(key: str, running: int, slots: Slots) -> bool:
    most = slots.most_of_key.get(key, slots.most_running)
    return most is not None and running >= most


def tied(heads: Iterable[Waiting], slots: Slots) -> tuple[Waiting, ...]:
    """Of those that may run, the ones whose keys have the fewest running."""
    heads = tuple(heads)
    running = Counter(each.key for each in slots.running)
    fewest = min((running[head.key] for head in heads), default=0)
    return tuple(head for head in heads if running[head.key] == fewest)


def first(heads: Iterable[Waiting], slots: Slots) -> Waiting | None:
    """Of those that are tied, the one whose key used its slots least, then the one whose turn it is."""
    return min(heads, key=lambda head: (slots.used_s.get(head.key, 0.0), head.turn_s, head.id), default=None)


def next_search(heads: Iterable[Waiting], slots: Slots, now_s: float) -> Waiting | None:
    """The search for a slot that is free now; None where none may run there.

    Parameters
    ----------
    heads : all that wait, or of each key the first of each length.
    """
    return first(tied(eligible(heads, slots, now_s), slots), slots)


def used_within(spans: Iterable[tuple[float, float]], now_s: float) -> float:
    """Seconds within the last WINDOW_S of spans (start, end)."""
    return sum(max(0.0, min(end_s, now_s) - max(start_s, now_s - WINDOW_S)) for start_s, end_s in spans)
