"""The way back to an older revision, and what would be lost on it: tried in a transaction that is rolled back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text
from sqlalchemy.exc import OperationalError

from autodeploy.kit.errors import ConflictError, NotFoundError
from autodeploy.messages import Message
from autodeploy.service.store.migration import LOCK, alembic_config, current_revision
from autodeploy.service.store.sqlite_file import copy_beside

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from autodeploy.service.store.database import Database

# Tables up to this size are compared row by row: keys and overlays, where a revision may also change values.
COMPARED_ROWS = 10_000
LOCK_LIMIT = "10s"
# Made anew: jobs from the searches that wait, workers by looking for them, sessions by logging in.
NOT_OURS = ("alembic_version", "procrastinate_", "workers", "sessions")


@dataclass(frozen=True, slots=True)
class Loss:
    """Rows of a table that would be lost, or their values in a column; `column` is empty for whole rows."""

    table: str
    column: str
    rows: int

    def __str__(self) -> str:
        return f"{self.table}{'.' if self.column else ''}{self.column} ({self.rows})"


def losses_of_downgrade(database: Database, revision: str) -> tuple[Loss, ...]:
    """What the way back to that revision would lose; nothing is changed.

    Raises
    ------
    NotFoundError
        when there is no such revision.
    ConflictError
        when it is not behind the database, or the database is in use.
    """
    _require_behind(database, revision)
    with database.write_engine.connect() as connection:
        transaction = connection.begin()
        try:
            _lock(database, connection)
            before = _columns(connection)
            rows = {table: _rows(connection, table, columns) for table, columns in before.items()}
            _go(connection, revision)
            after = _columns(connection)
            shared = {table: [name for name in before[table] if name in after[table]] for table in after}
            changed = [
                _changed(connection, table, names, before[table], rows[table]) for table, names in shared.items()
            ]
        finally:
            transaction.rollback()
        lost = [Loss(table, "", _count(connection, table)) for table in before if table not in after]
        gone = [(table, name) for table in shared for name in before[table] if name not in after[table]]
        lost += [Loss(table, name, _count(connection, table, name)) for table, name in gone]
    return tuple(loss for loss in (*lost, *changed) if loss.rows)


def downgrade(database: Database, revision: str) -> Path | None:
    """Goes back to that revision in one transaction, whatever is lost; gives the copy of an SQLite file made before.

    Raises
    ------
    NotFoundError
        when there is no such revision.
    ConflictError
        when it is not behind the database, or the database is in use.
    """
    current = _require_behind(database, revision)
    with database.write_engine.begin() as connection:
        _lock(database, connection)
        copy = copy_beside(Path(database.url.database or ""), current) if database.is_sqlite else None
        _go(connection, revision)
    return copy


def _require_behind(database: Database, revision: str) -> str:
    from alembic.script import ScriptDirectory

    revisions = [script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()][::-1]
    if revision not in revisions:
        message = Message("common.there_is_no", what=Message("label.revision"), name=revision)
        raise NotFoundError(message, hint=Message("common.one_of", names=", ".join(revisions)))
    current = current_revision(database)
    if current not in revisions:
        raise ConflictError(
            Message("store.database_is_at_revision_which_this_program_does", current=current or "none"),
            hint=Message("store.go_back_with_version_of_autodeploy_that_made"),
        )
    if revisions.index(revision) >= revisions.index(current):
        raise ConflictError(
            Message("store.revision_is_not_behind_where_database_is", revision=revision, current=current)
        )
    return current


def _lock(database: Database, connection: Connection) -> None:
    if database.is_sqlite:
        return
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_LIMIT}'"))
    try:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    except OperationalError as error:
        raise _in_use() from error


def _go(connection: Connection, revision: str) -> None:
    from alembic import command

    try:
        command.downgrade(alembic_config(connection), revision)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":  # lock not available
            raise
        raise _in_use() from error


def _in_use() -> ConflictError:
    return ConflictError(Message("store.database_is_in_use"), hint=Message("store.stop_servers_and_workers_first"))


def _columns(connection: Connection) -> dict[str, dict[str, str | None]]:
    """Our tables with the names and defaults of their columns."""
    inspector = inspect(connection)
    tables = [name for name in inspector.get_table_names() if not name.startswith(NOT_OURS)]
    columns = inspector.get_multi_columns(filter_names=tables)  # in one look at the catalogue
    return {name: {column["name"]: column["default"] for column in columns[None, name]} for name in tables}


def _count(connection: Connection, table: str, column: str = "") -> int:
    """Rows, or those whose column says something: not nothing, and not its default."""
    where = ""
    if column:
        default = _columns(connection)[table][column]
        where = f' WHERE "{column}" IS NOT NULL' + ("" if default is None else f' AND "{column}" <> {default}')
    return int(connection.scalar(text(f'SELECT count(*) FROM "{table}"{where}')) or 0)


def _rows(connection: Connection, table: str, columns: dict[str, str | None]) -> list[tuple[object, ...]] | None:
    """The rows of a small table; None of a large one."""
    if _count(connection, table) > COMPARED_ROWS:
        return None
    names = ", ".join(f'"{name}"' for name in columns)
    return [tuple(row) for row in connection.execute(text(f'SELECT {names} FROM "{table}"'))]


def _changed(
    connection: Connection,
    table: str,
    shared: list[str],
    columns: dict[str, str | None],
    rows: list[tuple[object, ...]] | None,
) -> Loss:
    """Rows that are not the same afterwards, in the columns that stay."""
    if rows is None:
        return Loss(table, "", 0)
    places = [list(columns).index(name) for name in shared]
    before = Counter(repr([row[place] for place in places]) for row in rows)
    after = Counter(repr(list(row)) for row in _rows(connection, table, dict.fromkeys(shared)) or ())
    return Loss(table, "", (before - after).total())
