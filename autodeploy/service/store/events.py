"""What happened to a search, in order: changes of status and progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import CursorResult, bindparam, delete, func, insert, select

from autodeploy.service.store.tables import EventRow, IdempotencyRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy.orm import Session


STATUS = "status"
PROGRESS = "progress"
NEWEST = (
    select(EventRow.search_id, func.max(EventRow.seq))
    .where(EventRow.search_id.in_(bindparam("search_ids", expanding=True)))
    .group_by(EventRow.search_id)
)
LAST = select(func.max(EventRow.seq)).where(EventRow.search_id == bindparam("search_id"))
AFTER = (
    select(EventRow.seq, EventRow.created_at, EventRow.kind, EventRow.data)
    .where(EventRow.search_id == bindparam("search_id"), EventRow.seq > bindparam("seq"))
    .order_by(EventRow.seq)
    .limit(bindparam("limit"))
)


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `kind` is "status" or "progress"; `seq` counts from 1 within the search."""

    seq: int
    created_at: datetime
    kind: str
    data: dict[str, Any]


class Events:
    """Repository of events inside one session.

    Appending needs a transaction in which nobody else appends to the same search: any write on SQLite, a locked
    search row on PostgreSQL.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def begin(self, search_id: str, kind: str, data: dict[str, Any], *, now: datetime) -> None:
        """The first event of a new search."""
        self.session.execute(
            insert(EventRow), [{"search_id": search_id, "seq": 1, "created_at": now, "kind": kind, "data": data}]
        )

    def append(self, search_id: str, kind: str, items: Sequence[dict[str, Any]], *, now: datetime) -> None:
        """Adds events of one kind after the last one."""
        if not items:
            return
        last = self.session.scalar(LAST, {"search_id": search_id}) or 0
        rows = [
            {"search_id": search_id, "seq": seq, "created_at": now, "kind": kind, "data": data}
            for seq, data in enumerate(items, start=last + 1)
        ]
        self.session.execute(insert(EventRow), rows)

    def newest(self, search_ids: Sequence[str]) -> dict[str, int]:
        """The number of the last event of each of these searches."""
        return {search_id: seq for search_id, seq in self.session.execute(NEWEST, {"search_ids": search_ids})}

    def after(self, search_id: str, seq: int, *, limit: int = 500) -> list[Event]:
        """Up to `limit` events that follow number `seq`."""
        rows = self.session.execute(AFTER, {"search_id": search_id, "seq": seq, "limit": limit})
        return [Event(*row) for row in rows]

    def latest_progress(self, search_id: str) -> dict[str, Any] | None:
        """The data of the newest progress event."""
        query = (
            select(EventRow.data)
            .where(EventRow.search_id == search_id, EventRow.kind == PROGRESS)
            .order_by(EventRow.seq.desc())
            .limit(1)
        )
        return self.session.scalar(query)


# Callers' idempotency keys.
class IdempotencyKeys:
    """Repository of keys inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def get(self, principal: str, key: str) -> IdempotencyRow | None:
        """What that caller did with that key."""
        return self.session.get(IdempotencyRow, (principal, key))

    def add(self, principal: str, key: str, *, body_hash: str, search_id: str, now: datetime) -> None:
        """Notes a key in the transaction that inserts its search.

        Raises
        ------
        sqlalchemy.exc.IntegrityError
            when another transaction used the key first.
        """
        self.session.add(
            IdempotencyRow(principal=principal, key=key, body_hash=body_hash, search_id=search_id, created_at=now)
        )
        self.session.flush()

    def forget_before(self, moment: datetime) -> int:
        """Removes older keys; says how many."""
        result = self.session.execute(delete(IdempotencyRow).where(IdempotencyRow.created_at < moment))
        assert isinstance(result, CursorResult)
        return result.rowcount
