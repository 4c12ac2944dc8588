"""What is old leaves, a batch in a transaction, so that nobody else waits long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select

from autodeploy.specs.planset import FINISHED
from autodeploy.store.service_tables import AuditRow, BatchRow
from autodeploy.store.tables import SearchRow, TagRow

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy import Select

    from autodeploy.store.database import Database

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
    """Deletes finished searches created before that moment, with all that is theirs, and batches without any.

    Gives the number of searches.

    Parameters
    ----------
    keep_tagged : a search with a tag stays.
    batch : searches of one transaction.
    pause_s : after each, for others.
    should_stop : asked between them.
    """
    old = select(SearchRow.id).where(SearchRow.created_at < before, SearchRow.status.in_(FINISHED))
    if keep_tagged:
        old = old.where(~select(TagRow.tag).where(TagRow.search_id == SearchRow.id).exists())
    at_once = batch or DELETED_AT_ONCE
    pruned = _prune(database, SearchRow, old.order_by(SearchRow.created_at), at_once, pause_s, should_stop)
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
