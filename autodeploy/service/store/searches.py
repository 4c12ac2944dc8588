"""The searches: insert, read, list, annotate, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Text, bindparam, cast, delete, func, insert, literal, literal_column, select, union_all, update

from autodeploy.service.store.base import Repository
from autodeploy.service.store.plan_rows import Plans, StoredSearch, plan_rows, result_columns
from autodeploy.service.store.tables import (
    CONTENT,
    CONTENT_DIGITS,
    OVERLAYS_AT,
    QUEUED,
    PlanRow,
    SearchRow,
    TagRow,
)
from autodeploy.specs.planset import STATUSES
from autodeploy.specs.resources import iso

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.orm import Session

    from autodeploy.specs.planset import PlanSet


REUSABLE = ("optimal", "feasible", "infeasible")
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
STATUSES_OF = select(SearchRow.id, SearchRow.status).where(SearchRow.id.in_(bindparam("search_ids", expanding=True)))
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


class Searches(Repository):
    """Repository of searches inside one session."""

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
        """Team of a search."""
        return self.session.scalar(TEAM, {"search_id": search_id})

    def whose_status(self, search_id: str) -> tuple[str, str] | None:
        """Team and status of a search."""
        row = self.session.execute(WHOSE_STATUS, {"search_id": search_id}).one_or_none()
        return None if row is None else (row.team, row.status)

    def statuses(self, search_ids: Sequence[str]) -> dict[str, str]:
        """The status of each of these searches that is there."""
        return {
            search_id: status for search_id, status in self.session.execute(STATUSES_OF, {"search_ids": search_ids})
        }

    def engine_version(self, search_id: str) -> str | None:
        """Engine version of a search."""
        return self.session.scalar(ENGINE, {"search_id": search_id})

    def lock(self, search_id: str) -> SearchRow | None:
        """The search, and nobody else changes it in this transaction."""
        return self.session.scalar(select(SearchRow).where(SearchRow.id == search_id).with_for_update())

    def count_by_status(self) -> dict[str, int]:
        """Number of searches of each status: one look into the index for each."""
        looks = [
            select(literal(each), func.count()).select_from(SearchRow).where(indexed_status(self.session) == each)
            for each in STATUSES
        ]
        return {status: count for status, count in self.session.execute(union_all(*looks)) if count}

    def oldest_queued_at(self) -> datetime | None:
        """Moment at which the search was asked for that has waited longest; None where none waits."""
        oldest: datetime | None = self.session.scalar(oldest_queued(SearchRow.created_at).limit(1))
        return oldest

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


def oldest_queued(*columns: Any) -> Select[Any]:
    """These columns of all searches that wait, the oldest first."""
    return select(*columns).where(QUEUED).order_by(SearchRow.id)


def indexed_status(session: Session) -> ColumnElement[str]:
    """The status, as the database has an index of it."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    return SearchRow.status + literal_column("''") if is_sqlite else SearchRow.status.expression


def _reusable(what: Any, spec_hash: str, profile_hash: str, engine_version: str, team: str | None) -> Select[Any]:
    query = (
        select(what)
        .where(
            literal_column(CONTENT) == spec_hash[:CONTENT_DIGITS],
            SearchRow.spec_hash + ""
            == spec_hash,  # concatenated: SQLite would put the value into the digits' condition
            SearchRow.profile_hash == profile_hash,
            SearchRow.engine_version == engine_version,
            SearchRow.status.in_(REUSABLE),
            SearchRow.reproducible.is_(True),
        )
        .order_by((SearchRow.id + "").desc())  # concatenated: the id's own index is not walked for it
        .limit(1)
    )
    return query if team is None else query.where(SearchRow.team == team)
