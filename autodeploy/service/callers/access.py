"""Who may do what: API keys, made on the command line and sent with every request.

A key is 256 random bits. Only its SHA-256 is stored: with that much chance in a key, a slow hash would add nothing.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

from sqlalchemy import CursorResult, func, or_, select, update

from autodeploy.kit.errors import AccessError, NotFoundError, SpecError, UnknownCallerError
from autodeploy.messages import Message
from autodeploy.service.store.base import new_key_id, utc_now
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.service.store.tables import DEFAULT_TEAM, ApiKeyRow, SearchRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy.orm import Session

    from autodeploy.service.store.database import Database


# The API keys.
UNFINISHED = ("queued", "running")


class ApiKeys:
    """Repository of API keys inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def add(self, row: ApiKeyRow) -> None:
        """Inserts a key."""
        self.session.add(row)
        self.session.flush()

    def all(self) -> Sequence[ApiKeyRow]:
        """Every key, the oldest first, revoked ones too."""
        return self.session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.id)).all()

    def by_hash(self, key_hash: str) -> ApiKeyRow | None:
        """The key with that hash, if it is not revoked."""
        query = select(ApiKeyRow).where(ApiKeyRow.key_hash == key_hash, ApiKeyRow.revoked_at.is_(None))
        return self.session.scalar(query)

    def revoke(self, key_id: str, *, now: datetime) -> bool:
        """Ends a key for good; False when there is none of that id. Revoking twice keeps the first moment."""
        key = self.session.get(ApiKeyRow, key_id)
        if key is None:
            return False
        if key.revoked_at is None:
            key.revoked_at = now
            self.session.flush()
        return True

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
        """Whoever else counts this key's searches waits until this transaction ends."""
        self.session.execute(select(ApiKeyRow.id).where(ApiKeyRow.id == key_id).with_for_update())

    def count_unfinished(self, key_id: str) -> int:
        """How many searches of the key wait or run."""
        query = select(func.count()).where(SearchRow.status.in_(UNFINISHED), SearchRow.principal == key_id)
        return self.session.scalar(query) or 0


Scope = Literal["read", "write", "calibrate", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
KEY = re.compile(r"adk_[A-Za-z0-9_-]{43}")
MAX_NAME_LENGTH = 100
TEAM = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# The use of a key is noted this often at most, so that reading does not become writing.
NOTE_USE_S = 60.0


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. `key_id` is empty where no key is asked for.

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
                Message("services.key_with_scope_may_not_do_this", scope=self.scope),
                hint=Message("services.it_takes_key_with_scope", scope=scope),
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

        Raises
        ------
        AccessError
            when that is another's, and this is no admin.
        """
        own = self.own_team
        if own is not None and team not in {None, own}:
            raise AccessError(
                Message("services.this_key_sees_its_own_team_s_searches"),
                hint=Message("services.it_takes_key_with_scope", scope="admin"),
            )
        return team if own is None else own

    def require_team(self, team: str, missing: NotFoundError) -> None:
        """Raises `missing`, as if there were nothing, unless the caller sees that team."""
        if not self.sees(team):
            raise missing


# Without keys, and on the command line: whoever reaches the database may do anything with it.
ANYONE = Principal()


@dataclass(frozen=True, slots=True)
class KeyView:
    """What is known of a key; never the key."""

    id: str
    name: str
    scope: str
    max_searches: int | None
    max_spec_bytes: int | None
    team: str
    max_running: int | None
    max_time_limit_s: float | None
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class AccessService:
    """Makes, lists, revokes and recognises keys."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted_s: dict[str, float] = {}
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
    ) -> tuple[str, KeyView]:
        """A new key, which nobody can show again, and what is stored of it.

        Parameters
        ----------
        team : whose searches and runs the key sees and, with scope write, changes; one of scope admin sees all.
        max_searches : searches that wait or run at once; None takes AUTODEPLOY_KEY_SEARCHES.
        max_spec_bytes : length of a request's body; None takes AUTODEPLOY_BODY_LIMIT_BYTES, which bounds it too.
        max_running : searches that run at once; None leaves it to the server.
        max_time_limit_s : longest time limit of a search, in seconds; None takes the server's.

        Raises
        ------
        SpecError
            when the name is empty, too long or not printable, or the team is no name of a team.
        """
        if not 1 <= len(name) <= MAX_NAME_LENGTH or not name.isprintable():
            raise SpecError(Message("services.n_1_to_printable_characters", count=MAX_NAME_LENGTH), path="name")
        if TEAM.fullmatch(team) is None:
            raise SpecError(
                Message("services.is_no_name_of_team", text=repr(team[:60])),
                path="team",
                hint=Message("services.n_1_to_64_lower_case_letters_digits_dots"),
            )
        key = "adk_" + secrets.token_urlsafe(32)
        now = utc_now()
        row = ApiKeyRow(
            id=new_key_id(now),
            name=name,
            key_hash=hash_of(key),
            scope=scope,
            team=team,
            max_searches=max_searches,
            max_spec_bytes=max_spec_bytes,
            max_running=max_running,
            max_time_limit_s=max_time_limit_s,
            created_at=now,
        )
        with self._database.write() as session:
            ApiKeys(session).add(row)
            return key, _view(row)

    def list(self) -> tuple[KeyView, ...]:
        """Every key, the oldest first, revoked ones too."""
        with self._database.read() as session:
            return tuple(_view(row) for row in ApiKeys(session).all())

    def revoke(self, key_id: str) -> None:
        """Ends a key at once and for good.

        Raises
        ------
        NotFoundError
            when there is none of that id.
        """
        with self._database.write() as session:
            if not ApiKeys(session).revoke(key_id, now=utc_now()):
                raise NotFoundError(
                    Message("common.there_is_no", what=Message("page.login.key"), name=key_id[:60]),
                    hint="autodeploy keys ls",
                )

    def recognise(self, key: str) -> Principal:
        """Whose key it is; asks the database every time, so that a revoked key ends at once.

        Raises
        ------
        UnknownCallerError
            when it is nobody's.
        """
        row = None
        if KEY.fullmatch(key):
            with self._database.read() as session:
                row = ApiKeys(session).by_hash(hash_of(key))
        if row is None:
            raise UnknownCallerError(
                Message("services.this_api_key_is_not_valid"),
                hint="autodeploy keys create",
            )
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
        now = utc_now()
        try:
            with self._database.write() as session:
                ApiKeys(session).used(key_id, now=now, unless_since=now - timedelta(seconds=NOTE_USE_S))
        except DATABASE_ERRORS:  # a full disk stops writes, not readers
            with self._lock:
                self._noted_s.pop(key_id, None)


def hash_of(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _view(row: ApiKeyRow) -> KeyView:
    return KeyView(**{name: getattr(row, name) for name in KeyView.__dataclass_fields__})
