"""The processes that take searches from the queue, and when each last looked there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import CursorResult, delete, select, update

from autodeploy.store.service_tables import WorkerRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session


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


class Workers:
    """Repository of processes inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

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
