"""Callers: keys, teams, sessions and the audit log."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from sqlalchemy import select

from autodeploy.kit.errors import AccessError, NotFoundError, SpecError, UnknownCallerError
from autodeploy.messages import Message
from autodeploy.service.store.base import Repository, new_audit_id, new_key_id, now_in
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.service.store.keys import ApiKeys, Sessions
from autodeploy.service.store.retention import prune_audit
from autodeploy.service.store.tables import DEFAULT_TEAM, ApiKeyRow, AuditRow
from autodeploy.specs.resources import AuditItem, AuditList, KeyDocument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from autodeploy.service.store.database import Database


Scope = Literal["read", "write", "calibrate", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
KEY = re.compile(r"adk_[A-Za-z0-9_-]{43}")
SESSION = re.compile(r"ads_[A-Za-z0-9_-]{43}")
MAX_NAME_LENGTH = 100
TEAM = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# The use of a key is noted this often at most, so that reading does not become writing.
NOTE_USE_S = 60.0


@dataclass(frozen=True, slots=True)
class Principal:
    """Caller of a request. `key_id` is empty where no key is asked for.

    `team`: whose searches and runs the caller sees and changes. `max_searches`, `max_running`: searches that wait or
    run, and that run, at once. `max_time_limit_s`: of one search. None takes the server's setting.
    """

    key_id: str = ""
    name: str = ""
    scope: Scope = "admin"
    max_searches: int | None = None
    max_spec_bytes: int | None = None
    team: str = DEFAULT_TEAM
    max_running: int | None = None
    max_time_limit_s: float | None = None

    def may(self, scope: Scope) -> bool:
        """Whether the scope is within this caller's: each includes those before it."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def require(self, scope: Scope) -> None:
        """Raises AccessError unless the caller has the scope."""
        if not self.may(scope):
            raise AccessError(
                Message("services.scope_forbids", scope=self.scope),
                hint=Message("services.needs_scope", scope=scope),
            )

    @property
    def own_team(self) -> str | None:
        """The one team whose searches and runs the caller sees; None sees all."""
        return None if self.may("admin") else self.team

    def sees(self, team: str) -> bool:
        """Whether what belongs to that team is this caller's to see and, with the scope, to change."""
        return self.own_team in {None, team}

    def team_asked_for(self, team: str | None) -> str | None:
        """The team whose searches or runs a list names; None names all.

        Raises AccessError when that is another's, and this is no admin.
        """
        own = self.own_team
        if own is not None and team not in {None, own}:
            raise AccessError(Message("services.own_team_only"), hint=Message("services.needs_scope", scope="admin"))
        return team if own is None else own

    def require_team(self, team: str, missing: NotFoundError) -> None:
        """Raises `missing`, as if there were nothing, unless the caller sees that team."""
        if not self.sees(team):
            raise missing


# Without keys, and on the command line: whoever reaches the database may do anything with it.
ANYONE = Principal()


