"""The root of all tables, and moments with their time zone."""

from __future__ import annotations

import json
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, DateTime, Double, MetaData, TypeDecorator
from sqlalchemy.orm import DeclarativeBase

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Dialect
    from sqlalchemy.orm import Session


NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def to_json(value: Any) -> str:
    """JSON as every document is stored: Python's shortest floats, no spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment with its time zone, in UTC; SQLite itself keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a stored moment needs a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Root of all tables; every constraint has a name, so that migrations can change it."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {datetime: UtcDateTime, float: Double, dict[str, Any]: JSON(none_as_null=True)}  # noqa: RUF012


class Repository:
    """Rows of one kind inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session


# Time and identity of stored things.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: sorts as its numbers do
_TIME_DIGITS = 10
_RANDOM_DIGITS = 6
SEARCH_ID_PATTERN = r"^srch_[0-9a-z]{1,40}$"
RUN_ID_PATTERN = r"^run_[0-9a-z]{1,40}$"
BATCH_ID_PATTERN = r"^bat_[0-9a-z]{1,40}$"
AUDIT_ID_PATTERN = r"^aud_[0-9a-z]{1,40}$"
PLAN_ID_PATTERN = r"^p_[0-9a-z]{1,40}$"


# So long the counter of a process carries a moment of the server on; clocks part by microseconds meanwhile.
CARRIED_S = 5.0
CLOCK = "clock"


def utc_now() -> datetime:
    """Now by this machine's clock, in UTC; never compared with what another machine wrote."""
    return datetime.fromtimestamp(time.time(), UTC)


class ServerClock:
    """The clock of a database's server, asked for seldom and carried on by this process's counter.

    All that share the database share it, so that no two machines' clocks are ever compared.
    """

    def __init__(self) -> None:
        self._read: tuple[datetime, float] | None = None  # one object: threads see both or neither

    def now(self, ask: Callable[[], datetime]) -> datetime:
        """Now; `ask` reads the server's clock."""
        counted_s = time.monotonic()
        read = self._read
        if read is None or counted_s - read[1] > CARRIED_S:
            moment = ask().astimezone(UTC)
            answered_s = time.monotonic()
            self._read = read = moment, (counted_s + answered_s) / 2
            counted_s = answered_s
        return read[0] + timedelta(seconds=counted_s - read[1])


def now_in(session: Session) -> datetime:
    """Now, as all say it that share the session's database."""
    now: Callable[[Session], datetime] = session.info[CLOCK]
    return now(session)


def new_search_id(moment: datetime) -> str:
    """`srch_` and 16 base 32 digits: milliseconds since 1970, then random bits. Sorts by creation."""
    return first_id_at(moment) + _random()


def new_run_id(moment: datetime) -> str:
    """`run_` and 16 base 32 digits, as a search's."""
    return "run_" + _milliseconds(moment) + _random()


def new_batch_id(moment: datetime) -> str:
    """`bat_` and 16 base 32 digits, as a search's."""
    return "bat_" + _milliseconds(moment) + _random()


def new_delivery_id(moment: datetime) -> str:
    """`whd_` and 16 base 32 digits, as a search's; names a webhook's delivery."""
    return "whd_" + _milliseconds(moment) + _random()


def new_key_id(moment: datetime) -> str:
    """`key_` and 16 base 32 digits, as a search's; names an API key without being one."""
    return "key_" + _milliseconds(moment) + _random()


def new_audit_id(moment: datetime) -> str:
    """`aud_` and 16 base 32 digits, as a search's."""
    return "aud_" + _milliseconds(moment) + _random()


def first_id_at(moment: datetime) -> str:
    """Sorts before every id made at that moment or later, and after every id made a millisecond before."""
    return "srch_" + _milliseconds(moment)


def _milliseconds(moment: datetime) -> str:
    return _base32(max(0, int(moment.timestamp() * 1000)), _TIME_DIGITS)


def _random() -> str:
    return _base32(secrets.randbits(5 * _RANDOM_DIGITS), _RANDOM_DIGITS)


def _base32(number: int, digits: int) -> str:
    return "".join(_ALPHABET[(number >> 5 * place) & 31] for place in reversed(range(digits)))
