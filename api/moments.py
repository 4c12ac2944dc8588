"""Moments in queries: RFC 3339 with a time zone, and nothing else that could be read as one."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator

from autodeploy.messages import Message

_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[-+][0-9]{2}:[0-9]{2})", re.ASCII
)
LAST_YEAR = 9998  # what comes after a moment is still one


def _moment(value: Any) -> Any:
    if not isinstance(value, str) or _RFC_3339.fullmatch(value) is None:
        raise ValueError(Message("api.moment_with_time_zone", example="2026-11-20T12:00:00Z"))
    try:
        moment = datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment.year > LAST_YEAR:
        raise ValueError(Message("api.no_such_moment", last=LAST_YEAR))
    return moment


Moment = Annotated[datetime, BeforeValidator(_moment)]
