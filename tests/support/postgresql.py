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

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEM_USER = "postgres"
START_LIMIT_S = 30.0
STOP_LIMIT_S = 15.0
# Nothing here outlives the tests, so durability would only cost time.
SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "60"}


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


@contextlib.contextmanager
def running_server(binaries: Path) -> Iterator[str]:
    """Runs a server on a loopback port in a temporary directory; gives the DSN of its database `postgres`."""
    as_root = os.geteuid() == 0
    user: dict[str, Any] = {"user": SYSTEM_USER, "group": SYSTEM_USER, "extra_groups": []} if as_root else {}
    # Not pytest's directory: that one is closed to every user but its owner.
    with tempfile.TemporaryDirectory(prefix="autodeploy_postgresql_") as directory:
        if as_root:
            shutil.chown(directory, SYSTEM_USER, SYSTEM_USER)
        data = Path(directory, "data")
        environment = {**os.environ, "LC_ALL": "C", "HOME": directory}
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", SYSTEM_USER, "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=directory,
            env=environment,
            **user,
        )
        port = free_port()
        options = [f"-c{name}={value}" for name, value in SETTINGS.items()]
        log_path = Path(directory, "server.log")
        with (
            log_path.open("wb") as log,
            subprocess.Popen(
                [binaries / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", directory, *options],
                stdout=log,
                stderr=log,
                cwd=directory,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the tests; they stop the server.
                **user,
            ) as server,
        ):
            try:
                dsn = f"postgresql+psycopg://{SYSTEM_USER}@127.0.0.1:{port}/postgres"
                _wait_until_ready(dsn, server, log_path)
                yield dsn
            finally:
                _stop(server)


def _wait_until_ready(dsn: str, server: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        if server.poll() is not None:
            break
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(libpq_dsn(dsn), connect_timeout=2):
            return
        time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL did not start:\n{log_path.read_text(errors='replace')}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Fast shutdown: closes connections and leaves; killed when that takes too long."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
    try:
        server.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.kill()


def libpq_dsn(dsn: str) -> str:
    """The same address for psycopg itself, which does not know SQLAlchemy's driver suffix."""
    return dsn.replace("postgresql+psycopg://", "postgresql://", 1)


@contextlib.contextmanager
def fresh_database(server_dsn: str, name: str) -> Iterator[str]:
    """Creates the empty database `name` on the server, gives its DSN, and drops it afterwards."""
    head, _, query = server_dsn.partition("?")
    database_dsn = f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")
    with psycopg.connect(libpq_dsn(server_dsn), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield database_dsn
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
