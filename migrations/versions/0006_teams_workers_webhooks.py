"""teams and authors, an audit log, live workers, webhooks, batches of searches"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SCOPES = "scope IN ('read', 'write', 'calibrate', 'admin')"
OLD_SCOPES = "scope IN ('read', 'write', 'admin')"


def _text(name: str, length: int, default: str = "") -> sa.Column[str]:
    return sa.Column(name, sa.String(length=length), nullable=False, server_default=default)


def _keys(scopes: str, scope_length: int, *, down: bool = False) -> None:
    # As a batch: SQLite changes no constraint in place; nothing refers to the table of keys.
    with op.batch_alter_table("api_keys") as keys:
        keys.drop_constraint(op.f("ck_api_keys_scope"), type_="check")
        keys.alter_column("scope", type_=sa.String(length=scope_length), existing_nullable=False)
        if down:
            for name in ("team", "max_running", "max_time_limit_s"):
                keys.drop_column(name)
        else:
            keys.add_column(_text("team", 64, "default"))
            keys.add_column(sa.Column("max_running", sa.Integer(), nullable=True))
            keys.add_column(sa.Column("max_time_limit_s", sa.Double(), nullable=True))
        keys.create_check_constraint(op.f("ck_api_keys_scope"), scopes)


def upgrade() -> None:
    _keys(SCOPES, 16)

    # What is there belongs to the default team.
    op.add_column("searches", _text("team", 64, "default"))
    op.add_column("searches", _text("author", 100))
    op.add_column("searches", _text("note_by", 100))
    op.add_column("searches", _text("origin", 8, "server"))
    op.add_column("searches", sa.Column("expected_s", sa.Double(), nullable=True))
    op.add_column("searches", sa.Column("batch_id", sa.String(length=48), nullable=True))
    op.create_index("ix_searches_team_id", "searches", ["team", "id"])
    op.create_index("ix_searches_principal_id", "searches", ["principal", "id"])
    op.create_index("ix_searches_batch_id_id", "searches", ["batch_id", "id"])

    op.add_column("runs", _text("principal", 64))
    op.add_column("runs", _text("author", 100))
    op.add_column("runs", _text("team", 64, "default"))
    op.add_column("runs", sa.Column("counts", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("cluster_overlays", _text("changed_by", 100))

    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("busy", sa.Integer(), nullable=False),
        sa.Column("rss_bytes", sa.BigInteger(), nullable=False),
        sa.Column("engine_version", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("team", sa.String(length=64), nullable=False),
        sa.Column("client", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("object_id", sa.String(length=200), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("detail", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_object_id_id", "audit", ["object_id", "id"])
    op.create_index("ix_audit_key_id_id", "audit", ["key_id", "id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("search_id", sa.String(length=48), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["search_id"],
            ["searches.id"],
            name=op.f("fk_webhook_deliveries_search_id_searches"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.CheckConstraint(
            "status IN ('waiting', 'due', 'delivered', 'failed')", name=op.f("ck_webhook_deliveries_status")
        ),
    )
    op.create_index("ix_webhook_deliveries_search_id", "webhook_deliveries", ["search_id"])
    op.create_index("ix_webhook_deliveries_status_next_at", "webhook_deliveries", ["status", "next_at"])
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("principal", sa.String(length=64), nullable=False),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("team", sa.String(length=64), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )


def downgrade() -> None:
    for table in ("batches", "webhook_deliveries", "audit", "workers"):
        op.drop_table(table)
    op.drop_column("cluster_overlays", "changed_by")
    for name in ("counts", "team", "author", "principal"):
        op.drop_column("runs", name)
    for name in ("batch_id", "principal", "team"):
        op.drop_index(f"ix_searches_{name}_id", table_name="searches")
    for name in ("batch_id", "expected_s", "origin", "note_by", "author", "team"):
        op.drop_column("searches", name)
    op.execute(sa.text("UPDATE api_keys SET scope = 'write' WHERE scope = 'calibrate'"))
    _keys(OLD_SCOPES, 8, down=True)
