"""searches, plans, events"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "searches",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("model_name", sa.String(length=200), nullable=False),
        sa.Column("profile", sa.String(length=200), nullable=False),
        sa.Column("num_npus", sa.Integer(), nullable=True),
        sa.Column("seq_length", sa.Integer(), nullable=False),
        sa.Column("global_batch_size", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("spec_hash", sa.String(length=64), nullable=False),
        sa.Column("profile_hash", sa.String(length=64), nullable=False),
        sa.Column("engine_version", sa.String(length=64), nullable=False),
        sa.Column("cached_from", sa.String(length=48), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("num_plans", sa.Integer(), nullable=False),
        sa.Column("best_plan_id", sa.String(length=48), nullable=True),
        sa.Column("best_step_time_s", sa.Double(), nullable=True),
        sa.Column("best_tokens_per_s_per_npu", sa.Double(), nullable=True),
        sa.Column("best_mfu", sa.Double(), nullable=True),
        sa.Column("gap", sa.Double(), nullable=True),
        sa.Column("reproducible", sa.Boolean(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'optimal', 'feasible', 'infeasible', 'cancelled', 'failed')",
            name=op.f("ck_searches_status"),
        ),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_searches_attempts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_searches")),
    )
    op.create_index("ix_searches_content", "searches", ["spec_hash", "profile_hash", "engine_version", "status"])
    op.create_index("ix_searches_created_at", "searches", ["created_at"])
    op.create_index("ix_searches_model_name_id", "searches", ["model_name", "id"])
    op.create_index("ix_searches_profile_id", "searches", ["profile", "id"])
    op.create_index("ix_searches_status_id", "searches", ["status", "id"])

    op.create_table(
        "events",
        sa.Column("search_id", sa.String(length=48), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["search_id"], ["searches.id"], name=op.f("fk_events_search_id_searches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("search_id", "seq", name=op.f("pk_events")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("principal", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("search_id", sa.String(length=48), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["search_id"], ["searches.id"], name=op.f("fk_idempotency_keys_search_id_searches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("principal", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_index("ix_idempotency_keys_search_id", "idempotency_keys", ["search_id"])

    op.create_table(
        "plans",
        sa.Column("search_id", sa.String(length=48), nullable=False),
        sa.Column("plan_id", sa.String(length=48), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("step_time_s", sa.Double(), nullable=False),
        sa.Column("tokens_per_s_per_npu", sa.Double(), nullable=False),
        sa.Column("mfu", sa.Double(), nullable=False),
        sa.Column("peak_memory_gib", sa.Double(), nullable=False),
        sa.Column("tp", sa.Integer(), nullable=False),
        sa.Column("pp", sa.Integer(), nullable=False),
        sa.Column("vpp", sa.Integer(), nullable=False),
        sa.Column("dp", sa.Integer(), nullable=True),
        sa.Column("cp", sa.Integer(), nullable=False),
        sa.Column("ep", sa.Integer(), nullable=False),
        sa.Column("micro_batch_size", sa.Integer(), nullable=False),
        sa.Column("schedule", sa.String(length=32), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["search_id"], ["searches.id"], name=op.f("fk_plans_search_id_searches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("search_id", "plan_id", name=op.f("pk_plans")),
    )
    op.create_index("ix_plans_plan_id_search_id", "plans", ["plan_id", "search_id"])

    op.create_table(
        "search_tags",
        sa.Column("search_id", sa.String(length=48), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["search_id"], ["searches.id"], name=op.f("fk_search_tags_search_id_searches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("search_id", "tag", name=op.f("pk_search_tags")),
    )
    op.create_index("ix_search_tags_tag_search_id", "search_tags", ["tag", "search_id"])


def downgrade() -> None:

    op.drop_table("search_tags")

    op.drop_table("plans")

    op.drop_table("idempotency_keys")
    op.drop_table("events")

    op.drop_table("searches")
