"""The list of searches sorted by a column, whole history long, a page at a time along the column's index."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, literal, select, tuple_

from autodeploy.errors import SpecError
from autodeploy.messages import Message
from autodeploy.store.clock import first_id_at
from autodeploy.store.searches import by_author
from autodeploy.store.tables import SearchRow, TagRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.orm import InstrumentedAttribute, Session

    from autodeploy.store.searches import SearchFilter

# What a list may be sorted by, as its items name it. Each has an index with the id behind it.
SORTS: dict[str, InstrumentedAttribute[Any]] = {
    "created_at": SearchRow.id,
    "model": SearchRow.model_name,
    "profile": SearchRow.profile,
    "status": SearchRow.status,
    "num_npus": SearchRow.num_npus,
    "seq_length": SearchRow.seq_length,
    "global_batch_size": SearchRow.global_batch_size,
    "best_step_time_s": SearchRow.best_step_time_s,
    "best_tokens_per_s_per_npu": SearchRow.best_tokens_per_s_per_npu,
    "best_mfu": SearchRow.best_mfu,
    "gap": SearchRow.gap,
}
# So many rows of a filter are gathered and sorted; of more, a page is full soon along the sorted index.
MAX_SORTED_IN_MEMORY = 1000


def sorted_page(
    session: Session, columns: tuple[Any, ...], where: SearchFilter, sort: str, *, limit: int, after: str | None
) -> Sequence[Any]:
    """Up to `limit` rows of these columns in the order of `sort`, its name with `-` before it to begin at the end.

    Rows without the value come last in either direction. Equal values are in the order of their ids.

    Raises
    ------
    SpecError
        when `after` is no longer there, so that nobody knows where to continue.
    """
    down = sort.startswith("-")
    column = SORTS[sort.removeprefix("-")]
    query = _filtered(session, select(*columns), where)
    value: Any = None
    if after is not None:
        last = select(column).where(SearchRow.id == after)
        if where.team is not None:
            last = last.where(SearchRow.team == where.team)
        row = session.execute(last).one_or_none()
        if row is None:
            raise SpecError(Message("store.last_search_of_that_page_is_gone"), path="after")
        value = row[0]
    rows: list[Any] = []
    if after is None or value is not None:
        with_value = query.where(column.is_not(None)).order_by(*_ordered(column, down)).limit(limit)
        if after is not None:
            same = column is SearchRow.id
            row_key: Any = SearchRow.id if same else tuple_(column, SearchRow.id)
            last_key: Any = after if same else tuple_(literal(value), literal(after))
            with_value = with_value.where(row_key < last_key if down else row_key > last_key)
        rows += session.execute(with_value).all()
    if len(rows) < limit and SearchRow.__table__.c[column.key].nullable:
        without = query.where(column.is_(None)).order_by(*_ordered(SearchRow.id, down)).limit(limit - len(rows))
        if after is not None and value is None:
            without = without.where(SearchRow.id < after if down else SearchRow.id > after)
        rows += session.execute(without).all()
    return rows


def _ordered(column: InstrumentedAttribute[Any], down: bool) -> list[ColumnElement[Any]]:
    columns = [column] if column is SearchRow.id else [column, SearchRow.id]
    return [c.desc() if down else c.asc() for c in columns]


def _filtered(session: Session, query: Select[Any], where: SearchFilter) -> Select[Any]:
    """The query for these searches. A filter that leaves few is asked first, all others row by row."""
    few: ColumnElement[bool] | None = None
    equal = {
        SearchRow.model_name: where.model,
        SearchRow.profile: where.profile,
        SearchRow.status: where.status,
        SearchRow.author: where.author,
        SearchRow.team: where.team,
    }
    for column, wanted in equal.items():
        if wanted is None:
            continue
        ids = by_author(wanted) if column is SearchRow.author else select(SearchRow.id).where(column == wanted)
        if few is None and _is_few(session, ids):
            few = SearchRow.id.in_(ids)
        else:
            # Concatenated, the column is no longer one of an index: the sorted index is walked instead.
            query = query.where(column + "" == wanted)
    if where.tag is not None:
        tagged = select(TagRow.search_id).where(TagRow.tag == where.tag)
        if few is None and _is_few(session, tagged):
            few = SearchRow.id.in_(tagged)
        else:
            query = query.where(tagged.where(TagRow.search_id == SearchRow.id).exists())
    if few is not None:
        query = query.where(few)
    if where.created_after is not None:
        query = query.where(
            SearchRow.created_at >= where.created_after, SearchRow.id >= first_id_at(where.created_after)
        )
    if where.created_before is not None:
        later = where.created_before + timedelta(milliseconds=1)
        query = query.where(SearchRow.created_at < where.created_before, SearchRow.id < first_id_at(later))
    return query


def _is_few(session: Session, ids: Select[Any]) -> bool:
    limited = ids.limit(MAX_SORTED_IN_MEMORY + 1).subquery()
    return (session.scalar(select(func.count()).select_from(limited)) or 0) <= MAX_SORTED_IN_MEMORY
