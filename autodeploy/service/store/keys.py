"""The API keys and the sessions of browsers: insert, find by hash, note their use, revoke, end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import CursorResult, and_, delete, func, or_, select, update

from autodeploy.service.store.base import Repository
from autodeploy.service.store.tables import QUEUED, RUNNING, ApiKeyRow, SearchRow, SessionRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement


class Sessions(Repository):
    """Repository of the sessions of browsers."""

    def begin(self, token_hash: str, key_id: str, *, now: datetime) -> None:
        """Inserts a session."""
        self.session.add(SessionRow(token_hash=token_hash, key_id=key_id, created_at=now))
        self.session.flush()

    def key_of(self, token_hash: str, *, since: datetime, now: datetime) -> ApiKeyRow | None:
        """The key of a session that began after that moment, if neither has ended."""
        query = (
            select(ApiKeyRow)
            .join(SessionRow, SessionRow.key_id == ApiKeyRow.id)
            .where(SessionRow.token_hash == token_hash, SessionRow.created_at > since, _is_valid(now))
        )
        return self.session.scalar(query)

    def end(self, token_hash: str) -> None:
        """Forgets a session."""
        self.session.execute(delete(SessionRow).where(SessionRow.token_hash == token_hash))

    def end_all(self, key_id: str) -> int:
        """Forgets all sessions of a key."""
        return self._forget(SessionRow.key_id == key_id)

    def forget_before(self, moment: datetime) -> int:
        """Forgets sessions that began before that moment."""
        return self._forget(SessionRow.created_at < moment)

    def _forget(self, which: ColumnElement[bool]) -> int:
        result = self.session.execute(delete(SessionRow).where(which))
        assert isinstance(result, CursorResult)
        return result.rowcount


class ApiKeys(Repository):
    """Repository of API keys inside one session."""

    def add(self, row: ApiKeyRow) -> None:
        """Inserts a key."""
        self.session.add(row)
        self.session.flush()

    def all(self) -> Sequence[ApiKeyRow]:
        """Every key, the oldest first, revoked ones too."""
        return self.session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.id)).all()

    def get(self, key_id: str) -> ApiKeyRow | None:
        """The key with that id."""
        return self.session.get(ApiKeyRow, key_id)

    def by_hash(self, key_hash: str, *, now: datetime) -> ApiKeyRow | None:
        """The key with that hash, if it is neither revoked nor expired."""
        query = select(ApiKeyRow).where(ApiKeyRow.key_hash == key_hash, _is_valid(now))
        return self.session.scalar(query)

    def revoke(self, key_id: str, *, now: datetime) -> bool:
        """Ends a key for good; False when there is none of that id. Revoking twice keeps the first moment."""
        key = self.get(key_id)
        if key is None:
            return False
        Sessions(self.session).end_all(key_id)
        if key.revoked_at is None:
            key.revoked_at = now
            self.session.flush()
        return True

    def expire(self, key_id: str, at: datetime | None) -> bool:
        """Sets when a key expires, None never; False when there is none of that id."""
        key = self.get(key_id)
        if key is not None:
            key.expires_at = at
            self.session.flush()
        return key is not None

    def used(self, key_id: str, *, now: datetime, unless_since: datetime) -> bool:
        """Notes the use of a key, unless one is noted that late already."""
        result = self.session.execute(
            update(ApiKeyRow)
            .where(ApiKeyRow.id == key_id, or_(ApiKeyRow.last_used_at.is_(None), ApiKeyRow.last_used_at < unless_since))
            .values(last_used_at=now)
            .execution_options(synchronize_session=False)
        )
        assert isinstance(result, CursorResult)
        return result.rowcount == 1

    def lock(self, key_id: str) -> None:
        """Lock on the counts of this key's searches until this transaction ends."""
        self.session.execute(select(ApiKeyRow.id).where(ApiKeyRow.id == key_id).with_for_update())

    def count_unfinished(self, key_id: str) -> int:
        """Number of searches of the key that wait or run."""
        queries = (select(func.count()).where(each, SearchRow.principal == key_id) for each in (QUEUED, RUNNING))
        return sum(self.session.scalar(query) or 0 for query in queries)


def _is_valid(now: datetime) -> ColumnElement[bool]:
    return and_(ApiKeyRow.revoked_at.is_(None), or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > now))
