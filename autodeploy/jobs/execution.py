"""One run of one claimed search: the same code in a pool process, in a worker and on the command line."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from autodeploy.errors import AutoDeployError, MemoryLimitError, SearchCancelled
from autodeploy.jobs.memory_limit import is_out_of_memory, out_of_memory
from autodeploy.jobs.reporter import Reporter
from autodeploy.messages import Message
from autodeploy.specs.fresh_overlay import fresh_overlay_warning
from autodeploy.specs.spec import Spec
from autodeploy.store.clock import iso, utc_now
from autodeploy.store.database import DATABASE_ERRORS
from autodeploy.store.events import PROGRESS, Events
from autodeploy.store.queue import Queue
from autodeploy.store.searches import Searches

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.jobs.planning import Planner
    from autodeploy.planner import Progress
    from autodeploy.specs.planset import PlanSet
    from autodeploy.store.database import Database
    from autodeploy.store.queue import Claim

# A result is worth waiting for a database that restarts.
WRITE_ATTEMPTS = 8
FIRST_PAUSE_S = 0.25

log = logging.getLogger(__name__)


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

    Parameters
    ----------
    progress : called with everything the planner reports, besides the database.
    should_cancel : a second reason to stop, besides a request in the database.

    Raises
    ------
    SearchCancelled
        when it was stopped before there was a plan; stored as cancelled.
    MemoryLimitError
        when it needed more memory than it may take; stored as failed.
    Exception
        whatever the planner raised; stored as failed.
    """
    with database.read() as session:
        row = Searches(session).get(claim.search_id)
        assert row is not None, "a claim names a search that is there"
        spec, created_at = Spec.model_validate(row.spec), iso(row.created_at)

    reporter = Reporter(database, claim, heartbeat_s=heartbeat_s)

    def report(item: Progress) -> None:
        reporter.progress(item)
        if progress is not None:
            progress(item)

    def stop() -> bool:
        return reporter.should_cancel() or (should_cancel is not None and should_cancel())

    try:
        with reporter:
            plan_set = planner.plan(
                spec, search_id=claim.search_id, created_at=created_at, progress=report, should_cancel=stop
            )
    except (SearchCancelled, KeyboardInterrupt):
        _persist(database, claim, lambda queue: queue.end(claim, "cancelled", None, now=utc_now()), reporter)
        raise
    except Exception as error:
        as_memory_error = out_of_memory(error) if is_out_of_memory(error) else error
        message = _failure(as_memory_error, claim)
        _persist(database, claim, lambda queue: queue.end(claim, "failed", message, now=utc_now()), reporter)
        if as_memory_error is error:
            raise
        raise as_memory_error from None
    warning = fresh_overlay_warning(spec, utc_now())
    if warning is not None:
        plan_set = plan_set.model_copy(update={"warnings": (*plan_set.warnings, warning)})
    if not _persist(database, claim, lambda queue: queue.finish(claim, plan_set, now=utc_now()), reporter):
        log.warning("search %s was taken over by another runner; this result is dropped", claim.search_id)
    return plan_set


def _failure(error: Exception, claim: Claim) -> str:
    """What the user reads: the program's own errors in their words, of others where the log has their trace."""
    if isinstance(error, MemoryLimitError):
        return f"{error}: {error.hint}"
    own = isinstance(error, AutoDeployError)
    return str(error) if own else Message("jobs.bug_ended_this_search", search=claim.search_id)


def _persist(database: Database, claim: Claim, write: Callable[[Queue], bool], reporter: Reporter) -> bool:
    """The last progress and the end in one transaction; waits for a database that is away for a while."""
    pending = reporter.take_pending()
    for attempt in range(WRITE_ATTEMPTS):
        try:
            with database.write() as session:
                queue = Queue(session)
                if pending and queue.beat(claim, now=utc_now()):
                    Events(session).append(claim.search_id, PROGRESS, pending, now=utc_now())
                return write(queue)
        except DATABASE_ERRORS as error:
            if attempt + 1 == WRITE_ATTEMPTS:
                raise
            log.warning("search %s: its end could not be written yet: %s", claim.search_id, error)
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("the loop returns or raises")
