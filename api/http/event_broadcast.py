"""News of searches: one look at the database for everybody who waits for news in this process."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from autodeploy.service.store.database import DATABASE_ERRORS

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from fastapi import Request

    from autodeploy.service.searches.service import SearchService
    from autodeploy.service.store.events import Event

LOOK_S = 0.1
# While nothing happens the looks get rarer, up to this.
IDLE_LOOK_S = 0.25
ONLY_THE_END = 2**31

log = logging.getLogger(__name__)


class Follower:
    """Somebody who follows one search from event number `seen` on."""

    def __init__(self, search_id: str, seen: int) -> None:
        self.search_id = search_id
        self.seen = seen
        # Nothing more will come: the search is finished or deleted, or the server stops.
        self.is_over = False
        self._events: list[Event] = []
        self._news = asyncio.Event()

    async def news(self, limit_s: float) -> Sequence[Event]:
        """The next events; none when the time is over, or nothing more will come."""
        try:
            async with asyncio.timeout(limit_s):
                await self._news.wait()
        except TimeoutError:
            return ()
        self._news.clear()
        events, self._events = self._events, []
        return events

    def tell(self, events: Sequence[Event], *, is_over: bool) -> None:
        """Hands over what is new to this follower."""
        new = [event for event in events if event.seq > self.seen]
        self._events += new
        self.seen = max([self.seen, *(event.seq for event in new)])
        self.is_over = is_over and not new
        if new or is_over:
            self._news.set()


class EventBroadcast:
    """Looks for all followers at once, in a thread of its own, as long as there are any."""

    def __init__(self, searches: SearchService, stopping: threading.Event) -> None:
        self._searches = searches
        self._stopping = stopping
        self._followers: set[Follower] = set()
        self._task: asyncio.Task[None] | None = None
        self._somebody_new = asyncio.Event()

    @contextmanager
    def follow(self, search_id: str, seen: int = ONLY_THE_END) -> Iterator[Follower]:
        """A follower while the block runs; by default one that only wants to know that the search is finished."""
        follower = Follower(search_id, seen)
        self._followers.add(follower)
        if self._task is None or self._task.done():
            self._somebody_new = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._look_on())
        self._somebody_new.set()
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    async def _look_on(self) -> None:
        limiter = anyio.CapacityLimiter(1)  # never behind other requests
        pause_s = LOOK_S
        while self._followers and not self._stopping.is_set():
            started_s = time.monotonic()
            self._somebody_new.clear()
            try:
                news = await anyio.to_thread.run_sync(self._searches.news, self._wanted(), limiter=limiter)
            except DATABASE_ERRORS as error:
                log.warning("the database does not answer: %s", error)
                news = {}
            heard = [self._tell(follower, news) for follower in tuple(self._followers)]
            pause_s = LOOK_S if any(heard) else min(1.2 * pause_s, IDLE_LOOK_S)
            # A look that takes long is followed by a long pause: followers never take more than half the time.
            await self._pause(max(pause_s, time.monotonic() - started_s))
        for follower in tuple(self._followers):
            follower.tell((), is_over=True)

    def _wanted(self) -> dict[str, int]:
        """The searches, and for each the event after which somebody wants news."""
        wanted: dict[str, int] = {}
        for follower in self._followers:
            wanted[follower.search_id] = min(follower.seen, wanted.get(follower.search_id, ONLY_THE_END))
        return wanted

    def _tell(self, follower: Follower, news: dict[str, tuple[Sequence[Event], bool]]) -> bool:
        if follower.search_id not in news:
            return False
        events, is_over = news[follower.search_id]
        follower.tell(events, is_over=is_over)
        return bool(events)

    async def _pause(self, pause_s: float) -> None:
        """Until the time is over; shorter when somebody comes, who would otherwise wait for an answer that is there."""
        await asyncio.sleep(LOOK_S / 4)
        try:
            async with asyncio.timeout(max(0.0, pause_s - LOOK_S / 4)):
                await self._somebody_new.wait()
        except TimeoutError:
            pass


def broadcast_of(request: Request) -> EventBroadcast:
    """That of the app that the request came to."""
    following: EventBroadcast = request.app.state.broadcast
    return following
