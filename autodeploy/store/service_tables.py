"""The tables of the service around the searches: live workers, who did what, webhooks, batches."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - SQLAlchemy reads the annotation while the program runs
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from autodeploy.store.base import Base

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


class AuditRow(Base):
    """Who changed what: the key, its name and team then, the address it came from, and how it was answered."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_object_id_id", "object_id", "id"),
        Index("ix_audit_key_id_id", "key_id", "id"),
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
