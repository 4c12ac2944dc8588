"""Indexes for lists of searches that are sorted by a figure"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COLUMNS = (
    *("num_npus", "seq_length", "global_batch_size"),
    *("best_step_time_s", "best_tokens_per_s_per_npu", "best_mfu", "gap"),
)


def upgrade() -> None:
    for name in COLUMNS:
        op.create_index(f"ix_searches_{name}_id", "searches", [name, "id"])


def downgrade() -> None:
    for name in COLUMNS:
        op.drop_index(f"ix_searches_{name}_id", table_name="searches")
