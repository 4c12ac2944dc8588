"""runs, cluster overlays, re-estimated plans"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not as a batch: SQLite would drop the old table, and every plan and event with it.
    # A search from before clusters had names is on the profile's.
    op.add_column("searches", sa.Column("cluster", sa.String(length=200), nullable=False, server_default=""))
    op.execute(sa.text("UPDATE searches SET cluster = profile"))
    op.create_index("ix_searches_cluster_id", "searches", ["cluster", "id"])

    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("plan_id", sa.String(length=48), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("cluster", sa.String(length=200), nullable=False),
        sa.Column("profile", sa.String(length=200), nullable=False),
        sa.Column("model_name", sa.String(length=200), nullable=False),
        sa.Column("num_npus", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("step_time_s", sa.Double(), nullable=True),
        sa.Column("step_time_spread", sa.Double(), nullable=True),
        sa.Column("tokens_per_s_per_npu", sa.Double(), nullable=True),
        sa.Column("peak_memory_gib", sa.Double(), nullable=True),
        sa.Column("predicted_step_time_s", sa.Double(), nullable=False),
        sa.Column("predicted_low_s", sa.Double(), nullable=False),
        sa.Column("predicted_high_s", sa.Double(), nullable=False),
        sa.Column("predicted_memory_gib", sa.Double(), nullable=False),
        sa.Column("profile_hash", sa.String(length=64), nullable=False),
        sa.Column("engine_version", sa.String(length=64), nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("plan", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("measured", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("plan_id", "content_hash", name=op.f("uq_runs_plan_id_content_hash")),
    )
    op.create_index("ix_runs_plan_id_id", "runs", ["plan_id", "id"])
    op.create_index("ix_runs_cluster_id", "runs", ["cluster", "id"])

    op.create_table(
        "cluster_overlays",
        sa.Column("cluster", sa.String(length=200), nullable=False),
        sa.Column("profile", sa.String(length=200), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("num_runs", sa.Integer(), nullable=False),
        sa.Column("overlay", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("report", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "profile", name=op.f("pk_cluster_overlays")),
    )
    op.create_table(
        "plan_reestimates",
        sa.Column("search_id", sa.String(length=48), nullable=False),
        sa.Column("plan_id", sa.String(length=48), nullable=False),
        sa.Column("profile_hash", sa.String(length=64), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("step_time_s", sa.Double(), nullable=False),
        sa.Column("tokens_per_s_per_npu", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["search_id", "plan_id"],
            ["plans.search_id", "plans.plan_id"],
            name="fk_plan_reestimates_plan",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("search_id", "plan_id", name=op.f("pk_plan_reestimates")),
    )


def downgrade() -> None:
    op.drop_table("plan_reestimates")
    op.drop_table("cluster_overlays")
    op.drop_table("runs")
    op.drop_index("ix_searches_cluster_id", "searches")
    op.drop_column("searches", "cluster")
