"""A throw-away PostgreSQL server for tests, started from the machine's own binaries.

PostgreSQL refuses to run as root, so under root its processes run as the user `postgres`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from autodeploy.service.store.migration import HEAD_REVISION
from autodeploy.service.store.tables import Base

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SYSTEM_USER = "postgres"
START_LIMIT_S = 90.0
STOP_LIMIT_S = 60.0
# So long a connection that was closed may take to go.
GONE_S = 2.0
# Nothing here outlives the tests, so durability would only cost time.
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "jit": "off",
    "max_connections": "60",
}
# Keeps what it has committed when it is stopped at once, as long as the machine itself lives.
KEEPING_SETTINGS = {"fsync": "off", "max_connections": "100"}


def server_binaries() -> Path | None:
    """The directory that holds `initdb` and `postgres`, the newest version first; None without PostgreSQL."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda path: int(path.parent.name) if path.parent.name.isdigit() else 0,
        reverse=True,
    )
    on_path = shutil.which("initdb")
    for directory in [*debian, *([Path(on_path).resolve().parent] if on_path else [])]:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    return None


def free_port() -> int:
    """A loopback port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server on a loopback port, its data in a directory of its own; may be stopped and started again.

    `settings` are read at each start; `directory` is its own user's.
    """

    def __init__(self, binaries: Path, directory: Path, settings: dict[str, str]) -> None:
        self._binaries = binaries
        self.directory = directory
        self.settings = dict(settings)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        as_root = os.geteuid() == 0
        self._options: dict[str, Any] = {
            "cwd": directory,
            "env": {**os.environ, "LC_ALL": "C", "HOME": str(directory)},
            **({"user": SYSTEM_USER, "group": SYSTEM_USER, "extra_groups": []} if as_root else {}),
        }
        if as_root:
            shutil.chown(directory, SYSTEM_USER, SYSTEM_USER)
        made = subprocess.run(
            [binaries / "initdb", "-D", self._data, "-U", SYSTEM_USER, "-A", "trust", "-E", "UTF8", "--no-sync"],
            capture_output=True,
            text=True,
            check=False,
            **self._options,
        )
        if made.returncode:
            raise RuntimeError(f"initdb ended with {made.returncode}: {made.stderr}")

    @property
    def pid(self) -> int:
        """The number of its first process, whose children serve connections."""
        assert self._process is not None, "a server that was started"
        return self._process.pid

    @property
    def dsn(self) -> str:
        """DSN (`postgresql+psycopg://`) of its database `postgres`."""
        return f"postgresql+psycopg://{SYSTEM_USER}@127.0.0.1:{self._port}/postgres"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def start(self) -> None:
        """Returns when the server answers."""
        address = ["-h", "127.0.0.1", "-p", str(self._port), "-k", str(self.directory)]
        settings = [f"-c{name}={value}" for name, value in self.settings.items()]
        log_path = self.directory / "server.log"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, *address, *settings],
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the tests; they stop the server.
                **self._options,
            )
        _wait_until_ready(self.dsn, self._process, log_path)

    def stop(self, *, at_once: bool = False) -> None:
        """Closes connections and leaves; `at_once` as after a crash, to be recovered at the next start."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def own_server(binaries: Path, settings: dict[str, str]) -> Iterator[Server]:
    """A running server with these settings, gone afterwards."""
    # Not pytest's directory: that one is closed to every user but its owner.
    with tempfile.TemporaryDirectory(prefix="autodeploy_postgresql_") as directory:
        server = Server(binaries, Path(directory), settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def running_server(binaries: Path) -> Iterator[str]:
    """Runs a server that is quick and forgets everything; gives the DSN of its database `postgres`."""
    with own_server(binaries, SETTINGS) as server:
        yield server.dsn


def _wait_until_ready(dsn: str, server: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        if server.poll() is not None:
            break
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(libpq_dsn(dsn), connect_timeout=2):
            return
        time.sleep(0.02)
    raise RuntimeError(f"PostgreSQL did not start:\n{log_path.read_text(errors='replace')}")


def libpq_dsn(dsn: str) -> str:
    """The same address for psycopg itself, which does not know SQLAlchemy's driver suffix."""
    return dsn.replace("postgresql+psycopg://", "postgresql://", 1)


@contextlib.contextmanager
def fresh_database(server_dsn: str, name: str, template: str = "template1") -> Iterator[str]:
    """Creates the database `name` on the server, empty or like `template`, gives its DSN, and drops it afterwards."""
    head, _, query = server_dsn.partition("?")
    database_dsn = f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")
    with psycopg.connect(libpq_dsn(server_dsn), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        try:
            yield database_dsn
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


class ReusedDatabase:
    """A database that one test after another gets as the first did, which takes a hundredth of making it anew.

    Parameters
    ----------
    name, template : of `fresh_database`.
    clean : makes it as it was, on a connection of its own; whether that is possible. Else, and where a test has left
        connections behind, the next test gets a new one.
    """

    def __init__(
        self, server_dsn: str, name: str, template: str, clean: Callable[[psycopg.Connection[Any]], bool]
    ) -> None:
        self._made = contextlib.ExitStack()
        self._clean = clean
        self._fresh = lambda: fresh_database(server_dsn, name, template)
        self._dsn: str | None = None

    @contextlib.contextmanager
    def lent(self) -> Iterator[str]:
        """Its DSN, for one test."""
        if self._dsn is None:
            self._dsn = self._made.enter_context(self._fresh())
        try:
            yield self._dsn
        finally:
            with psycopg.connect(libpq_dsn(self._dsn), autocommit=True) as connection:
                is_clean = _is_alone(connection) and self._clean(connection)
            if not is_clean:
                self.close()

    def close(self) -> None:
        """Drops it."""
        self._made.close()
        self._dsn = None


def _is_alone(connection: psycopg.Connection[Any]) -> bool:
    """Whether all other connections to the same database have ended."""
    others = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    end_s = time.monotonic() + GONE_S
    while connection.execute(others).fetchone():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.005)
    return True


def without_tables(connection: psycopg.Connection[Any]) -> bool:
    """Removes everything that a test has made."""
    connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return True


# Of those that point at others first; what the queue notes of a job goes before and after it.
QUEUE_TABLES = tuple(f"procrastinate_{name}" for name in ("events", "periodic_defers", "jobs", "events", "workers"))
ROWS_OF = (*(table.name for table in reversed(Base.metadata.sorted_tables)), *QUEUE_TABLES)


class WithoutRows:
    """Deletes the rows of migrated tables, as long as nobody has changed the tables."""

    def __init__(self) -> None:
        self._columns: list[tuple[str, ...]] = []

    def learn(self, dsn: str) -> None:
        """The tables as they should be."""
        with psycopg.connect(libpq_dsn(dsn)) as connection:
            self._columns = _columns(connection)
        assert {name for name, *_ in self._columns} == {*ROWS_OF, "alembic_version"}

    def __call__(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether it could be done."""
        if _columns(connection) != self._columns:
            return False
        connection.execute(";".join(f"DELETE FROM {name}" for name in ROWS_OF))
        return connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD_REVISION,)]


def _columns(connection: psycopg.Connection[Any]) -> list[tuple[str, ...]]:
    query = """
        SELECT relname::text, attname::text, format_type(atttypid, atttypmod), attnotnull::text
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
        ORDER BY 1, attnum
    """
    return connection.execute(query).fetchall()
