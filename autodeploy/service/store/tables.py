"""The tables. Whatever is filtered or sorted is a column; documents are JSON beside it."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - SQLAlchemy reads the annotation while the program runs
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    String,
    Text,
    TextClause,
    UniqueConstraint,
    func,
    select,
    text,
    true,
)
from sqlalchemy.orm import Mapped, mapped_column

from autodeploy.service.store.base import Base
from autodeploy.specs.planset import STATUSES

# The tables of API keys and of browsers that logged in with one.
DEFAULT_TEAM = "default"
SCOPES = ("read", "write", "calibrate", "admin")


class ApiKeyRow(Base):
    """An API key: the hash of what its holder sends, never the key itself. A revoked key stays, for the record."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("scope IN ('" + "', '".join(SCOPES) + "')", name="scope"),
        Index("uq_api_keys_key_hash", "key_hash", unique=True),
    )

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    key_hash: Mapped[str] = mapped_column(String(64))
    scope: Mapped[str] = mapped_column(String(16))
    team: Mapped[str] = mapped_column(String(64), default=DEFAULT_TEAM, server_default=DEFAULT_TEAM)
    max_searches: Mapped[int | None]
    max_running: Mapped[int | None]
    max_time_limit_s: Mapped[float | None]
    max_spec_bytes: Mapped[int | None]
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class SessionRow(Base):
    """A browser's session: the hash of the token in its cookie. It ends when its row is gone, or by age."""

    __tablename__ = "sessions"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]


# The tables of measurements.
class RunRow(Base):
    """One measurement of a plan or, for a benchmark, of its cluster.

    It keeps the spec with the strategy, so that it outlives the search that found the plan. `counts`: the cluster's
    overlay is fitted to it.
    """

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("plan_id", "content_hash"),
        Index("ix_runs_plan_id_id", "plan_id", "id"),
        Index("ix_runs_cluster_id", "cluster", "id"),
    )

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    created_at: Mapped[datetime]
    plan_id: Mapped[str] = mapped_column(String(48))
    content_hash: Mapped[str] = mapped_column(String(64))
    cluster: Mapped[str] = mapped_column(String(200))
    profile: Mapped[str] = mapped_column(String(200))
    model_name: Mapped[str] = mapped_column(String(200))
    num_npus: Mapped[int]
    source: Mapped[str] = mapped_column(String(32))

    step_time_s: Mapped[float | None]
    step_time_spread: Mapped[float | None]
    tokens_per_s_per_npu: Mapped[float | None]
    peak_memory_gib: Mapped[float | None]
    predicted_step_time_s: Mapped[float]
    predicted_low_s: Mapped[float]
    predicted_high_s: Mapped[float]
    predicted_memory_gib: Mapped[float]
    profile_hash: Mapped[str] = mapped_column(String(64))
    engine_version: Mapped[str] = mapped_column(String(64))

    spec: Mapped[dict[str, Any]]
    plan: Mapped[dict[str, Any]]
    measured: Mapped[dict[str, Any]]
    note: Mapped[str] = mapped_column(Text, default="")
    principal: Mapped[str] = mapped_column(String(64), default="", server_default="")
    author: Mapped[str] = mapped_column(String(100), default="", server_default="")
    team: Mapped[str] = mapped_column(String(64), default=DEFAULT_TEAM, server_default=DEFAULT_TEAM)
    counts: Mapped[bool] = mapped_column(default=True, server_default=true())


class OverlayRow(Base):
    """The newest overlay of a cluster, by the runs of one team: what later searches of that team on it start from."""

    __tablename__ = "cluster_overlays"

    cluster: Mapped[str] = mapped_column(String(200), primary_key=True)
    profile: Mapped[str] = mapped_column(String(200), primary_key=True)
    team: Mapped[str] = mapped_column(String(64), primary_key=True, default=DEFAULT_TEAM, server_default=DEFAULT_TEAM)
    updated_at: Mapped[datetime]
    num_runs: Mapped[int]
    changed_by: Mapped[str] = mapped_column(String(100), default="", server_default="")
    overlay: Mapped[dict[str, Any]]
    report: Mapped[dict[str, Any]]


class ReestimateRow(Base):
    """A stored plan under its cluster's overlay: its time, and its place among the plans of its search."""

    __tablename__ = "plan_reestimates"
    __table_args__ = (
        ForeignKeyConstraint(
            ["search_id", "plan_id"],
            ["plans.search_id", "plans.plan_id"],
            name="fk_plan_reestimates_plan",
            ondelete="CASCADE",
        ),
    )

    search_id: Mapped[str] = mapped_column(String(48), primary_key=True)
    plan_id: Mapped[str] = mapped_column(String(48), primary_key=True)
    profile_hash: Mapped[str] = mapped_column(String(64))
    rank: Mapped[int]
    step_time_s: Mapped[float]
    tokens_per_s_per_npu: Mapped[float]


