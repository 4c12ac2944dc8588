"""The table of API keys."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - SQLAlchemy reads the annotation while the program runs

from sqlalchemy import CheckConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from autodeploy.store.base import Base

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
    revoked_at: Mapped[datetime | None]
