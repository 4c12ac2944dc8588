"""indexes that take half the room and serve every filter, and keys that expire"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SORTED_BY = (
    *("num_npus", "seq_length", "global_batch_size"),
    *("best_step_time_s", "best_tokens_per_s_per_npu", "best_mfu", "gap"),
)
LISTED_BY = ("team", "status", "profile", "cluster", "model_name", "author", "id", "created_at", *SORTED_BY)
LANE = (
    "(principal || ' ' || origin || ' ' || CASE WHEN coalesce(expected_s, 30.0) < 1.0 THEN 'a'"
    " WHEN coalesce(expected_s, 30.0) < 2.0 THEN 'b' WHEN coalesce(expected_s, 30.0) < 4.0 THEN 'c'"
    " WHEN coalesce(expected_s, 30.0) < 8.0 THEN 'd' WHEN coalesce(expected_s, 30.0) < 15.0 THEN 'e'"
    " WHEN coalesce(expected_s, 30.0) < 30.0 THEN 'f' WHEN coalesce(expected_s, 30.0) < 60.0 THEN 'g'"
    " WHEN coalesce(expected_s, 30.0) < 120.0 THEN 'h' WHEN coalesce(expected_s, 30.0) < 240.0 THEN 'i'"
    " WHEN coalesce(expected_s, 30.0) < 480.0 THEN 'j' WHEN coalesce(expected_s, 30.0) < 960.0 THEN 'k'"
    " ELSE 'z' END || ' ' || engine_version)"
)
BEFORE = {
    "ix_searches_created_at": ("created_at",),
    "ix_searches_status_id": ("status", "id"),
    "ix_searches_model_name_id": ("model_name", "id"),
    "ix_searches_profile_id": ("profile", "id"),
    "ix_searches_cluster_id": ("cluster", "id"),
    **{f"ix_searches_{name}_id": (name, "id") for name in ("team", "principal", "batch_id", *SORTED_BY)},
    "ix_searches_content": ("spec_hash", "profile_hash", "engine_version", "status"),
}
AFTER = {
    "ix_searches_listed": LISTED_BY,
    **{f"ix_searches_{name}": (sa.text(f"({name} || '')"),) for name in ("profile", "model_name", "author")},
    **{f"ix_searches_{name}_created_at": (name, "created_at") for name in SORTED_BY},
    "ix_searches_content": (sa.text("substr(spec_hash, 1, 8)"),),
    "ix_searches_finished_at": ("finished_at",),
}
PARTIAL = {
    "ix_searches_batch_id": (("batch_id",), "batch_id IS NOT NULL"),
    "ix_searches_queued_id": (("id",), "status = 'queued'"),
    "ix_searches_queued_lane": ((sa.text(LANE), "id"), "status = 'queued'"),
    "ix_searches_queued_principal": (("principal",), "status = 'queued'"),
    "ix_searches_running": (("principal",), "status = 'running'"),
}


def _status_index() -> tuple[str, str, list[sa.TextClause | str]]:
    if op.get_bind().dialect.name == "sqlite":
        return "ix_searches_status_word", "searches", [sa.text("(status || '')")]
    return "ix_searches_status", "searches", ["status"]


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    for name in BEFORE:
        op.drop_index(name, table_name="searches")
    for name, columns in AFTER.items():
        op.create_index(name, "searches", list(columns))
    for name, (columns, condition) in PARTIAL.items():
        where = sa.text(condition)
        op.create_index(name, "searches", list(columns), postgresql_where=where, sqlite_where=where)
    op.create_index(*_status_index())
    op.create_index("ix_audit_listed", "audit", ["action", "author", "team", "id"])


def downgrade() -> None:
    op.drop_column("api_keys", "expires_at")
    op.drop_index("ix_audit_listed", table_name="audit")
    op.drop_index(_status_index()[0], table_name="searches")
    for name in (*PARTIAL, *AFTER):
        op.drop_index(name, table_name="searches")
    for name, columns in BEFORE.items():
        op.create_index(name, "searches", list(columns))
