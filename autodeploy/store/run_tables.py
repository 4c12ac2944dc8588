"""The tables of measurements: runs of plans, the overlays fitted to them, and what these say of stored plans."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - SQLAlchemy reads the annotation while the program runs
from typing import Any

from sqlalchemy import ForeignKeyConstraint, Index, String, Text, UniqueConstraint, func, select, true
from sqlalchemy.orm import Mapped, mapped_column

from autodeploy.store.base import Base
from autodeploy.store.key_tables import DEFAULT_TEAM


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
    """The newest overlay of a cluster: what later searches on it start from."""

    __tablename__ = "cluster_overlays"

    cluster: Mapped[str] = mapped_column(String(200), primary_key=True)
    profile: Mapped[str] = mapped_column(String(200), primary_key=True)
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