# What the overlays of all clusters are at: as long as both are the same, no overlay has come, changed or gone.
OVERLAYS_AT: tuple[Any, ...] = (
    select(func.count()).select_from(OverlayRow).scalar_subquery().label("num_overlays"),
    select(func.max(OverlayRow.updated_at)).scalar_subquery().label("overlays_at"),
)


# The tables of the service around the searches.
DELIVERY_STATUSES = ("waiting", "due", "delivered", "failed")


class WorkerRow(Base):
    """A process that takes searches from the queue. `seen_at`: when it last looked there and was answered."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    slots: Mapped[int]
    busy: Mapped[int]
    rss_bytes: Mapped[int] = mapped_column(BigInteger)
    engine_version: Mapped[str] = mapped_column(String(64))


# All that its list filters by.
AUDITED_BY = ("action", "author", "team", "id")


class AuditRow(Base):
    """A change by a caller: the key, its name and team then, the address it came from, and how it was answered."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_object_id_id", "object_id", "id"),
        Index("ix_audit_key_id_id", "key_id", "id"),
        Index("ix_audit_listed", *AUDITED_BY),
    )

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    created_at: Mapped[datetime]
    key_id: Mapped[str] = mapped_column(String(64))
    author: Mapped[str] = mapped_column(String(100))
    team: Mapped[str] = mapped_column(String(64))
    client: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64))
    object_id: Mapped[str] = mapped_column(String(200))
    status: Mapped[int]
    detail: Mapped[dict[str, Any] | None]


