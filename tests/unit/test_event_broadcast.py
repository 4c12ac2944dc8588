"""Followers share one look at the database, each hears everything once, and everybody hears the end."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from api.http.event_broadcast import EventBroadcast
from autodeploy.kit.errors import StorageFullError
from autodeploy.service.store.events import Event

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 20, tzinfo=UTC)
PATIENCE_S = 20.0


class Stored:
    """What the service of searches would say; counts how often it is asked."""

    def __init__(self, last: int, *, finished: bool = False) -> None:
        self.last, self.finished = last, finished
        self.looks = 0
        self.broken = False

    def news(self, after: Mapping[str, int]) -> dict[str, tuple[Sequence[Event], bool]]:
        self.looks += 1
        if self.broken:
            raise StorageFullError
        return {search_id: (self._events(seen), self.finished) for search_id, seen in after.items()}

    def _events(self, seen: int) -> list[Event]:
        return [Event(seq, NOW, "status", {}) for seq in range(min(seen, self.last) + 1, self.last + 1)]


def following(stored: Stored) -> tuple[EventBroadcast, threading.Event]:
    stopping = threading.Event()
    return EventBroadcast(stored, stopping), stopping  # type: ignore[arg-type]


async def heard(followed: EventBroadcast, seen: int, search_id: str = "srch_1") -> list[int]:
    """Numbers of all events until there are no more."""
    numbers: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        with followed.follow(search_id, seen) as follower:
            while not follower.is_over:
                numbers += [event.seq for event in await follower.news(1.0)]
    return numbers


async def test_a_hundred_followers_cost_no_more_looks_than_one():
    stored = Stored(3)
    followed, _ = following(stored)
    tasks = [asyncio.create_task(heard(followed, seen % 3, f"srch_{seen % 7}")) for seen in range(100)]
    await asyncio.sleep(0.5)
    assert 1 <= stored.looks <= 20
    stored.last, stored.finished = 5, True
    found = await asyncio.gather(*tasks)
    assert found == [list(range(seen % 3 + 1, 6)) for seen in range(100)]


async def test_who_comes_after_the_end_is_told_so_at_once():
    stored = Stored(4, finished=True)
    followed, _ = following(stored)
    assert await heard(followed, 4) == []
    assert await heard(followed, 2) == [3, 4]


async def test_who_only_waits_for_the_end_hears_no_events():
    stored = Stored(4)
    followed, _ = following(stored)
    with followed.follow("srch_1") as follower:
        assert list(await follower.news(0.3)) == []
        assert not follower.is_over
        stored.finished = True
        async with asyncio.timeout(PATIENCE_S):
            assert list(await follower.news(PATIENCE_S)) == []
        assert follower.is_over


async def test_nobody_is_asked_when_nobody_follows():
    stored = Stored(1, finished=True)
    followed, _ = following(stored)
    await heard(followed, 0)
    await asyncio.sleep(0.4)
    looks = stored.looks
    await asyncio.sleep(0.4)
    assert stored.looks == looks


async def test_a_database_that_is_away_for_a_while_loses_nothing():
    stored = Stored(1)
    followed, _ = following(stored)
    stored.broken = True
    task = asyncio.create_task(heard(followed, 0))
    await asyncio.sleep(0.4)
    assert stored.looks > 1
    stored.broken, stored.last, stored.finished = False, 2, True
    assert await task == [1, 2]


async def test_everybody_goes_when_the_server_stops():
    stored = Stored(1)
    followed, stopping = following(stored)
    task = asyncio.create_task(heard(followed, 0))
    await asyncio.sleep(0.3)
    stopping.set()
    assert await task == [1]
