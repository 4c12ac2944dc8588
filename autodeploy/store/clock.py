"""Time and identity of stored things."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: sorts as its numbers do
_TIME_DIGITS = 10
_RANDOM_DIGITS = 6
SEARCH_ID_PATTERN = r"^srch_[0-9a-z]{1,40}$"
RUN_ID_PATTERN = r"^run_[0-9a-z]{1,40}$"
BATCH_ID_PATTERN = r"^bat_[0-9a-z]{1,40}$"
AUDIT_ID_PATTERN = r"^aud_[0-9a-z]{1,40}$"
PLAN_ID_PATTERN = r"^p_[0-9a-z]{1,40}$"


def utc_now() -> datetime:
    """Now, in UTC, with its time zone."""
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds: 2026-11-20T12:00:00.000Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
