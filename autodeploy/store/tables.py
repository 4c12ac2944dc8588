"""The tables. Whatever is filtered or sorted is a column; documents are JSON beside it."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - SQLAlchemy reads the annotation while the program runs
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from autodeploy.store import key_tables as key_tables  # whoever knows one table knows all
from autodeploy.store import run_tables as run_tables
from autodeploy.store import service_tables as service_tables
from autodeploy.store.base import Base as Base
from autodeploy.store.base import UtcDateTime as UtcDateTime
from autodeploy.store.key_tables import DEFAULT_TEAM

STATUSES = ("queued", "running", "optimal", "feasible", "infeasible", "cancelled", "failed")


# A list sorted by one of these walks its index.
SORTED_BY = (
    *("num_npus", "seq_length", "global_batch_size"),
    *("best_step_time_s", "best_tokens_per_s_per_npu", "best_mfu", "gap"),
)


class SearchRow(Base):
    """One search. It is also the job: `status`, `owner` and `heartbeat_at` are its queue."""

    __tablename__ = "searches"
    __table_args__ = (
        CheckConstraint("status IN ('" + "', '".join(STATUSES) + "')", name="status"),
        CheckConstraint("attempts >= 0", name="attempts"),
        Index("ix_searches_status_id", "status", "id"),
        Index("ix_searches_model_name_id", "model_name", "id"),
        Index("ix_searches_profile_id", "profile", "id"),
        Index("ix_searches_cluster_id", "cluster", "id"),
        *(Index(f"ix_searches_{name}_id", name, "id") for name in ("team", "principal", "batch_id")),
        *(Index(f"ix_searches_{name}_id", name, "id") for name in SORTED_BY),
        Index("ix_searches_content", "spec_hash", "profile_hash", "engine_version", "status"),
    )

    id: Mapped[str] = mapped_column(String(48), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
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
