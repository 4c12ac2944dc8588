"""how searches were lost, and sessions of browsers that the server can end"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("crashes", "losses"):
        op.add_column("searches", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=48), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_sessions_key_id_api_keys"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_key_id"), "sessions", ["key_id"])


def downgrade() -> None:
    op.drop_table("sessions")
    for name in ("losses", "crashes"):
        op.drop_column("searches", name)
