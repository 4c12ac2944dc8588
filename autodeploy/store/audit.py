"""The audit log: insert, list, forget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select

from autodeploy.store.service_tables import AuditRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries a list names; None does not restrict."""

    key_id: str | None = None
    author: str | None = None
    team: str | None = None
    action: str | None = None
    object_id: str | None = None


class AuditEntries:
    """Repository of the audit log inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def add(self, row: AuditRow) -> None:
        """Inserts an entry."""
        self.session.add(row)
        self.session.flush()

    def page(self, where: AuditFilter, *, limit: int, after: str | None = None) -> Sequence[AuditRow]:
        """Up to `limit` entries, newest first, that come after the entry `after`."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        for name in AuditFilter.__dataclass_fields__:
            wanted = getattr(where, name)
            if wanted is not None:
                query = query.where(getattr(AuditRow, name) == wanted)
        if after is not None:
            query = query.where(AuditRow.id < after)
        return self.session.scalars(query).all()
