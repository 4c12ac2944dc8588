"""Callers' idempotency keys: one key makes one search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import CursorResult, delete

from autodeploy.store.tables import IdempotencyRow

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.orm import Session


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
