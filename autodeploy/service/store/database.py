"""One database, SQLite or PostgreSQL: its engine and its two kinds of session, for reading and for writing.

SQLite runs in WAL mode, so readers never wait for the writer. A write transaction begins IMMEDIATE: one that begins
as a reader and then writes fails with "database is locked", whatever the busy timeout.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine, event, func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError, TimeoutError
from sqlalchemy.orm import Session as Session  # rooms that may not import sqlalchemy take Session from here

from autodeploy.kit.errors import StorageFullError
from autodeploy.messages import Message
from autodeploy.service.store.base import CLOCK, ServerClock, now_in, to_json, utc_now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sqlalchemy.engine import Connection


OWNER_ONLY = 0o600


def make_private(path: Path) -> None:
    """Makes an empty file that only its owner reads, unless there is one: SQLite would go by the umask.

    The journals beside it get the mode of the file.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY))


def copy_beside(path: Path, revision: str) -> Path:
    """Copies what is committed to `<file>.<revision>`, replacing an older copy of that name; gives its path.

    Raises StorageFullError when there is no room for it.
    """
    copy = path.with_name(f"{path.name}.{revision}")
    unfinished = copy.with_name(f"{copy.name}.{os.getpid()}.part")
    unfinished.unlink(missing_ok=True)
    try:
        make_private(unfinished)
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(unfinished)) as sink,
        ):
            source.backup(sink)
        unfinished.replace(copy)
    except (sqlite3.OperationalError, OSError) as error:
        raise StorageFullError(
            Message("store.copy_failed", path=path, reason=error),
            hint=Message("store.free_file_space"),
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return copy


BUSY_TIMEOUT_MS = 5000
# The database is away, locked or full: the same call may work later.
DATABASE_ERRORS: tuple[type[Exception], ...] = (DBAPIError, TimeoutError, StorageFullError)
SQLITE_FULL_CODES = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE}
)
POSTGRESQL_DISK_FULL = "53100"
POSTGRESQL_READ_ONLY = "25006"
# A machine that vanishes sends no farewell: who waits for it is told after half a minute.
CONNECT_ARGUMENTS = {
    "connect_timeout": 10,
    "application_name": "autodeploy",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
REFUSED_LATELY_S = 30.0
LEAST_FREE_BYTES = 1 << 20
LOG_AGAIN_S = 10.0
_BEGIN = "autodeploy_begin"
_SERVER_NOW = select(func.clock_timestamp())

log = logging.getLogger(__name__)


class Database:
    """A pool of connections. Make one for each process; sessions are short and never shared.

    url : `sqlite:///file` or `postgresql+psycopg://...`; the directory of an SQLite file is made if missing.
    pool_size : connections kept open.
    overflow : how many more may be opened for a peak; by default as many again.
    """

    def __init__(self, url: str, *, pool_size: int = 20, overflow: int | None = None) -> None:
        self.url = make_url(url)
        self._refused_s: float | None = None
        self._logged_s = 0.0
        self._clock = ServerClock()
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {
            "pool_size": pool_size,
            "max_overflow": pool_size if overflow is None else overflow,
            "json_serializer": to_json,
        }
        options["hide_parameters"] = True  # what is written never stands in an error, hence in no log
        if self.is_sqlite:
            Path(self.url.database or "").parent.mkdir(parents=True, exist_ok=True)
        else:
            # A server that was restarted leaves dead connections in the pool.
            options["pool_pre_ping"] = True
            options["connect_args"] = dict(CONNECT_ARGUMENTS)
        self.engine = create_engine(url, **options)
        if self.is_sqlite:
            event.listen(self.engine, "do_connect", self._make_private)
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            event.listen(self.engine, "connect", _prepare_postgresql)
        # A read is one statement after the other; without BEGIN and ROLLBACK PostgreSQL is asked half as often.
        # SQLite keeps them, which cost nothing there and give every read one snapshot.
        self._reader = self.engine if self.is_sqlite else self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._writer = self.engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that only reads."""
        with Session(self._reader, autoflush=False, info={CLOCK: self._now_in}) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One write transaction: committed at the end, rolled back by an exception.

        Raises StorageFullError when there is no room for it.
        """
        try:
            with Session(self._writer, expire_on_commit=False, info={CLOCK: self._now_in}) as session, session.begin():
                yield session
        except DBAPIError as error:
            if _refuses_writes(error):
                self._note_refusal(error)
            if _is_full(error):
                raise StorageFullError(hint=Message("store.free_disk")) from error
            raise

    def now(self) -> datetime:
        """Now: by the server's clock, or for an SQLite file by that of its machine."""
        with self.read() as session:
            return now_in(session)

    def _now_in(self, session: Session) -> datetime:
        if self.is_sqlite:
            return utc_now()
        return self._clock.now(lambda: session.execute(_SERVER_NOW).scalar_one())

    @property
    def refuses_writes(self) -> bool:
        """Whether a write was refused lately for want of room or because the database is for reading only.

        Also where a file has hardly any room left. A small write that succeeds proves nothing.
        """
        lately = self._refused_s is not None and time.monotonic() - self._refused_s < REFUSED_LATELY_S
        return lately or (self.is_sqlite and _free_bytes(Path(self.url.database or "")) < LEAST_FREE_BYTES)

    def require_writes(self) -> None:
        """Writes nothing, which a full disk has room for.

        Raises DBAPIError when the database is for reading only.
        """
        with self.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = version_num WHERE 1 = 0"))

    def _note_refusal(self, error: DBAPIError) -> None:
        now_s = time.monotonic()
        if self._refused_s is None or now_s - self._logged_s >= LOG_AGAIN_S:
            log.error("the database refuses writes: %s", error.orig)
            self._logged_s = now_s
        self._refused_s = now_s

    def size_bytes(self, session: Session) -> int:
        """Bytes of the database on its disk."""
        sqlite = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        query = sqlite if self.is_sqlite else "SELECT pg_database_size(current_database())"
        return int(session.execute(text(query)).scalar_one())

    @property
    def conninfo(self) -> str:
        """The address as libpq reads it; PostgreSQL only."""
        return self.url.set(drivername="postgresql").render_as_string(hide_password=False)

    @property
    def write_engine(self) -> Engine:
        """The engine whose transactions begin as writers; for migrations."""
        return self._writer

    def ping(self) -> bool:
        """Whether the database answers."""
        try:
            with self.engine.connect() as connection:
                connection.execute(text("SELECT 1"))
        except OperationalError:
            return False
        return True

    def _make_private(self, *_: Any) -> None:
        name = self.url.database or ""
        if not name.startswith("file:"):
            make_private(Path(name))

    def renew(self) -> None:
        """Begins with new connections: one that an error without memory kept from coming back would be missed for good.

        Such a one is closed, and what it has locked is free, once nothing refers to it.
        """
        self.engine.dispose()
        gc.collect()

    def close(self) -> None:
        """Closes all connections."""
        self.engine.dispose()


def _refuses_writes(error: DBAPIError) -> bool:
    """Whether the database answers but can't store anything: its disk is full, or it is for reading only."""
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF  # extended codes say more in their upper bits
    read_only = code == sqlite3.SQLITE_READONLY or getattr(error.orig, "sqlstate", None) == POSTGRESQL_READ_ONLY
    return read_only or _is_full(error)


def _free_bytes(path: Path) -> float:
    try:
        room = os.statvfs(path.parent)
    except OSError:
        return float("inf")  # whoever writes will be told
    return room.f_bavail * room.f_frsize


def _is_full(error: DBAPIError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code in SQLITE_FULL_CODES or getattr(error.orig, "sqlstate", None) == POSTGRESQL_DISK_FULL


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver's own BEGIN is off: `_begin_sqlite` says which kind a transaction is.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    # To compile a query takes longer than any of ours.
    autocommit, connection.autocommit = connection.autocommit, True
    connection.execute("SET jit = off")
    connection.autocommit = autocommit


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))
