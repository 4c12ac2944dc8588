"""One run of one claimed search: the same code in a pool process, in a worker and on the command line."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from autodeploy.kit.errors import AutoDeployError, MemoryLimitError, SearchCancelled
from autodeploy.messages import Message
from autodeploy.service.runner.memory_limit import is_out_of_memory, out_of_memory
from autodeploy.service.store.base import now_in
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.service.store.events import PROGRESS, Events
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.runs import fresh_overlay_warning
from autodeploy.service.store.searches import Searches
from autodeploy.specs.resources import iso
from autodeploy.specs.spec import read_spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from autodeploy.search.planner import Planner, Progress
    from autodeploy.service.store.database import Database
    from autodeploy.service.store.queue import Claim
    from autodeploy.specs.planset import PlanSet


# Tells the database how a running search is doing.
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
        self.broke_off = False
        """Whether the last report was not written to its end: the pool may never get its connection back."""
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
        while not self._is_over(TICK_S * (1.0 if ticks < QUICK_TICKS else LATER_TICK)):
            ticks += 1
            try:
                if self.broke_off:
                    self._database.renew()
                self.broke_off = True
                self._write_progress()
                if time.monotonic() - beaten_s >= self._heartbeat_s:
                    beaten_s = time.monotonic()
                    self._beat()
                with self._database.read() as session:
                    if Queue(session).cancel_requested(self._claim):
                        self._stop_wanted.set()
                self.broke_off = False
            except DATABASE_ERRORS as error:
                log.warning("search %s: the database does not answer: %s", self._claim.search_id, error)
            except MemoryError:  # the search has taken all it may, for now or until it fails
                with suppress(MemoryError):
                    log.warning("search %s: no memory to report", self._claim.search_id)

    def _is_over(self, pause_s: float) -> bool:
        """Whether the block ends within a pause, or without memory to wait in at once."""
        try:
            return self._finished.wait(pause_s)
        except MemoryError:
            time.sleep(pause_s)
            return self._finished.is_set()

    def _beat(self) -> None:
        with self._database.write() as session:
            Queue(session).beat(self._claim, now=now_in(session))

    def _write_progress(self) -> None:
        pending = self.take_pending()
        if pending:
            with self._database.write() as session:
                now = now_in(session)
                if Queue(session).beat(self._claim, now=now):
                    Events(session).append(self._claim.search_id, PROGRESS, pending, now=now)


# A result is worth waiting for a database that restarts.
WRITE_ATTEMPTS = 8
FIRST_PAUSE_S = 0.25


def execute(
    database: Database,
    claim: Claim,
    planner: Planner,
    *,
    heartbeat_s: float,
    progress: Callable[[Progress], None] | None = None,
    should_cancel: Callable[[], bool] | None = None,
) -> PlanSet:
    """Plans the claimed search and stores what comes of it.

    progress : called with everything the planner reports, besides the database.
    should_cancel : a second reason to stop, besides a request in the database.

    Raises SearchCancelled when it was stopped before there was a plan; stored as cancelled; MemoryLimitError when it
    needed more memory than it may take; stored as failed; Exception: whatever the planner raised; stored as failed.
    """
    with database.read() as session:
        row = Searches(session).get(claim.search_id)
        assert row is not None, "a claim names a search that is there"
        document, created_at, version = row.spec, iso(row.created_at), row.engine_version

    reporter = Reporter(database, claim, heartbeat_s=heartbeat_s)

    def report(item: Progress) -> None:
        reporter.progress(item)
        if progress is not None:
            progress(item)

    def stop() -> bool:
        return reporter.should_cancel() or (should_cancel is not None and should_cancel())

    try:
        spec = read_spec(document, version)
        with reporter:
            plan_set = planner.plan(
                spec, search_id=claim.search_id, created_at=created_at, progress=report, should_cancel=stop
            )
    except (SearchCancelled, KeyboardInterrupt):
        _end(database, claim, "cancelled", None, reporter)
        raise
    except Exception as error:
        as_memory_error = out_of_memory(error) if is_out_of_memory(error) else error
        message = _failure(as_memory_error, claim)
        _end(database, claim, "failed", message, reporter)
        if as_memory_error is error:
            raise
        raise as_memory_error from None
    warning = fresh_overlay_warning(spec, database.now())
    if warning is not None:
        plan_set = plan_set.model_copy(update={"warnings": (*plan_set.warnings, warning)})
    if not _persist(database, claim, lambda queue: queue.finish(claim, plan_set, now=now_in(queue.session)), reporter):
        log.warning("search %s was taken over by another runner; this result is dropped", claim.search_id)
    return plan_set


def _end(database: Database, claim: Claim, status: str, error: str | None, reporter: Reporter) -> None:
    _persist(database, claim, lambda queue: queue.end(claim, status, error, now=now_in(queue.session)), reporter)


def _failure(error: Exception, claim: Claim) -> str:
    """Error for the user: the program's own errors in their words, of others where the log has their trace."""
    if isinstance(error, MemoryLimitError):
        return f"{error}: {error.hint}"
    own = isinstance(error, AutoDeployError)
    return str(error) if own else Message("jobs.bug_ended_this_search", search=claim.search_id)


def _persist(database: Database, claim: Claim, write: Callable[[Queue], bool], reporter: Reporter) -> bool:
    """The last progress and the end in one transaction; waits for a database that is away for a while."""
    pending = reporter.take_pending()
    if reporter.broke_off:
        database.renew()
    for attempt in range(WRITE_ATTEMPTS):
        try:
            with database.write() as session:
                queue = Queue(session)
                if pending and queue.beat(claim, now=now_in(session)):
                    Events(session).append(claim.search_id, PROGRESS, pending, now=now_in(session))
                return write(queue)
        except DATABASE_ERRORS as error:
            if attempt + 1 == WRITE_ATTEMPTS:
                raise
            log.warning("search %s: its end could not be written yet: %s", claim.search_id, error)
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("the loop returns or raises")
