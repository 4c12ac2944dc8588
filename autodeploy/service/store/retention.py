"""Deletion of old rows, a batch in a transaction, so that nobody else waits long."""

from __future__ import annotations

import fcntl
import logging
import random
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select, text

from autodeploy.service.store.keys import Sessions
from autodeploy.service.store.tables import AuditRow, BatchRow, SearchRow, TagRow
from autodeploy.specs.planset import FINISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from sqlalchemy import Select

    from autodeploy.kit.settings import Settings
    from autodeploy.service.store.database import Database


# Work that one of many processes does at a time.
# Any fixed numbers, other than that of migrations.
LOCKS = {"housekeeping": 7_205_384_002}


@contextmanager
def try_lock(database: Database, work: str) -> Iterator[bool]:
    """Whether this process may do the work now: nobody else that uses the database does, until the block ends.

    PostgreSQL keeps the lock for as long as its connection lives. For an SQLite file it is one on a file beside it: to
    open and close the database itself would end SQLite's own locks.
    """
    with (_turn_in_file if database.is_sqlite else _turn_in_server)(database, work) as has_turn:
        yield has_turn


@contextmanager
def _turn_in_server(database: Database, work: str) -> Iterator[bool]:
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        key = {"key": LOCKS[work]}
        locked = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key))
        try:
            yield locked
        finally:
            if locked:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)


@contextmanager
def _turn_in_file(database: Database, work: str) -> Iterator[bool]:
    path = Path(f"{database.url.database}.{work}")
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


DELETED_AT_ONCE = 500


def prune(
    database: Database,
    *,
    before: datetime,
    keep_tagged: bool = False,
    batch: int | None = None,
    pause_s: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Deletes searches that finished before that moment, with all that is theirs, and batches without any.

    Gives the number of searches.

    keep_tagged : a search with a tag stays.
    batch : searches of one transaction.
    pause_s : after each, for others.
    should_stop : asked between them.
    """
    old = select(SearchRow.id).where(SearchRow.finished_at < before, SearchRow.status.in_(FINISHED))
    if keep_tagged:
        old = old.where(~select(TagRow.tag).where(TagRow.search_id == SearchRow.id).exists())
    at_once = batch or DELETED_AT_ONCE
    pruned = _prune(database, SearchRow, old.order_by(SearchRow.finished_at), at_once, pause_s, should_stop)
    left = select(SearchRow.id).where(SearchRow.batch_id == BatchRow.id).exists()
    _prune(database, BatchRow, select(BatchRow.id).where(BatchRow.created_at < before, ~left))
    return pruned


def prune_audit(database: Database, *, before: datetime) -> int:
    """Deletes what the audit log says of the time before that moment."""
    return _prune(database, AuditRow, select(AuditRow.id).where(AuditRow.created_at < before))


def _prune(
    database: Database,
    table: Any,
    old: Select[Any],
    batch: int = DELETED_AT_ONCE,
    pause_s: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    pruned = 0
    while not should_stop():
        with database.write() as session:
            ids = session.scalars(old.limit(batch)).all()
            if ids:
                session.execute(delete(table).where(table.id.in_(ids)))
        pruned += len(ids)
        if len(ids) < batch:
            break
        time.sleep(pause_s)
    return pruned


# Once an hour one of the servers deletes what the operator does not want to keep.
EVERY_S = 3600.0
# Soon after the start, and not everywhere at once.
FIRST_S = 60.0
# Small transactions with pauses between: whoever writes meanwhile waits for one of them at most.
DELETED_BESIDE_WORK = 50
PAUSE_S = 0.2

log = logging.getLogger(__name__)


class Housekeeper:
    """A thread that keeps the database small; does nothing where everything is kept."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Returns when the transaction that runs is over."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def clean(self) -> int | None:
        """Deletes what is too old; how many searches, None where another process is at it."""
        now, settings = self._database.now(), self._settings
        with try_lock(self._database, "housekeeping") as has_turn:
            if not has_turn:
                return None
            with self._database.write() as session:
                Sessions(session).forget_before(now - timedelta(seconds=settings.session_s))
            if settings.keep_audit_days:
                prune_audit(self._database, before=now - timedelta(days=settings.keep_audit_days))
            if not settings.keep_days:
                return 0
            before = now - timedelta(days=settings.keep_days)
            pruned = prune(
                self._database,
                before=before,
                keep_tagged=settings.keep_tagged,
                batch=DELETED_BESIDE_WORK,
                pause_s=PAUSE_S,
                should_stop=self._stopping.is_set,
            )
        if pruned:
            log.info("%d searches older than %d days are deleted", pruned, settings.keep_days)
        return pruned

    def _work(self) -> None:
        pause_s = random.uniform(0.5, 1.5) * FIRST_S
        while not self._stopping.wait(pause_s):
            pause_s = EVERY_S
            try:
                self.clean()
            except Exception as error:  # a database that is away or full; the next hour may be better
                log.warning("old searches were not deleted: %s", error)
