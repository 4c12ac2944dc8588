"""The way back to an earlier revision, and all rows as lines of JSON: from any database to any other.

The first line names format, version and revision, then comes one line a row, parents before children, and a last line
that counts them, so that a file that was cut off is noticed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, inspect, select, text, tuple_
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, StatementError
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from autodeploy.kit.errors import ConflictError, NotFoundError, SpecError
from autodeploy.messages import Message, joined
from autodeploy.service.store.base import Base, UtcDateTime, now_in
from autodeploy.service.store.database import copy_beside
from autodeploy.service.store.events import STATUS, Events
from autodeploy.service.store.migration import HEAD_REVISION, LOCK, alembic_config, current_revision

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Table
    from sqlalchemy.engine import Connection
    from sqlalchemy.orm import Session

    from autodeploy.service.store.database import Database


FORMAT = "autodeploy-database"
VERSION = 1
BATCH = 200
NOT_EXPORTED = frozenset({"sessions"})  # who ended one means it everywhere
# What a search consists of besides its own row: comes with a new search and never changes one that is there.
PARTS_OF_A_SEARCH = frozenset({"plans", "plan_reestimates", "events", "search_tags", "webhook_deliveries"})


def export_lines(database: Database) -> Iterator[dict[str, Any]]:
    """The lines of an export: one snapshot, whatever is written meanwhile."""
    yield {"format": FORMAT, "version": VERSION, "revision": HEAD_REVISION, "exported_at": _plain(database.now())}
    count = 0
    # SQLite reads a snapshot from the first statement on; PostgreSQL has to be told.
    options = {} if database.is_sqlite else {"isolation_level": "REPEATABLE READ"}
    with database.engine.connect().execution_options(**options) as connection:
        for table in Base.metadata.sorted_tables:
            if table.name in NOT_EXPORTED:
                continue
            rows = select(table).order_by(*table.primary_key).execution_options(yield_per=BATCH)
            for row in connection.execute(rows).mappings():
                count += 1
                yield {"table": table.name, "row": {name: _plain(value) for name, value in row.items()}}
    yield {"end": True, "rows": count}


def import_lines(database: Database, lines: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Inserts the rows that are not there yet, all or none; how many by table.

    A search that is there stays as it is. One that ran when it was exported waits again.

    Raises SpecError naming the line, when this is no export, a newer one, or one that was cut off.
    """
    try:
        with database.write() as session:
            return _Import(session).read(lines)
    except StatementError as error:
        if isinstance(error, OperationalError | InternalError | InterfaceError):
            raise  # the database, not the file
        raise SpecError(
            Message("store.row_cannot_be_stored", reason=error.orig or error),
            path="the file",
            hint=Message("store.export_again"),
        ) from error


class _Import:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._inserted: Counter[str] = Counter()
        self._new_searches: set[str] = set()
        self._interrupted: list[str] = []

    def read(self, lines: Iterable[dict[str, Any]]) -> dict[str, int]:
        batch: list[dict[str, Any]] = []
        table: Table | None = None
        number, rows, ended = 0, 0, False
        for number, line in enumerate(lines, start=1):
            if number == 1:
                _check_header(line)
            elif ended:
                raise SpecError(Message("store.content_after_end"), path=f"line {number}")
            elif line.get("end") is True:
                ended = line.get("rows") == rows
            else:
                next_table, row = _read_row(line, number)
                if table is not None and (next_table is not table or len(batch) >= BATCH):
                    self._insert(table, batch)
                    batch = []
                table = next_table
                batch.append(row)
                rows += 1
        if not ended:
            raise SpecError(Message("store.file_ends_early"), path=f"line {number}", hint=Message("store.export_again"))
        if table is not None:
            self._insert(table, batch)
        for search_id in self._interrupted:
            Events(self._session).append(
                search_id, STATUS, [{"status": "queued", "reason": "imported"}], now=now_in(self._session)
            )
        return dict(self._inserted)

    def _insert(self, table: Table, rows: list[dict[str, Any]]) -> None:
        key = list(table.primary_key)
        keys = [tuple(row[column.name] for column in key) for row in rows]
        existing = {tuple(row) for row in self._session.execute(select(*key).where(tuple_(*key).in_(keys)))}
        new = [row for row, row_key in zip(rows, keys, strict=True) if row_key not in existing]
        if table.name in PARTS_OF_A_SEARCH:
            new = [row for row in new if row["search_id"] in self._new_searches]
        if table.name == "searches":
            self._new_searches.update(row["id"] for row in new)
            for row in new:
                if row["status"] == "running":
                    row.update(status="queued", owner=None, heartbeat_at=None, attempts=max(0, row["attempts"] - 1))
                    self._interrupted.append(row["id"])
        if new:
            self._session.execute(insert(table), new)
            self._inserted[table.name] += len(new)


def _check_header(line: dict[str, Any]) -> None:
    if line.get("format") != FORMAT:
        raise SpecError(Message("store.not_an_export"), path="line 1", hint="autodeploy db export FILE")
    if line.get("version") != VERSION:
        raise SpecError(
            Message("store.unknown_export_version", version=line.get("version"), known=VERSION),
            path="line 1",
            hint=Message("store.import_with_exporter"),
        )


def _columns_at_fault(unknown: list[str], missing: list[str]) -> Message:
    faults = [Message("common.unknown_key", name=name) for name in unknown]
    return joined([*faults, *(Message("common.missing", word=name) for name in missing)])


def _read_row(line: dict[str, Any], number: int) -> tuple[Table, dict[str, Any]]:
    table = Base.metadata.tables.get(str(line.get("table")))
    values = line.get("row")
    if table is None or not isinstance(values, dict):
        raise SpecError(Message("store.unknown_table_row"), path=f"line {number}")
    # A part of the key that is younger than the export has its default.
    with_default = [(each.name, each.default) for each in table.primary_key]
    values = {
        name: default.arg for name, default in with_default if isinstance(default, ScalarElementColumnDefault)
    } | values
    unknown = sorted(set(values) - {column.name for column in table.columns})
    missing = [column.name for column in table.primary_key if column.name not in values]
    if unknown or missing:
        raise SpecError(
            Message("store.table_has", table=table.name, what=_columns_at_fault(unknown, missing)),
            path=f"line {number}",
            hint=Message("store.import_with_exporter"),
        )
    return table, {name: _typed(table, name, value, number) for name, value in values.items()}


def _typed(table: Table, name: str, value: Any, number: int) -> Any:
    if value is None or not isinstance(table.columns[name].type, UtcDateTime):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise SpecError(Message("store.bad_timestamp", name=name, value=repr(value)), path=f"line {number}")
    return moment


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


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
    """Losses of a downgrade to that revision; nothing is changed.

    Raises NotFoundError when there is no such revision; ConflictError when it is not behind the database, or the
    database is in use.
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

    Raises NotFoundError when there is no such revision; ConflictError when it is not behind the database, or the
    database is in use.
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
            Message("store.newer_database", current=current or "none"),
            hint=Message("store.downgrade_with_creator"),
        )
    if revisions.index(revision) >= revisions.index(current):
        raise ConflictError(Message("store.revision_not_older", revision=revision, current=current))
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
    return ConflictError(Message("store.database_is_in_use"), hint=Message("store.stop_service_first"))


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
