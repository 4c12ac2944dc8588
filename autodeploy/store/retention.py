"""Old searches leave, a batch in a transaction, so that nobody else waits long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, select

from autodeploy.specs.planset import FINISHED
from autodeploy.store.batches import Batches
from autodeploy.store.tables import SearchRow, TagRow

if TYPE_CHECKING:
    from datetime import datetime

    from autodeploy.store.database import Database

BATCH = 500


def prune(database: Database, *, before: datetime, keep_tagged: bool = False) -> int:
    """Deletes finished searches that were created before that moment, with everything of theirs; says how many.

    Parameters
    ----------
    keep_tagged : a search with a tag stays.
    """
    old = select(SearchRow.id).where(SearchRow.created_at < before, SearchRow.status.in_(FINISHED))
    if keep_tagged:
        old = old.where(~select(TagRow.tag).where(TagRow.search_id == SearchRow.id).exists())
    pruned = 0
    while True:
        with database.write() as session:
            ids = session.scalars(old.order_by(SearchRow.created_at).limit(BATCH)).all()
            session.execute(delete(SearchRow).where(SearchRow.id.in_(ids)))
        pruned += len(ids)
        if len(ids) < BATCH:
            with database.write() as session:
                Batches(session).forget_empty_before(before)
            return pruned
