"""indexes of figures without the searches that have none, and an index of clusters"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

WHOLE = ("num_npus", "seq_length", "global_batch_size")
FIGURES = ("best_step_time_s", "best_tokens_per_s_per_npu", "best_mfu", "gap")
WORDS = ("team", "status", "profile", "model_name", "author")
LISTED_BY = (*WORDS, "id", "created_at", *WHOLE, *FIGURES)
BEFORE = (*WORDS[:3], "cluster", *WORDS[3:], "id", "created_at", *WHOLE, *FIGURES)


def _anew(listed: tuple[str, ...], digits: int, *, partial: bool) -> None:
    """The index of lists, of these columns, that of so many digits of a spec, and those of figures."""
    op.drop_index("ix_searches_content", table_name="searches")
    op.create_index("ix_searches_content", "searches", [sa.text(f"substr(spec_hash, 1, {digits})")])
    op.drop_index("ix_searches_listed", table_name="searches")
    op.create_index("ix_searches_listed", "searches", list(listed))
    for name in FIGURES:
        where = sa.text(f"{name} IS NOT NULL") if partial else None
        op.drop_index(f"ix_searches_{name}_created_at", table_name="searches")
        op.create_index(
            f"ix_searches_{name}_created_at",
            "searches",
            [name, "created_at"],
            postgresql_where=where,
            sqlite_where=where,
        )


def upgrade() -> None:
    _anew(LISTED_BY, 7, partial=True)
    op.create_index("ix_searches_cluster", "searches", [sa.text("(cluster || '')")])


def downgrade() -> None:
    op.drop_index("ix_searches_cluster", table_name="searches")
    _anew(BEFORE, 8, partial=False)
