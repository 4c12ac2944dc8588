"""Recovery of searches whose process is gone: the same for every runner.

`enqueue` is the runner's own: a search that waits again becomes a job again in the same transaction.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from autodeploy.service.runner.memory_limit import HINT
from autodeploy.service.runner.processes import AbortedProcess
from autodeploy.service.store.base import now_in
from autodeploy.service.store.events import IdempotencyKeys
from autodeploy.service.store.queue import Claim, Queue
from autodeploy.service.store.queue_state import is_current

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from concurrent.futures.process import BrokenProcessPool

    from autodeploy.kit.settings import Settings
    from autodeploy.service.runner.owner import Owner
    from autodeploy.service.store.database import Database, Session


IDEMPOTENCY_LIFE = timedelta(days=7)
LONGEST_RECOVERY_PAUSE_S = 10.0
DIED = "the process that ran this search died"
LOST = "the worker that ran this search was lost"
ABORTED = f"memory limit, most likely: the process that ran this search ended itself: {HINT}"

log = logging.getLogger(__name__)


def hand_back(database: Database, claim: Claim, enqueue: Callable[[Session, str], None]) -> None:
    """The runner stops: the search waits again as if it had not been started."""
    with database.write() as session:
        if Queue(session).hand_back(claim, now=now_in(session)) == "queued":
            enqueue(session, claim.search_id)


def retry_or_fail(
    database: Database,
    claim: Claim,
    enqueue: Callable[[Session, str], None],
    *,
    max_attempts: int,
    how: BrokenProcessPool | None = None,
) -> None:
    """The process of the search died: it waits again, or has failed after the last attempt; `how` it died."""
    with database.write() as session:
        if isinstance(how, AbortedProcess):
            Queue(session).lose(claim, max_attempts=1, error=ABORTED, now=now_in(session))
            return
        if Queue(session).lose(claim, max_attempts=max_attempts, error=DIED, now=now_in(session)) == "queued":
            enqueue(session, claim.search_id)


def recover(
    database: Database,
    settings: Settings,
    owner: Owner,
    enqueue: Callable[[Session, str], None],
    held: Collection[Claim] = (),
) -> None:
    """Takes back searches of runners that died, and forgets old idempotency keys.

    An owner of this machine that lives keeps its searches however silent it is; of its own the asker names those it
    runs: `held`. Of other machines the age of the heartbeat tells, by the database's clock.
    """

    def knows_alive(claim: Claim) -> bool | None:
        if claim.owner != str(owner):
            return owner.knows_alive(claim.owner)
        return True if claim in held else None

    with database.write() as session:
        if not is_current(session):
            return
        now = now_in(session)
        lost = Queue(session).recover(
            stalled_before=now - timedelta(seconds=settings.stalled_after_s),
            max_attempts=settings.max_losses,
            error=LOST,
            now=now,
            knows_alive=knows_alive,
        )
        for search_id, status in lost.items():
            if status == "queued":
                enqueue(session, search_id)
        IdempotencyKeys(session).forget_before(now - IDEMPOTENCY_LIFE)
    for search_id in lost:
        log.warning("search %s was left by a runner that died", search_id)


def recovery_pause_s(settings: Settings) -> float:
    """Seconds between two looks for searches of dead runners."""
    return min(LONGEST_RECOVERY_PAUSE_S, settings.stalled_after_s / 3)
