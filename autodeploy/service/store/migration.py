"""Brings a database to the newest revision of `migrations/`. Works from an installed wheel: no ini file is needed.

Alembic is imported only where something is migrated: asking whether that is needed happens at every start.
"""

from __future__ import annotations

import logging
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text

from autodeploy.kit.errors import ConflictError
from autodeploy.messages import Message
from autodeploy.service.store.database import Database, copy_beside

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection

# The newest revision in `migrations/versions`; a test compares.
HEAD_REVISION = "0011"
# Any fixed number: several processes that migrate one PostgreSQL database at once wait for each other on it.
LOCK = 7_205_384_001


log = logging.getLogger(__name__)


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration for the packaged revisions, on that connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(resources.files("migrations")))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def current_revision(database: Database) -> str | None:
    """The revision the database is at; None when it is empty."""
    with database.engine.connect() as connection:
        return _revision(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def is_current(database: Database) -> bool:
    """Whether the database is at the newest revision."""
    return current_revision(database) == HEAD_REVISION


def upgrade(database: Database, revision: str = "head", *, copy: bool = True) -> Path | None:
    """Migrates to a revision in one transaction; nothing happens when it is there already.

    copy : an SQLite file that has tables is copied before they change; the path of the copy is given.

    Raises StorageFullError when there is no room for the copy; nothing is changed.
    """
    if revision == "head" and is_current(database):
        return None
    from alembic import command

    kept = None
    with database.write_engine.begin() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        elif copy and (current := _revision(connection)) not in {None, HEAD_REVISION}:
            kept = copy_beside(Path(database.url.database or ""), str(current))
            log.warning("the database as it was at revision %s: %s", current, kept)
        command.upgrade(alembic_config(connection), revision)
    return kept


def ready_database(url: str, connections: int | None = None) -> Database:
    """The database of an address, for a program to use: an SQLite file is migrated, PostgreSQL only on purpose.

    connections : to a server, at most; of an SQLite file there are as many as are needed.

    Raises ConflictError when PostgreSQL is at another revision.
    """
    database = Database(url)
    if connections is not None and not database.is_sqlite:
        database.close()
        database = Database(url, pool_size=connections - connections // 2, overflow=connections // 2)
    try:
        if database.is_sqlite:
            upgrade(database)
        else:
            require_current(database)
    except BaseException:
        database.close()
        raise
    return database


def require_current(database: Database) -> None:
    """Raises unless the database is at the newest revision.

    Raises ConflictError naming both revisions.
    """
    current = current_revision(database)
    if current != HEAD_REVISION:
        raise ConflictError(
            Message("store.other_database_revision", current=current or "none", needed=HEAD_REVISION),
            hint="autodeploy db upgrade",
        )
