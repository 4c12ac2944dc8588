"""`autodeploy db downgrade`: what would be lost is said and refused; a file is copied before its tables change."""

from __future__ import annotations

import sqlite3
import stat
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from autodeploy.cli import main
from autodeploy.kit.errors import ConflictError, NotFoundError, StorageFullError
from autodeploy.service.requests.callers import AccessService
from autodeploy.service.store.database import Database
from autodeploy.service.store.dump import downgrade, losses_of_downgrade
from autodeploy.service.store.migration import HEAD_REVISION, current_revision, is_current, upgrade

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.migration


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database at the newest revision, without rows."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'autodeploy.db'}" if sqlite else request.getfixturevalue("empty_postgres_dsn")
    database = Database(url, pool_size=4)
    upgrade(database)
    yield database
    database.close()


def test_nothing_stands_in_the_way_of_an_empty_database(database):
    for revision in ("0006", "0005", "0004", "0003", "0002", "0001"):
        assert losses_of_downgrade(database, revision) == ()
    downgrade(database, "0001")
    assert current_revision(database) == "0001"
    upgrade(database)
    assert is_current(database)


def test_what_would_be_lost_is_counted_and_nothing_is_changed(database):
    access = AccessService(database)
    access.create("reader", "read")
    assert [str(loss) for loss in losses_of_downgrade(database, "0005")] == []
    access.create("fitter", "calibrate", team="vision")
    with database.write() as session:
        session.execute(
            text("INSERT INTO workers VALUES ('w', :now, :now, 1, 0, 0, 'x')"), {"now": "2026-11-20 12:00:00+00:00"}
        )
        session.execute(
            text("INSERT INTO audit VALUES ('a', :now, 'k', 'me', 'default', '', 'x', 'y', 200, NULL)"),
            {"now": "2026-11-20 12:00:00+00:00"},
        )
    found = {str(loss) for loss in losses_of_downgrade(database, "0005")}
    assert found == {"audit (1)", "api_keys.team (1)", "api_keys (1)"}
    assert "api_keys (2)" in {str(loss) for loss in losses_of_downgrade(database, "0003")}
    assert is_current(database)
    downgrade(database, "0005")
    with database.engine.connect() as connection:
        assert sorted(connection.scalars(text("SELECT scope FROM api_keys"))) == ["read", "write"]


def test_only_what_is_behind_is_gone_back_to(database):
    with pytest.raises(NotFoundError, match="there is no revision 9999"):
        losses_of_downgrade(database, "9999")
    with pytest.raises(ConflictError, match="not older than"):
        downgrade(database, HEAD_REVISION)
    with database.write_engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'later'"))
    with pytest.raises(ConflictError, match="does not know"):
        downgrade(database, "0005")


def test_a_database_in_use_is_left_alone(empty_postgres_dsn, monkeypatch):
    monkeypatch.setattr("autodeploy.service.store.dump.LOCK_LIMIT", "200ms")
    database = Database(empty_postgres_dsn, pool_size=4)
    upgrade(database)
    try:
        with database.engine.begin() as other:
            other.execute(text("SELECT count(*) FROM api_keys"))
            with pytest.raises(ConflictError, match="in use"):
                downgrade(database, "0005")
        assert is_current(database)
    finally:
        database.close()


def old_file(path: Path) -> None:
    database = Database(f"sqlite:///{path}", pool_size=1)
    upgrade(database, "0004")
    with database.write_engine.begin() as connection:
        connection.execute(
            text("INSERT INTO api_keys (id, name, scope, key_hash, created_at) VALUES ('k', 'old', 'read', 'x', :now)"),
            {"now": "2026-11-20 12:00:00+00:00"},
        )
    database.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_and_what_stands_beside_it_are_its_owners_alone(tmp_path):
    path = tmp_path / "new" / "autodeploy.db"
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    with database.write() as session:
        session.execute(text("SELECT 1"))
        assert {file.name for file in path.parent.iterdir()} >= {"autodeploy.db", "autodeploy.db-wal"}
        assert {mode(file) for file in path.parent.iterdir()} == {0o600}
    database.close()


def test_the_mode_of_a_file_that_is_there_is_its_owners_choice(tmp_path):
    path = tmp_path / "autodeploy.db"
    old_file(path)
    path.chmod(0o640)
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    database.close()
    assert mode(path) == 0o640


def test_a_file_is_copied_before_its_tables_change(tmp_path):
    path = tmp_path / "autodeploy.db"
    old_file(path)
    copies, threads = [], []
    for _ in range(3):
        database = Database(f"sqlite:///{path}", pool_size=2)

        def migrate(database: Database = database) -> None:
            copies.append(upgrade(database))
            database.close()

        threads.append(threading.Thread(target=migrate))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [copy for copy in copies if copy is not None] == [tmp_path / "autodeploy.db.0004"]
    assert mode(tmp_path / "autodeploy.db.0004") == 0o600
    with sqlite3.connect(tmp_path / "autodeploy.db.0004") as copy:
        assert copy.execute("SELECT version_num FROM alembic_version").fetchall() == [("0004",)]
        assert copy.execute("SELECT name FROM api_keys").fetchall() == [("old",)]
    copy.close()
    assert list(tmp_path.glob("*.part")) == []


def test_without_room_for_the_copy_nothing_is_changed(tmp_path, monkeypatch):
    path = tmp_path / "autodeploy.db"
    old_file(path)

    def no_room(file: Path) -> None:
        if file.suffix == ".part":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("autodeploy.service.store.database.make_private", no_room)
    database = Database(f"sqlite:///{path}")
    with pytest.raises(StorageFullError, match="nothing was changed"):
        upgrade(database)
    assert current_revision(database) == "0004"
    assert upgrade(database, copy=False) is None
    assert is_current(database)
    database.close()


def command(*arguments: str) -> int:
    sys.argv = ["autodeploy", "db", *arguments]
    with pytest.raises(SystemExit) as caught:
        main.run()
    return int(caught.value.code or 0)


def test_the_command_refuses_and_obeys(tmp_path, monkeypatch, capsys):
    path = tmp_path / "autodeploy.db"
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{path}")
    old_file(path)
    assert command("upgrade") == 0
    assert f"copy of the previous database: {path}.0004" in capsys.readouterr().err
    assert command("downgrade", "0003") == 2
    error = capsys.readouterr().err
    assert "going back to 0003 would lose: api_keys (1)" in error
    assert "--yes" in error
    assert command("downgrade", "0003", "--yes") == 0
    said = capsys.readouterr().err
    assert f"{path}.{HEAD_REVISION}" in said
    assert "the database is at revision 0003" in said
    assert command("downgrade", "0005") == 2
    assert "not older than" in capsys.readouterr().err
