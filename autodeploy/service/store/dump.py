"""Everything that is stored as lines of JSON, and back: from any database to any other, SQLite or PostgreSQL.

The first line names format, version and revision, then comes one line a row, parents before children, and a last line
that counts them, so that a file that was cut off is noticed.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, tuple_
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, StatementError

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, joined
from autodeploy.service.store.base import Base, UtcDateTime, now_in
from autodeploy.service.store.events import STATUS, Events
from autodeploy.service.store.migration import HEAD_REVISION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Table
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

    Raises
    ------
    SpecError
        naming the line, when this is no export, a newer one, or one that was cut off.
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
            hint=Message("store.export_again_nothing_was_imported"),
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
                raise SpecError(Message("store.there_is_something_after_end"), path=f"line {number}")
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
            raise SpecError(
                Message("store.file_ends_early"),
                path=f"line {number}",
                hint=Message("store.export_again_nothing_was_imported"),
            )
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
        raise SpecError(
            Message("store.this_is_no_export_of_autodeploy_s_database"), path="line 1", hint="autodeploy db export FILE"
        )
    if line.get("version") != VERSION:
        raise SpecError(
            Message("store.version_is_not_known_only", version=line.get("version"), known=VERSION),
            path="line 1",
            hint=Message("store.import_with_version_of_autodeploy_that_exported_it"),
        )


def _columns_at_fault(unknown: list[str], missing: list[str]) -> Message:
    faults = [Message("common.unknown_key", name=name) for name in unknown]
    return joined([*faults, *(Message("common.missing", word=name) for name in missing)])


def _read_row(line: dict[str, Any], number: int) -> tuple[Table, dict[str, Any]]:
    table = Base.metadata.tables.get(str(line.get("table")))
    values = line.get("row")
    if table is None or not isinstance(values, dict):
        raise SpecError(Message("store.not_row_of_known_table"), path=f"line {number}")
    unknown = sorted(set(values) - {column.name for column in table.columns})
    missing = [column.name for column in table.primary_key if column.name not in values]
    if unknown or missing:
        raise SpecError(
            Message("store.table_has", table=table.name, what=_columns_at_fault(unknown, missing)),
            path=f"line {number}",
            hint=Message("store.import_with_version_of_autodeploy_that_exported_it"),
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
        raise SpecError(
            Message("store.is_no_moment_with_time_zone", name=name, value=repr(value)), path=f"line {number}"
        )
    return moment


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
