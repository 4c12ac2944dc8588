"""Events of searches, and webhooks as rows: due at the end of their search, tried, delivered or given up.

A search's end makes webhooks due in its own transaction, so none is forgotten. An attempt is taken with one conditional
UPDATE that also postpones the next one, so that two servers never make the same attempt; who dies in the middle of one
leaves a row that is due again later. What is sent may therefore come twice, and never not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import CursorResult, String, bindparam, delete, func, insert, not_, select, update

from autodeploy.service.store.base import Repository, new_delivery_id
from autodeploy.service.store.tables import DeliveryRow, EventRow, IdempotencyRow, SearchRow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime


STATUS = "status"
PROGRESS = "progress"
NEWEST = (
    select(EventRow.search_id, func.max(EventRow.seq))
    .where(EventRow.search_id.in_(bindparam("search_ids", expanding=True)))
    .group_by(EventRow.search_id)
)
_TABLE: Any = EventRow.__table__
_NEXT = insert(_TABLE).from_select(
    ["search_id", "seq", "created_at", "kind", "data"],
    select(
        bindparam("search_id", type_=String),
        func.coalesce(func.max(EventRow.seq), 0) + 1,
        *(bindparam(name, type_=_TABLE.c[name].type) for name in ("created_at", "kind", "data")),
    ).where(EventRow.search_id == bindparam("search_id")),
)
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


class Events(Repository):
    """Repository of events inside one session.

    Appending needs a transaction in which nobody else appends to the same search: any write on SQLite, a locked
    search row on PostgreSQL.
    """

    def begin(self, search_id: str, kind: str, data: dict[str, Any], *, now: datetime) -> None:
        """The first event of a new search."""
        self.session.execute(
            insert(EventRow), [{"search_id": search_id, "seq": 1, "created_at": now, "kind": kind, "data": data}]
        )

    def append(self, search_id: str, kind: str, items: Sequence[dict[str, Any]], *, now: datetime) -> None:
        """Adds events of one kind after the last one."""
        for data in items:
            said = {"search_id": search_id, "created_at": now, "kind": kind, "data": data}
            self.session.execute(_NEXT, said)

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
class IdempotencyKeys(Repository):
    """Repository of keys inside one session."""

    def get(self, principal: str, key: str) -> IdempotencyRow | None:
        """Earlier use of that key by that caller."""
        return self.session.get(IdempotencyRow, (principal, key))

    def add(self, principal: str, key: str, *, body_hash: str, search_id: str, now: datetime) -> None:
        """Notes a key in the transaction that inserts its search.

        Raises sqlalchemy.exc.IntegrityError when another transaction used the key first.
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


MAX_ERROR_LENGTH = 500


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery whose time has come. `attempts` were made before."""

    id: str
    search_id: str
    url: str
    team: str
    attempts: int


class Deliveries(Repository):
    """Repository of webhook deliveries inside one session."""

    def add(self, search_id: str, url: str, *, now: datetime, is_finished: bool) -> str:
        """Asks for a delivery in the transaction that inserts its search; due at once where that is finished."""
        row = DeliveryRow(
            id=new_delivery_id(now),
            search_id=search_id,
            url=url,
            status="due" if is_finished else "waiting",
            created_at=now,
            next_at=now if is_finished else None,
            attempts=0,
        )
        self.session.add(row)
        self.session.flush()
        return row.id

    def search_ended(self, search_id: str, *, now: datetime) -> None:
        """Makes due what waited for that search."""
        self.session.execute(
            update(DeliveryRow)
            .where(DeliveryRow.search_id == search_id, DeliveryRow.status == "waiting")
            .values(status="due", next_at=now)
            .execution_options(synchronize_session=False)
        )

    def of_search(self, search_id: str) -> Sequence[DeliveryRow]:
        """The deliveries of a search, the oldest first."""
        query = select(DeliveryRow).where(DeliveryRow.search_id == search_id).order_by(DeliveryRow.id)
        return self.session.scalars(query).all()

    def next_due(
        self, *, now: datetime, but_origins: Collection[str] = (), but_teams: Collection[str] = ()
    ) -> Due | None:
        """The delivery that is due for longest, but none to these origins (`https://host/`) or of these teams."""
        query = (
            select(DeliveryRow.id, DeliveryRow.search_id, DeliveryRow.url, SearchRow.team, DeliveryRow.attempts)
            .join(SearchRow, SearchRow.id == DeliveryRow.search_id)
            .where(DeliveryRow.status == "due", DeliveryRow.next_at <= now)
            .order_by(DeliveryRow.next_at, DeliveryRow.id)
            .limit(1)
        )
        for origin in but_origins:
            query = query.where(not_(DeliveryRow.url.startswith(origin, autoescape=True)))
        if but_teams:
            query = query.where(SearchRow.team.not_in(but_teams))
        row = self.session.execute(query).one_or_none()
        return None if row is None else Due(*row)

    def claim(self, due: Due, *, now: datetime, until: datetime) -> bool:
        """Takes the next attempt; whoever dies with it leaves the delivery due again at `until`."""
        return self._change(
            due.id, due.attempts, (DeliveryRow.next_at <= now,), attempts=due.attempts + 1, next_at=until
        )

    def delivered(self, due: Due) -> bool:
        """The claimed attempt was answered as it should. False when another one has been made since."""
        return self._change(due.id, due.attempts + 1, status="delivered", next_at=None, last_error=None)

    def postpone(self, due: Due, error: str, *, until: datetime) -> bool:
        """The claimed attempt failed; the next one is at `until`."""
        return self._change(due.id, due.attempts + 1, next_at=until, last_error=error[:MAX_ERROR_LENGTH])

    def give_up(self, due: Due, error: str) -> bool:
        """The claimed attempt failed, and there is no other."""
        return self._change(
            due.id, due.attempts + 1, status="failed", next_at=None, last_error=error[:MAX_ERROR_LENGTH]
        )

    def _change(self, delivery_id: str, made: int, also: Sequence[object] = (), **columns: object) -> bool:
        result = self.session.execute(
            update(DeliveryRow)
            .where(DeliveryRow.id == delivery_id, DeliveryRow.status == "due", DeliveryRow.attempts == made, *also)  # type: ignore[arg-type]
            .values(**columns)
            .execution_options(synchronize_session=False)
        )
        assert isinstance(result, CursorResult)
        return result.rowcount == 1
