"""Tells the database how a running search is doing: heartbeat, progress, and whether it should stop.

A thread does all of it, so that the search never waits for the database.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from autodeploy.store.clock import utc_now
from autodeploy.store.database import DATABASE_ERRORS
from autodeploy.store.events import PROGRESS, Events
from autodeploy.store.queue import Queue

if TYPE_CHECKING:
    from types import TracebackType

    from autodeploy.planner import Progress
    from autodeploy.store.database import Database
    from autodeploy.store.queue import Claim

TICK_S = 0.2
QUICK_TICKS, LATER_TICK = 10, 2.5
"""So many ticks, then longer ones: each costs the search some milliseconds, and a long one changes more slowly."""

log = logging.getLogger(__name__)


class Reporter:
    """Reports one claimed search while the `with` block runs.

    Of progress that comes faster than it is written the latest of each kind is kept.
    """

    def __init__(self, database: Database, claim: Claim, *, heartbeat_s: float) -> None:
        self._database = database
        self._claim = claim
        self._heartbeat_s = heartbeat_s
        self._pending: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._stop_wanted = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"report-{claim.search_id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished.set()
        self._thread.join()

    def progress(self, progress: Progress) -> None:
        """Notes progress; it is written at the next tick."""
        data = dataclasses.asdict(progress)
        with self._lock:
            self._pending.pop(progress.kind, None)
            self._pending[progress.kind] = data

    def should_cancel(self) -> bool:
        """Whether somebody asked to stop the search, or another runner has taken it over."""
        return self._stop_wanted.is_set()

    def take_pending(self) -> list[dict[str, Any]]:
        """Progress that is not written yet, oldest first; the caller writes it."""
        with self._lock:
            pending, self._pending = list(self._pending.values()), {}
        return pending

    def _loop(self) -> None:
        beaten_s, ticks = time.monotonic(), 0
        while not self._finished.wait(TICK_S * (1.0 if ticks < QUICK_TICKS else LATER_TICK)):
            ticks += 1
            try:
                self._write_progress()
                if time.monotonic() - beaten_s >= self._heartbeat_s:
                    beaten_s = time.monotonic()
                    self._beat()
                with self._database.read() as session:
                    if Queue(session).cancel_requested(self._claim):
                        self._stop_wanted.set()
            except DATABASE_ERRORS as error:
                log.warning("search %s: the database does not answer: %s", self._claim.search_id, error)
            except MemoryError:  # the search has taken all it may, for now or until it fails
                log.warning("search %s: no memory to report", self._claim.search_id)

    def _beat(self) -> None:
        with self._database.write() as session:
            Queue(session).beat(self._claim, now=utc_now())

    def _write_progress(self) -> None:
        pending = self.take_pending()
        if pending:
            with self._database.write() as session:
                now = utc_now()
                if Queue(session).beat(self._claim, now=now):
                    Events(session).append(self._claim.search_id, PROGRESS, pending, now=now)
