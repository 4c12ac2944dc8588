"""Brings a database to the newest revision of `migrations/`. Works from an installed wheel: no ini file is needed."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from autodeploy.errors import ConflictError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from autodeploy.store.database import Database

# Any fixed number: several processes that migrate one PostgreSQL database at once wait for each other on it.
_LOCK = 7_205_384_001


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration for the packaged revisions, on that connection."""
    config = Config()
    config.set_main_option("script_location", str(resources.files("migrations")))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def head_revision() -> str:
    """The newest revision this program knows."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    return head


def current_revision(database: Database) -> str | None:
    """The revision the database is at; None when it is empty."""
    with database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def is_current(database: Database) -> bool:
    """Whether the database is at the newest revision."""
    return current_revision(database) == head_revision()


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrates to a revision in one transaction; nothing happens when it is there already."""
    with database.write_engine.begin() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        command.upgrade(alembic_config(connection), revision)


def require_current(database: Database) -> None:
    """Raises unless the database is at the newest revision.

    Raises
    ------
    ConflictError
        naming both revisions.
    """
    current, head = current_revision(database), head_revision()
    if current != head:
        raise ConflictError(
            f"the database is at revision {current or 'none'}, this program needs {head}",
            hint="autodeploy db upgrade",
        )