class DeliveryRow(Base):
    """A webhook of a search: `waiting` for its end, `due` from `next_at` on, then `delivered` or `failed`."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        CheckConstraint("status IN ('" + "', '".join(DELIVERY_STATUSES) + "')", name="status"),
        Index("ix_webhook_deliveries_status_next_at", "status", "next_at"),
    )

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    search_id: Mapped[str] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"), index=True)
    url: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16), default="waiting")
    created_at: Mapped[datetime]
    next_at: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(default=0)
    last_error: Mapped[str | None] = mapped_column(Text)


class BatchRow(Base):
    """Searches that were asked for together; `document` is what was asked."""

    __tablename__ = "batches"

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    created_at: Mapped[datetime]
    principal: Mapped[str] = mapped_column(String(64))
    author: Mapped[str] = mapped_column(String(100))
    team: Mapped[str] = mapped_column(String(64))
    document: Mapped[dict[str, Any]]


pass  # whoever knows one table knows all


# A list sorted by one of these walks its index; of figures, searches without one are not in it.
WHOLE_NUMBERS = ("num_npus", "seq_length", "global_batch_size")
FIGURES = ("best_step_time_s", "best_tokens_per_s_per_npu", "best_mfu", "gap")
SORTED_BY = (*WHOLE_NUMBERS, *FIGURES)
# All that a list filters and sorts by, so that any combination is answered without the rows, which are forty times as
# wide.
LISTED_BY = ("team", "status", "profile", "model_name", "author", "id", "created_at", *SORTED_BY)
# Equal specs have equal first digits, and hardly any others do. PostgreSQL keeps up to seven in eight bytes.
CONTENT_DIGITS = 7
CONTENT = f"substr(spec_hash, 1, {CONTENT_DIGITS})"
# Conditions of partial indexes, word for word as queries have to say them.
QUEUED, RUNNING = text("status = 'queued'"), text("status = 'running'")
SHORT_S = 30.0
"""A slot is kept for searches that are expected to take less."""
LENGTHS_S = (1.0, 2.0, 4.0, 8.0, 15.0, SHORT_S, 60.0, 120.0, 240.0, 480.0, 960.0)
"""Searches between two of these count as equally long: an expectation is no better than that."""
# Searches that wait and are alike to the order of the queue: of one key, origin, length and version. The letters are
# places among LENGTHS_S; None counts as a length of SHORT_S.
_LETTERS = " ".join(
    f"WHEN coalesce(expected_s, {SHORT_S}) < {bound_s} THEN '{chr(97 + place)}'"
    for place, bound_s in enumerate(LENGTHS_S)
)
LANE = f"(principal || ' ' || origin || ' ' || CASE {_LETTERS} ELSE 'z' END || ' ' || engine_version)"


def _partial(name: str, *columns: str | TextClause, where: TextClause) -> tuple[Index]:
    """An index of the rows for which that holds."""
    return (Index(name, *columns, postgresql_where=where, sqlite_where=where),)


class SearchRow(Base):
    """One search. It is also the job: `status`, `owner` and `heartbeat_at` are its queue."""

    __tablename__ = "searches"
    __table_args__ = (
        CheckConstraint("status IN ('" + "', '".join(STATUSES) + "')", name="status"),
        CheckConstraint("attempts >= 0", name="attempts"),
        Index("ix_searches_listed", *LISTED_BY),
        # PostgreSQL counts along the column alone; SQLite would take it for every status, however common.
        Index("ix_searches_status", "status").ddl_if("postgresql"),
        Index("ix_searches_status_word", text("(status || '')")).ddl_if("sqlite"),
        # Of rare words. Concatenated, so that nobody takes it for common ones, whose rows lie everywhere.
        *(
            Index(f"ix_searches_{name}", text(f"({name} || '')"))
            for name in ("profile", "model_name", "author", "cluster")
        ),
        *(Index(f"ix_searches_{name}_created_at", name, "created_at") for name in WHOLE_NUMBERS),
        *(
            index
            for name in FIGURES
            for index in _partial(
                f"ix_searches_{name}_created_at", name, "created_at", where=text(f"{name} IS NOT NULL")
            )
        ),
        Index("ix_searches_content", text(CONTENT)),
        Index("ix_searches_finished_at", "finished_at"),
        *_partial("ix_searches_batch_id", "batch_id", where=text("batch_id IS NOT NULL")),
        *_partial("ix_searches_queued_id", "id", where=QUEUED),
        *_partial("ix_searches_queued_lane", text(LANE), "id", where=QUEUED),
        *_partial("ix_searches_queued_principal", "principal", where=QUEUED),
        *_partial("ix_searches_running", "principal", where=RUNNING),
    )

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    status: Mapped[str] = mapped_column(String(16))

    model_name: Mapped[str] = mapped_column(String(200))
    profile: Mapped[str] = mapped_column(String(200))
    cluster: Mapped[str] = mapped_column(String(200), server_default="")
    num_npus: Mapped[int | None]
    seq_length: Mapped[int]
    global_batch_size: Mapped[int]
    spec: Mapped[dict[str, Any]]
    spec_hash: Mapped[str] = mapped_column(String(64))
    profile_hash: Mapped[str] = mapped_column(String(64))
    engine_version: Mapped[str] = mapped_column(String(64))
    cached_from: Mapped[str | None] = mapped_column(String(48))

    result: Mapped[dict[str, Any] | None]
    error: Mapped[str | None] = mapped_column(Text)
    num_plans: Mapped[int] = mapped_column(default=0)
    best_plan_id: Mapped[str | None] = mapped_column(String(48))
    best_step_time_s: Mapped[float | None]
    best_tokens_per_s_per_npu: Mapped[float | None]
    best_mfu: Mapped[float | None]
    gap: Mapped[float | None]
    reproducible: Mapped[bool | None]

    note: Mapped[str] = mapped_column(Text, default="")
    note_by: Mapped[str] = mapped_column(String(100), default="", server_default="")
    principal: Mapped[str] = mapped_column(String(64), default="", server_default="")
    author: Mapped[str] = mapped_column(String(100), default="", server_default="")
    team: Mapped[str] = mapped_column(String(64), default=DEFAULT_TEAM, server_default=DEFAULT_TEAM)
    origin: Mapped[str] = mapped_column(String(8), default="server", server_default="server")
    expected_s: Mapped[float | None]
    batch_id: Mapped[str | None] = mapped_column(String(48))

    owner: Mapped[str | None] = mapped_column(String(200))
    heartbeat_at: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(default=0)
    crashes: Mapped[int] = mapped_column(default=0, server_default="0")
    losses: Mapped[int] = mapped_column(default=0, server_default="0")
    cancel_requested: Mapped[bool] = mapped_column(default=False)


class TagRow(Base):
    """A tag of a search."""

    __tablename__ = "search_tags"
    __table_args__ = (Index("ix_search_tags_tag_search_id", "tag", "search_id"),)

    search_id: Mapped[str] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(64), primary_key=True)


class PlanRow(Base):
    """One plan of a search. Equal searches have plans with equal ids, so the key has both."""

    __tablename__ = "plans"
    __table_args__ = (Index("ix_plans_plan_id_search_id", "plan_id", "search_id"),)

    search_id: Mapped[str] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"), primary_key=True)
    plan_id: Mapped[str] = mapped_column(String(48), primary_key=True)
    position: Mapped[int]
    rank: Mapped[int]
    step_time_s: Mapped[float]
    tokens_per_s_per_npu: Mapped[float]
    mfu: Mapped[float]
    peak_memory_gib: Mapped[float]
    tp: Mapped[int]
    pp: Mapped[int]
    vpp: Mapped[int]
    dp: Mapped[int | None]
    cp: Mapped[int]
    ep: Mapped[int]
    micro_batch_size: Mapped[int]
    schedule: Mapped[str] = mapped_column(String(32))
    document: Mapped[dict[str, Any]]


class EventRow(Base):
    """Something that happened to a search: a change of status, or progress. `seq` counts from 1 in each search."""

    __tablename__ = "events"

    search_id: Mapped[str] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    created_at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(32))
    data: Mapped[dict[str, Any]]


class IdempotencyRow(Base):
    """A caller's key and the search it made."""

    __tablename__ = "idempotency_keys"

    principal: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_hash: Mapped[str] = mapped_column(String(64))
    search_id: Mapped[str] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(index=True)


# Once, and not by the first query of each process that is forked from one that knows the tables.
Base.registry.configure()
