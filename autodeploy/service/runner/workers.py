"""The processes that take searches from the queue, and when each last looked there."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING

from sqlalchemy import CursorResult, delete, select, update

from autodeploy.service.runner.memory_limit import resident_bytes
from autodeploy.service.store.base import Repository, now_in
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.service.store.migration import HEAD_REVISION
from autodeploy.service.store.queue_state import is_current
from autodeploy.service.store.tables import WorkerRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.kit.settings import Settings
    from autodeploy.service.runner.owner import Owner
    from autodeploy.service.store.database import Database


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One process. `slots`: searches that it runs at once, none for a server that sends its searches to workers.

    `rss_bytes` is the memory of the process and of those that it started.
    """

    id: str
    started_at: datetime
    seen_at: datetime
    slots: int
    busy: int
    rss_bytes: int
    engine_version: str


class Workers(Repository):
    """Repository of processes inside one session."""

    def beat(self, worker: WorkerView) -> None:
        """Stores how that process is doing."""
        values = asdict(worker)
        done = self.session.execute(
            update(WorkerRow)
            .where(WorkerRow.id == worker.id)
            .values(**values)
            .execution_options(synchronize_session=False)
        )
        assert isinstance(done, CursorResult)
        if not done.rowcount:
            self.session.add(WorkerRow(**values))
            self.session.flush()

    def live(self, now: datetime, within_s: float) -> list[WorkerView]:
        """Those with slots that looked into the queue in the last `within_s` seconds, or had no slot free for it."""
        seen = WorkerRow.seen_at >= now - timedelta(seconds=within_s)
        rows = self.session.scalars(select(WorkerRow).where(seen, WorkerRow.slots > 0).order_by(WorkerRow.id))
        return [WorkerView(**{name: getattr(row, name) for name in WorkerView.__slots__}) for row in rows]

    def has_live(self, now: datetime, within_s: float) -> bool:
        """Whether anybody takes searches."""
        seen = WorkerRow.seen_at >= now - timedelta(seconds=within_s)
        return self.session.scalar(select(WorkerRow.id).where(seen, WorkerRow.slots > 0).limit(1)) is not None

    def remove(self, worker_id: str) -> None:
        """Forgets a process that ends."""
        self.session.execute(delete(WorkerRow).where(WorkerRow.id == worker_id))

    def prune(self, before: datetime, is_dead: Callable[[str], bool] = lambda worker_id: False) -> None:
        """Forgets processes that were last seen before that moment or are known to be dead."""
        for worker_id, seen_at in self.session.execute(select(WorkerRow.id, WorkerRow.seen_at)).all():
            if seen_at < before or is_dead(worker_id):
                self.remove(worker_id)


# Says in the database that this process is there.
LONGEST_BEAT_S = 5.0
BEATS_OF_A_LIFE = 6
FORGOTTEN_AFTER = timedelta(days=1)

log = logging.getLogger(__name__)


class WorkerHeartbeat:
    """A thread that tells of one process.

    slots : searches that the process runs at once; 0 for a server whose searches run elsewhere.
    busy : how many it runs now.
    looked_s : `time.monotonic()` of its last look into the queue that was answered; None before the first.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        owner: Owner,
        *,
        slots: int = 0,
        busy: Callable[[], int] = lambda: 0,
        looked_s: Callable[[], float | None] = time.monotonic,
    ) -> None:
        self._database = database
        self._alive_s = settings.worker_alive_s
        self._owner = owner
        self._slots = slots
        self._busy = busy
        self._looked_s = looked_s
        self._started_s = time.monotonic()
        self._seen_s: float | None = None
        self.knows_tables = True
        """Whether the database is at this version's revision; at another nothing is claimed."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="presence", daemon=True)

    def start(self) -> None:
        """Begins to tell; the database was asked for something just before, so that the process is seen at once."""
        self._seen_s = time.monotonic()
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Takes the process off the list."""
        self._stopping.set()
        if self._thread.ident is None:
            return
        self._thread.join()
        try:
            with self._database.write() as session:
                Workers(session).remove(str(self._owner))
        except DATABASE_ERRORS as error:
            log.warning("the list of workers was not told of the end: %s", error)

    @property
    def silent_s(self) -> float:
        """Seconds since the last look into the queue that the database also knows of."""
        return time.monotonic() - (self._seen_s if self._seen_s is not None else float("-inf"))

    @property
    def look_age_s(self) -> float:
        """Seconds since a look into the queue was answered, or since the start; also while no slot is free to look."""
        return time.monotonic() - max(self._started_s, self._looked_s() or 0.0)

    @property
    def is_live(self) -> bool:
        """Whether the last look is young enough."""
        return self.silent_s <= self._alive_s

    @property
    def slots(self) -> int:
        """Searches that the process runs at once."""
        return self._slots

    @property
    def busy(self) -> int:
        """Searches that it runs now."""
        return self._busy()

    def _note_revision(self, current: bool) -> None:
        if current != self.knows_tables:
            if current:
                log.warning("the database is at revision %s again: searches are claimed", HEAD_REVISION)
            else:
                log.error("the database is not at revision %s: no search is claimed here", HEAD_REVISION)
        self.knows_tables = current

    def _tell(self) -> None:
        while not self._stopping.wait(min(LONGEST_BEAT_S, self._alive_s / BEATS_OF_A_LIFE)):
            self._beat()

    def _beat(self) -> None:
        """Tells once. A process whose slots are all busy has no reason to look: it counts as seen."""
        now_s, busy = time.monotonic(), self._busy()
        seen_s = max(self._seen_s or now_s, self._looked_s() or 0.0)
        if self._slots and busy >= self._slots:
            seen_s = now_s
        try:
            with self._database.write() as session:
                now = now_in(session)
                row = WorkerView(
                    id=str(self._owner),
                    started_at=now - timedelta(seconds=now_s - self._started_s),
                    seen_at=now - timedelta(seconds=max(0.0, now_s - seen_s)),
                    slots=self._slots,
                    busy=busy,
                    rss_bytes=resident_bytes(),
                    engine_version=version("autodeploy"),
                )
                self._note_revision(is_current(session))
                workers = Workers(session)
                workers.beat(row)
                workers.prune(now - FORGOTTEN_AFTER, self._owner.is_dead)
        except DATABASE_ERRORS as error:
            log.debug("the list of workers was not told: %s", error)
            return
        except Exception:  # a thread that ends would make the process look dead
            log.exception("the list of workers was not told")
            return
        self._seen_s = seen_s
