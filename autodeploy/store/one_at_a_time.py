"""Work that one of many processes does at a time."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.store.database import Database

# Any fixed numbers, other than that of migrations.
LOCKS = {"housekeeping": 7_205_384_002}


@contextmanager
def my_turn(database: Database, work: str) -> Iterator[bool]:
    """Whether this process may do the work now: nobody else that uses the database does, until the block ends.

    PostgreSQL keeps the lock for as long as its connection lives. For an SQLite file it is one on a file beside it: to
    open and close the database itself would end SQLite's own locks.
    """
    with (_turn_in_file if database.is_sqlite else _turn_in_server)(database, work) as has_turn:
        yield has_turn


@contextmanager
def _turn_in_server(database: Database, work: str) -> Iterator[bool]:
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        key = {"key": LOCKS[work]}
        locked = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key))
        try:
            yield locked
        finally:
            if locked:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)


@contextmanager
def _turn_in_file(database: Database, work: str) -> Iterator[bool]:
    path = Path(f"{database.url.database}.{work}")
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
