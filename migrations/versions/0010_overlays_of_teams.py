"""an overlay for each team that has runs on a cluster"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLE, OLD = "cluster_overlays", "old_overlays"
KEY = ("cluster", "profile")
COLUMNS = (*KEY, "updated_at", "num_runs", "changed_by", "overlay", "report")


def _anew(team: tuple[sa.Column[str], ...], rows: str) -> None:
    """The table with another primary key, which SQLite cannot change; `rows`: what is taken over, of the old table."""
    if op.get_bind().dialect.name != "sqlite":
        op.execute(sa.text(f"ALTER INDEX pk_{TABLE} RENAME TO pk_{OLD}"))
    op.rename_table(TABLE, OLD)
    op.create_table(
        TABLE,
        sa.Column("cluster", sa.String(length=200), nullable=False),
        sa.Column("profile", sa.String(length=200), nullable=False),
        *team,
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("num_runs", sa.Integer(), nullable=False),
        sa.Column("changed_by", sa.String(length=100), nullable=False, server_default=""),
        sa.Column("overlay", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("report", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint(*KEY, *(column.name for column in team), name=op.f(f"pk_{TABLE}")),
    )
    names = ", ".join((*COLUMNS, *(column.name for column in team)))
    op.execute(sa.text(f"INSERT INTO {TABLE} ({names}) SELECT {rows}"))
    op.drop_table(OLD)


def upgrade() -> None:
    # Every team goes on with the numbers that it has; its next run fits them to its own runs alone.
    teams = "(SELECT DISTINCT cluster, profile, team FROM runs WHERE counts)"
    own = ", ".join(f"o.{name}" for name in COLUMNS)
    _anew(
        (sa.Column("team", sa.String(length=64), nullable=False, server_default="default"),),
        f"{own}, t.team FROM {OLD} o JOIN {teams} t ON t.cluster = o.cluster AND t.profile = o.profile",
    )


def downgrade() -> None:
    first = f"(SELECT min(team) FROM {OLD} f WHERE f.cluster = o.cluster AND f.profile = o.profile)"
    _anew((), f"{', '.join(COLUMNS)} FROM {OLD} o WHERE team = {first}")
