"""Who did what: every change that a caller asks for, in the database and as a line of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from autodeploy.service.store.base import new_audit_id, now_in
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.service.store.retention import prune_audit
from autodeploy.service.store.tables import AuditRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy.orm import Session

    from autodeploy.service.callers.access import Principal
    from autodeploy.service.store.database import Database


# The audit log.
# So many of the newest entries are read for a page before an index is searched.
WALKED = 4000


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
        """Up to `limit` entries, newest first, that come after the entry `after`.

        Where the newest do not fill the page, the index that has what the log is filtered by is searched for the rest.
        """
        names = [name for name in AuditFilter.__dataclass_fields__ if getattr(where, name) is not None]
        place = [] if after is None else [AuditRow.id < after]
        newest = select(AuditRow.id).where(*place).order_by(AuditRow.id.desc()).offset(WALKED).limit(1)
        end = self.session.scalar(newest) if names and "object_id" not in names else None
        query = select(AuditRow).where(*place).limit(limit)
        if end is not None:
            # Concatenated, a column is no longer one of an index: that of the ids is walked.
            equal = [getattr(AuditRow, name) + "" == getattr(where, name) for name in names]
            rows = self.session.scalars(query.where(*equal, AuditRow.id >= end).order_by(AuditRow.id.desc())).all()
            if len(rows) == limit:
                return rows
        equal = [getattr(AuditRow, name) == getattr(where, name) for name in names]
        order = AuditRow.id if end is None else AuditRow.id + ""
        ids = select(AuditRow.id).where(*place, *equal).order_by(order.desc()).limit(limit)
        found = self.session.scalars(ids).all()
        return self.session.scalars(select(AuditRow).where(AuditRow.id.in_(found)).order_by(AuditRow.id.desc())).all()


# Where a change comes from that was made at the database's own machine.
COMMAND_LINE = "command line"
EVERYTHING = AuditFilter()
_LENGTHS = {"key_id": 64, "author": 100, "team": 64, "client": 64, "action": 64, "object_id": 200}


def _log() -> Any:
    import structlog  # a tenth of a second, and most commands change nothing

    return structlog.get_logger("audit")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: `status` is the HTTP status it was answered with, 0 on the command line."""

    id: str
    created_at: datetime
    key_id: str
    author: str
    team: str
    client: str
    action: str
    object_id: str
    status: int
    detail: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A piece of the log, newest first. `next_after` continues it."""

    items: tuple[AuditEntry, ...]
    has_more: bool

    @property
    def next_after(self) -> str | None:
        return self.items[-1].id if self.has_more else None


class AuditLog:
    """Writes and lists the log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(
        self,
        principal: Principal,
        *,
        client: str,
        action: str,
        object_id: str,
        status: int = 0,
        author: str = "",
        detail: dict[str, Any] | None = None,
    ) -> None:
        """Notes a change that was made or refused. A database that cannot write leaves the line of the log.

        Parameters
        ----------
        client : address that the request came from.
        author : who, where no key says it.
        """
        said = {
            "key_id": principal.key_id,
            "author": principal.name or author,
            "team": principal.team,
            "client": client,
            "action": action,
            "object_id": object_id,
        }
        said = {name: _storable(text)[: _LENGTHS[name]] for name, text in said.items()}
        _log().info("audit", **said, status=status, **(detail or {}))
        try:
            with self._database.write() as session:
                now = now_in(session)
                AuditEntries(session).add(
                    AuditRow(id=new_audit_id(now), created_at=now, status=status, detail=detail, **said)
                )
        except DATABASE_ERRORS as error:
            _log().error("audit_not_stored", reason=str(error), **said, status=status)

    def list(self, where: AuditFilter = EVERYTHING, *, limit: int = 50, after: str | None = None) -> AuditPage:
        """Entries, newest first; `after` is the id of the last one seen."""
        with self._database.read() as session:
            rows = AuditEntries(session).page(where, limit=limit + 1, after=after)
            names = AuditEntry.__dataclass_fields__
            items = tuple(AuditEntry(**{name: getattr(row, name) for name in names}) for row in rows[:limit])
        return AuditPage(items, has_more=len(rows) > limit)

    def prune(self, *, before: datetime) -> int:
        """Deletes entries from before that moment; says how many."""
        return prune_audit(self._database, before=before)


def _storable(text: str) -> str:
    """The text without what no database keeps and no line of a log should: addresses may hold anything."""
    return "".join(character if character.isprintable() else "?" for character in text)
