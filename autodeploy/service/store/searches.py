"""The searches: insert, read, list, annotate, delete."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Text, bindparam, cast, delete, func, insert, literal, select, tuple_, update

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.service.store.base import first_id_at, iso
from autodeploy.service.store.plan_rows import Plans, StoredSearch, plan_rows, result_columns
from autodeploy.service.store.tables import OVERLAYS_AT, ApiKeyRow, PlanRow, SearchRow, TagRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.orm import InstrumentedAttribute, Session

    from autodeploy.specs.planset import PlanSet


REUSABLE = ("optimal", "feasible", "infeasible")
# So many searches of a tag are looked up one by one.
MAX_TAGGED_LOOKUPS = 1000
# A list never reads the documents of the searches it lists.
LIST_COLUMNS: tuple[Any, ...] = (
    SearchRow.id,
    SearchRow.created_at,
    SearchRow.finished_at,
    SearchRow.status,
    SearchRow.model_name,
    SearchRow.profile,
    SearchRow.num_npus,
    SearchRow.seq_length,
    SearchRow.global_batch_size,
    SearchRow.num_plans,
    SearchRow.best_plan_id,
    SearchRow.best_step_time_s,
    SearchRow.best_tokens_per_s_per_npu,
    SearchRow.best_mfu,
    SearchRow.gap,
    SearchRow.cached_from,
    SearchRow.note,
    SearchRow.author,
    SearchRow.team,
    SearchRow.profile_hash,
    SearchRow.spec_hash,
    *OVERLAYS_AT,
)
# A search with its documents as text: first the fields of StoredSearch in their order, then what else is shown.
STORED_COLUMNS: tuple[Any, ...] = (
    SearchRow.id,
    SearchRow.created_at,
    SearchRow.updated_at,
    SearchRow.status,
    SearchRow.error,
    SearchRow.spec_hash,
    SearchRow.profile_hash,
    SearchRow.engine_version,
    cast(SearchRow.spec, Text).label("spec"),
    cast(SearchRow.result, Text).label("result"),
    SearchRow.num_plans,
    SearchRow.cached_from,
    SearchRow.cancel_requested,
    SearchRow.expected_s,
    SearchRow.note,
    SearchRow.note_by,
    SearchRow.author,
    SearchRow.team,
    *OVERLAYS_AT,
)
NUM_STORED = 10
# What is asked of one search all the time, put together once.
_THIS = SearchRow.id == bindparam("search_id")
STORED = select(*STORED_COLUMNS).where(_THIS)
STATUS, TEAM = select(SearchRow.status).where(_THIS), select(SearchRow.team).where(_THIS)
WHOSE_STATUS = select(SearchRow.team, SearchRow.status).where(_THIS)
ENGINE = select(SearchRow.engine_version).where(_THIS)
STATUSES = select(SearchRow.id, SearchRow.status).where(SearchRow.id.in_(bindparam("search_ids", expanding=True)))
TAGS = (
    select(TagRow.search_id, TagRow.tag)
    .where(TagRow.search_id.in_(bindparam("search_ids", expanding=True)))
    .order_by(TagRow.tag)
)
# What a search that is answered from an equal one takes over.
RESULT_COLUMNS = (
    "num_npus",
    "status",
    "error",
    "num_plans",
    "best_plan_id",
    "best_step_time_s",
    "best_tokens_per_s_per_npu",
    "best_mfu",
    "gap",
    "reproducible",
)


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """Which searches a list names; None does not restrict. `author`: the name of the key that asked for it."""

    model: str | None = None
    profile: str | None = None
    status: str | None = None
    tag: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    author: str | None = None
    team: str | None = None


class Searches:
    """Repository of searches inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def add(self, row: SearchRow, tags: Iterable[str] = ()) -> None:
        """Inserts a search with its tags."""
        self.session.add(row)
        self.session.flush()
        self._add_tags(row.id, tags)

    def get(self, search_id: str) -> SearchRow | None:
        """The search with that id."""
        return self.session.get(SearchRow, search_id)

    def exists(self, search_id: str) -> bool:
        """Whether there is such a search."""
        return self.status(search_id) is not None

    def status(self, search_id: str) -> str | None:
        """The status alone, without reading the documents."""
        return self.session.scalar(STATUS, {"search_id": search_id})

    def team(self, search_id: str) -> str | None:
        """Whose search it is."""
        return self.session.scalar(TEAM, {"search_id": search_id})

    def whose_status(self, search_id: str) -> tuple[str, str] | None:
        """Whose search it is, and its status."""
        row = self.session.execute(WHOSE_STATUS, {"search_id": search_id}).one_or_none()
        return None if row is None else (row.team, row.status)

    def statuses(self, search_ids: Sequence[str]) -> dict[str, str]:
        """The status of each of these searches that is there."""
        return {search_id: status for search_id, status in self.session.execute(STATUSES, {"search_ids": search_ids})}

    def engine_version(self, search_id: str) -> str | None:
        """Which engine's search it is."""
        return self.session.scalar(ENGINE, {"search_id": search_id})

    def lock(self, search_id: str) -> SearchRow | None:
        """The search, and nobody else changes it in this transaction."""
        return self.session.scalar(select(SearchRow).where(SearchRow.id == search_id).with_for_update())

    def page(self, where: SearchFilter, *, limit: int, after: str | None = None) -> Sequence[Any]:
        """Up to `limit` rows of LIST_COLUMNS, newest first, that come after the search `after`."""
        few_tagged = where.tag is not None and self._is_few(select(TagRow.search_id).where(TagRow.tag == where.tag))
        query, search_id = _filtered(select(*LIST_COLUMNS), where, few_tagged=few_tagged)
        query = query.where(*self._of_whom(where))
        if after is not None:
            query = query.where(search_id < after)
        return self.session.execute(query.order_by(search_id.desc()).limit(limit)).all()

    def _is_few(self, ids: Select[Any]) -> bool:
        """Whether these are at most MAX_TAGGED_LOOKUPS searches; looks at no more than that."""
        limited = ids.limit(MAX_TAGGED_LOOKUPS + 1).subquery()
        return (self.session.scalar(select(func.count()).select_from(limited)) or 0) <= MAX_TAGGED_LOOKUPS

    def _of_whom(self, where: SearchFilter) -> list[ColumnElement[bool]]:
        """The conditions for team and author. Few are looked up; of many a page is full soon along another index."""
        conditions: list[ColumnElement[bool]] = []
        if where.author is not None:
            written = by_author(where.author)
            few = self._is_few(written)
            conditions.append(SearchRow.id.in_(written) if few else SearchRow.author + "" == where.author)
        if where.team is not None:
            others = (where.model, where.profile, where.status, where.tag, where.author)
            of_team = select(SearchRow.id).where(SearchRow.team == where.team)
            if not any(others):
                conditions.append(SearchRow.team == where.team)
            elif self._is_few(of_team):
                conditions.append(SearchRow.id.in_(of_team))
            else:
                # Concatenated, the column is no longer one of an index: the other filter's is walked.
                conditions.append(SearchRow.team + "" == where.team)
        return conditions

    def count_by_status(self) -> dict[str, int]:
        """How many searches have each status."""
        query = select(SearchRow.status, func.count()).group_by(SearchRow.status)
        return {status: count for status, count in self.session.execute(query)}

    def oldest_queued_at(self) -> datetime | None:
        """When the search was asked for that has waited longest; None where none waits."""
        return self.session.scalar(select(func.min(SearchRow.created_at)).where(SearchRow.status == "queued"))

    def clusters(self, search_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The cluster in the spec of each of these searches."""
        query = select(SearchRow.id, SearchRow.spec["cluster"]).where(SearchRow.id.in_(search_ids))
        return {search_id: cluster for search_id, cluster in self.session.execute(query)}

    def stored(self, search_id: str) -> tuple[StoredSearch, Any] | None:
        """The search with its documents as text, and the row of STORED_COLUMNS."""
        row = self.session.execute(STORED, {"search_id": search_id}).one_or_none()
        if row is None:
            return None
        plans = Plans(self.session).texts(search_id) if row.num_plans else ()
        values: dict[str, Any] = dict(zip(StoredSearch.__dataclass_fields__, (*row[:NUM_STORED], plans), strict=True))
        return StoredSearch(**values), row

    def is_planned(self, spec_hash: str, profile_hash: str, engine_version: str, *, team: str | None = None) -> bool:
        """Whether there is a `reusable` search."""
        return self.session.scalar(_reusable(SearchRow.id, spec_hash, profile_hash, engine_version, team)) is not None

    def reusable(
        self, spec_hash: str, profile_hash: str, engine_version: str, *, team: str | None = None
    ) -> SearchRow | None:
        """The newest finished search of the same content, if its result is reproducible."""
        row: SearchRow | None = self.session.scalar(_reusable(SearchRow, spec_hash, profile_hash, engine_version, team))
        return row

    def add_copy(self, row: SearchRow, of: SearchRow, tags: Iterable[str] = ()) -> None:
        """Inserts a search that has the result of another one; its plans are copied unread."""
        for name in RESULT_COLUMNS:
            setattr(row, name, getattr(of, name))
        assert of.result is not None, "only a search with a result is reusable"
        row.result = of.result | {"search": of.result["search"] | {"id": row.id, "created_at": iso(row.created_at)}}
        row.finished_at = row.created_at
        row.cached_from = of.cached_from or of.id
        self.add(row, tags)
        Plans(self.session).copy(of.id, to=row.id)

    def store_result(self, search_id: str, plan_set: PlanSet, *, now: datetime) -> None:
        """Writes the result and its plans; the search is then finished."""
        columns = result_columns(plan_set) | {
            "finished_at": now,
            "updated_at": now,
            "owner": None,
            "heartbeat_at": None,
        }
        self.change(search_id, columns)
        self.session.execute(delete(PlanRow).where(PlanRow.search_id == search_id))
        self.session.add_all(plan_rows(search_id, plan_set.plans))
        self.session.flush()

    def change(self, search_id: str, columns: Mapping[str, Any]) -> None:
        """Sets columns of one search."""
        self.session.execute(update(SearchRow).where(SearchRow.id == search_id).values(**columns))

    def delete(self, search_id: str) -> None:
        """Removes a search; its plans, events, tags and keys go with it."""
        self.session.execute(delete(SearchRow).where(SearchRow.id == search_id))

    def tags(self, search_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The tags of each of these searches, sorted."""
        tags_of: dict[str, list[str]] = {search_id: [] for search_id in search_ids}
        for search_id, tag in self.session.execute(TAGS, {"search_ids": search_ids}):
            tags_of[search_id].append(tag)
        return {search_id: tuple(tags) for search_id, tags in tags_of.items()}

    def set_tags(self, search_id: str, tags: Iterable[str]) -> None:
        """Replaces the tags."""
        self.session.execute(delete(TagRow).where(TagRow.search_id == search_id))
        self._add_tags(search_id, tags)

    def _add_tags(self, search_id: str, tags: Iterable[str]) -> None:
        rows = [{"search_id": search_id, "tag": tag} for tag in sorted(set(tags))]
        if rows:
            self.session.execute(insert(TagRow), rows)


def by_author(name: str) -> Select[Any]:
    """Ids of the searches that keys of that name asked for."""
    keys = select(ApiKeyRow.id).where(ApiKeyRow.name == name)
    return select(SearchRow.id).where(SearchRow.principal.in_(keys))


def _reusable(what: Any, spec_hash: str, profile_hash: str, engine_version: str, team: str | None) -> Select[Any]:
    query = (
        select(what)
        .where(
            SearchRow.spec_hash == spec_hash,
            SearchRow.profile_hash == profile_hash,
            SearchRow.engine_version == engine_version,
            SearchRow.status.in_(REUSABLE),
            SearchRow.reproducible.is_(True),
        )
        .order_by(SearchRow.id.desc())
        .limit(1)
    )
    return query if team is None else query.where(SearchRow.team == team)


def _filtered(
    query: Select[Any], where: SearchFilter, *, few_tagged: bool
) -> tuple[Select[Any], InstrumentedAttribute[str]]:
    """The query for these searches, and the column of their ids that its index is ordered by."""
    search_id = SearchRow.id
    equal = [
        column == value
        for column, value in (
            (SearchRow.model_name, where.model),
            (SearchRow.profile, where.profile),
            (SearchRow.status, where.status),
        )
        if value is not None
    ]
    if where.tag is not None and not equal:
        # The index of tags is the order of the list; only the rows that are shown are looked up.
        search_id = TagRow.search_id
        query = query.join_from(TagRow, SearchRow, TagRow.search_id == SearchRow.id).where(TagRow.tag == where.tag)
    elif where.tag is not None and few_tagged:
        equal.append(SearchRow.id.in_(select(TagRow.search_id).where(TagRow.tag == where.tag)))
    elif where.tag is not None:
        # Walks the list of the other filter and asks each row: many have the tag, so a page is full soon.
        tagged = select(TagRow.tag).where(TagRow.search_id == SearchRow.id, TagRow.tag == where.tag)
        equal.append(tagged.exists())
    query = query.where(*equal)
    # Ids sort by creation, so they bound the part of the list that is read.
    if where.created_after is not None:
        query = query.where(SearchRow.created_at >= where.created_after, search_id >= first_id_at(where.created_after))
    if where.created_before is not None:
        later = where.created_before + timedelta(milliseconds=1)
        query = query.where(SearchRow.created_at < where.created_before, search_id < first_id_at(later))
    return query, search_id


# The list of searches sorted by a column, whole history long, a page at a time along the column's index.
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
    query = _filtered_rows(session, select(*columns), where)
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


def _filtered_rows(session: Session, query: Select[Any], where: SearchFilter) -> Select[Any]:
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
