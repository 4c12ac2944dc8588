"""Webhooks as rows: they wait for the end of their search, are due, are tried, and are delivered or given up.

A search's end makes them due in its own transaction, so none is forgotten. An attempt is taken with one conditional
UPDATE that also postpones the next one, so that two servers never make the same attempt; who dies in the middle of one
leaves a row that is due again later. What is sent may therefore come twice, and never not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import CursorResult, not_, select, update

from autodeploy.service.store.base import new_delivery_id
from autodeploy.service.store.tables import DeliveryRow, SearchRow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from sqlalchemy.orm import Session

MAX_ERROR_LENGTH = 500


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery whose time has come. `attempts` were made before."""

    id: str
    search_id: str
    url: str
    team: str
    attempts: int


class Deliveries:
    """Repository of webhook deliveries inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

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
        """What waited for that search is due now."""
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
