"""Backup and restore as `docs/how-to/operate.md` tells it: its own commands, run against a real PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from autodeploy.service.requests.callers import AccessService
from autodeploy.service.session import open_services
from autodeploy.service.store.database import Database
from autodeploy.service.store.dump import export_lines
from autodeploy.service.store.migration import is_current, upgrade
from tests.conftest import NO_POSTGRESQL
from tests.integration.conftest import QUICK, eventually, named, quick_settings
from tests.support.postgresql import SYSTEM_USER, free_port, fresh_database, libpq_dsn, own_server, server_binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.postgres]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8")
FOUND = {"optimal", "feasible"}
LIMIT_S = 120.0


def blocks(heading: str, language: str) -> list[str]:
    """The fenced blocks of a section of the page."""
    section = PAGE.split(f"\n{heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def binaries() -> Path:
    found = server_binaries()
    if found is None:
        pytest.skip(NO_POSTGRESQL)
    return found


def run(script: str, directory: Path, *, as_server: bool = False, **variables: str) -> None:
    """A block as a shell runs it, with `autodeploy` and PostgreSQL's tools at hand."""
    tools = directory / "tools"
    if not tools.exists():
        tools.mkdir(mode=0o755)
        program = tools / "autodeploy"
        program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m autodeploy.cli.main "$@"\n')
        program.chmod(0o755)
    path = f"{tools}:{binaries()}:{os.environ['PATH']}"
    who: dict[str, Any] = {}
    if as_server and os.geteuid() == 0:
        who = {"user": SYSTEM_USER, "group": SYSTEM_USER, "extra_groups": []}
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=directory,
        env={**os.environ, "PATH": path, "LC_ALL": "C", "TZ": "UTC", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
        **who,
    )
    assert done.returncode == 0, done.stdout


def content(url: str) -> list[dict[str, Any]]:
    """All rows, without the moment of the export."""
    database = Database(url, pool_size=1)
    try:
        return list(export_lines(database))[1:]
    finally:
        database.close()


@pytest.fixture
def restored_dsn(postgres_server_dsn: str) -> Iterator[str]:
    """Where the page restores to; made by its own command."""
    with fresh_database(postgres_server_dsn, "autodeploy_restored") as dsn:
        with psycopg.connect(libpq_dsn(postgres_server_dsn), autocommit=True) as connection:
            connection.execute("DROP DATABASE autodeploy_restored")
        yield dsn


def test_a_dump_is_restored_and_the_service_goes_on_with_it(
    migrated_postgres_dsn, postgres_server_dsn, restored_dsn, tmp_path
):
    settings = quick_settings(migrated_postgres_dsn)
    with open_services(settings, planner=QUICK) as services:
        done = services.searches.plan_and_store(named("done")).search.id
        waits = services.searches.submit(named("waits")).search.id
        key, _ = services.access.create("me", "write")
    (script,) = blocks("## Back up PostgreSQL", "sh")
    run(
        script,
        tmp_path,
        DATABASE=libpq_dsn(migrated_postgres_dsn),
        SERVER=libpq_dsn(postgres_server_dsn),
        RESTORED=libpq_dsn(restored_dsn),
    )
    assert content(restored_dsn) == content(migrated_postgres_dsn)
    with open_services(quick_settings(restored_dsn), with_runner=True, planner=QUICK) as services:
        assert services.searches.status(done) in FOUND
        assert services.access.recognise(key).name == "me"
        eventually(lambda: services.searches.status(waits) in FOUND)


def test_back_to_a_moment(tmp_path_factory):
    """A base backup and the log of writes: what was deleted by mistake after the moment is there again."""
    (configuration,) = blocks("### To any moment", "ini")
    back_up, restore = blocks("### To any moment", "sh")
    settings = dict(re.findall(r"^(\w+) = '?(.*?)'?$", configuration, re.MULTILINE))
    assert set(settings) == {"wal_level", "archive_mode", "archive_timeout", "archive_command"}
    # Beside the server's own directory: pytest's is closed to its user.
    with own_server(binaries(), {"fsync": "off", "max_connections": "20"}) as first:
        backup = first.directory / "backup"
        (backup / "wal").mkdir(parents=True)
        settings["archive_command"] = settings["archive_command"].replace("/backup", str(backup))
        _give_to_server(first.directory)
        first.stop()
        first.settings.update(settings)
        first.start()
        database = Database(first.dsn, pool_size=2)
        upgrade(database)
        access = AccessService(database)
        access.create("before the backup", "read")
        with psycopg.connect(libpq_dsn(first.dsn), autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET unix_socket_directories = '{first.directory}'")
            connection.execute("ALTER SYSTEM SET max_connections = 20")
            run(back_up, first.directory, as_server=True, SERVER=libpq_dsn(first.dsn), BACKUP=str(backup))
            access.create("after the backup", "read")
            (moment,) = connection.execute("SELECT clock_timestamp()::text").fetchone() or ("",)
            time.sleep(0.1)
            connection.execute("DELETE FROM api_keys")
            (segment,) = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or ("",)
            eventually(lambda: (backup / "wal" / segment).exists(), within_s=30)
        database.close()
        first.stop()
        port = str(free_port())
        new = first.directory / "new"
        variables = {"BACKUP": str(backup), "NEW": str(new), "MOMENT": moment, "PGPORT": port}
        run(f"trap 'cat $NEW/server.log' ERR\n{restore}", first.directory, as_server=True, **variables)
        try:
            database = Database(f"postgresql+psycopg://{SYSTEM_USER}@127.0.0.1:{port}/postgres", pool_size=2)
            assert is_current(database)
            found = AccessService(database)
            eventually(lambda: not _is_recovering(database), within_s=30)
            assert {key.name for key in found.list()} == {"before the backup", "after the backup"}
            found.create("and on it goes", "read")
            database.close()
        finally:
            run('pg_ctl --pgdata="$NEW" --mode=immediate stop', first.directory, as_server=True, NEW=str(new))


def _is_recovering(database: Database) -> bool:
    with psycopg.connect(database.conninfo) as connection:
        (recovering,) = connection.execute("SELECT pg_is_in_recovery()").fetchone() or (True,)
        return bool(recovering)


def _give_to_server(directory: Path) -> None:
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{SYSTEM_USER}:{SYSTEM_USER}", str(directory)], check=True)