class AccessService:
    """Makes, lists, revokes and recognises keys, and the sessions of browsers that logged in with one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted_s: dict[str, float] = {}
        self._known: set[str] = set()  # hashes of keys, so never more than there are
        self._lock = threading.Lock()

    def create(
        self,
        name: str,
        scope: Scope,
        *,
        team: str = DEFAULT_TEAM,
        max_searches: int | None = None,
        max_spec_bytes: int | None = None,
        max_running: int | None = None,
        max_time_limit_s: float | None = None,
        expires_in: timedelta | None = None,
    ) -> tuple[str, KeyDocument]:
        """A new key, which nobody can show again, and what is stored of it.

        team : whose searches and runs the key sees and, with scope write, changes; one of scope admin sees all.
        max_searches : searches that wait or run at once; None takes AUTODEPLOY_KEY_SEARCHES.
        max_spec_bytes : length of a request's body; None takes AUTODEPLOY_BODY_LIMIT_BYTES, which bounds it too.
        max_running : searches that run at once; None leaves it to the server.
        max_time_limit_s : longest time limit of a search, in seconds; None takes the server's.
        expires_in : after so long the key is no longer valid; None: only once it is revoked.

        Raises SpecError when the name is empty, too long or not printable, or the team is no name of a team.
        """
        if not 1 <= len(name) <= MAX_NAME_LENGTH or not name.isprintable():
            raise SpecError(Message("services.printable_characters", count=MAX_NAME_LENGTH), path="name")
        if TEAM.fullmatch(team) is None:
            raise SpecError(
                Message("services.bad_team_name", text=repr(team[:60])),
                path="team",
                hint=Message("services.name_characters"),
            )
        key = "adk_" + secrets.token_urlsafe(32)
        row = ApiKeyRow(
            name=name,
            key_hash=hash_of(key),
            scope=scope,
            team=team,
            max_searches=max_searches,
            max_spec_bytes=max_spec_bytes,
            max_running=max_running,
            max_time_limit_s=max_time_limit_s,
        )
        with self._database.write() as session:
            row.created_at = now_in(session)
            row.expires_at = None if expires_in is None else row.created_at + expires_in
            row.id = new_key_id(row.created_at)
            ApiKeys(session).add(row)
            return key, _document(row, ANYONE)

    def list(self, principal: Principal = ANYONE) -> tuple[KeyDocument, ...]:
        """Every key for scope admin, the oldest first, revoked ones too; else the caller's own."""
        with self._database.read() as session:
            keys = [_document(row, principal) for row in ApiKeys(session).all()]
        return tuple(key for key in keys if principal.own_team is None or key.own)

    def expire(self, key_id: str, after: timedelta | None, by: Principal = ANYONE) -> None:
        """Has a key end so long from now, its sessions with it; None: only once it is revoked. Errors as `revoke`."""
        _require_admin(by, key_id)
        with self._database.write() as session:
            if not ApiKeys(session).expire(key_id, None if after is None else now_in(session) + after):
                raise _no_key(key_id)

    def revoke(self, key_id: str, by: Principal = ANYONE) -> None:
        """Ends a key at once and for good.

        Raises NotFoundError when there is none of that id or, without scope admin, for all but the caller's own, of
        which AccessError is raised.
        """
        _require_admin(by, key_id)
        with self._database.write() as session:
            if not ApiKeys(session).revoke(key_id, now=now_in(session)):
                raise _no_key(key_id)

    def recognise(self, key: str) -> Principal:
        """Principal of a key; asks the database every time, so that a revoked key ends at once.

        Raises UnknownCallerError when it is nobody's.
        """
        row = None
        if KEY.fullmatch(key):
            with self._database.read() as session:
                row = ApiKeys(session).by_hash(hash_of(key), now=now_in(session))
        if row is None:
            with self._lock:
                self._known.discard(hash_of(key))
            raise _not_valid()
        with self._lock:
            self._known.add(row.key_hash)
        return self._principal(row)

    def knows(self, key: str) -> bool:
        """Whether this process recognised that key before."""
        return hash_of(key) in self._known

    def begin_session(self, key: str) -> tuple[str, Principal]:
        """A browser's session of that key: the token that its cookie holds, of which only the hash is stored.

        Raises UnknownCallerError when the key is nobody's.
        """
        principal = self.recognise(key)
        token = "ads_" + secrets.token_urlsafe(32)
        with self._database.write() as session:
            Sessions(session).begin(hash_of(token), principal.key_id, now=now_in(session))
        return token, principal

    def of_session(self, token: str, max_age_s: float) -> Principal:
        """Principal of a session.

        Raises UnknownCallerError when it has ended, is older than that, or its key is revoked or has expired.
        """
        with self._database.read() as session:
            now = now_in(session)
            row = Sessions(session).key_of(hash_of(token), since=now - timedelta(seconds=max_age_s), now=now)
        if row is None:
            raise _not_valid()
        return self._principal(row)

    def end_session(self, token: str) -> None:
        """Ends a session for good."""
        with self._database.write() as session:
            Sessions(session).end(hash_of(token))

    def end_sessions(self, key_id: str) -> int:
        """Ends all sessions of a key, which stays valid; how many there were.

        Raises NotFoundError when there is no key of that id.
        """
        with self._database.write() as session:
            if ApiKeys(session).get(key_id) is None:
                raise _no_key(key_id)
            return Sessions(session).end_all(key_id)

    def _principal(self, row: ApiKeyRow) -> Principal:
        self._note_use(row.id)
        scope: Scope = next(each for each in SCOPES if each == row.scope)
        return Principal(
            key_id=row.id,
            name=row.name,
            scope=scope,
            max_searches=row.max_searches,
            max_spec_bytes=row.max_spec_bytes,
            team=row.team,
            max_running=row.max_running,
            max_time_limit_s=row.max_time_limit_s,
        )

    def _note_use(self, key_id: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._noted_s.get(key_id, float("-inf")) < NOTE_USE_S:
                return
            self._noted_s[key_id] = now_s
        try:
            with self._database.write() as session:
                now = now_in(session)
                ApiKeys(session).used(key_id, now=now, unless_since=now - timedelta(seconds=NOTE_USE_S))
        except DATABASE_ERRORS:  # a full disk stops writes, not readers
            with self._lock:
                self._noted_s.pop(key_id, None)


def _not_valid() -> UnknownCallerError:
    return UnknownCallerError(Message("services.invalid_key"), hint="autodeploy keys create")


def _require_admin(principal: Principal, key_id: str) -> None:
    if not principal.may("admin") and key_id != principal.key_id:
        raise _no_key(key_id)
    principal.require("admin")


def _no_key(key_id: str) -> NotFoundError:
    return NotFoundError(
        Message("common.there_is_no", what=Message("page.login.key"), name=key_id[:60]), hint="autodeploy keys ls"
    )


def hash_of(key: str) -> str:
    """Stored hash of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _document(row: ApiKeyRow, principal: Principal) -> KeyDocument:
    stored = {name: getattr(row, name) for name in KeyDocument.model_fields if name != "own"}
    return KeyDocument(**stored, own=row.id == principal.key_id)


# The audit log.
# So many of the newest entries are read for a page before an index is searched.
WALKED = 4000


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Filter of entries; None does not restrict."""

    key_id: str | None = None
    author: str | None = None
    team: str | None = None
    action: str | None = None
    object_id: str | None = None


class AuditEntries(Repository):
    """Repository of the audit log inside one session."""

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

    def list(self, where: AuditFilter = EVERYTHING, *, limit: int = 50, after: str | None = None) -> AuditList:
        """Entries, newest first; `after` is the id of the last one seen."""
        with self._database.read() as session:
            rows = AuditEntries(session).page(where, limit=limit + 1, after=after)
            items = tuple(AuditItem.model_validate(row) for row in rows[:limit])
        return AuditList(items=items, has_more=len(rows) > limit, next=None)

    def prune(self, *, before: datetime) -> int:
        """Deletes entries from before that moment; says how many."""
        return prune_audit(self._database, before=before)


def _storable(text: str) -> str:
    """The text without what no database keeps and no line of a log should: addresses may hold anything."""
    return "".join(character if character.isprintable() else "?" for character in text)
