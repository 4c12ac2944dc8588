"""The gap of a search is that of its recommended plan, as its other figures are"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SEARCHES = sa.table("searches", sa.column("id"), sa.column("gap"), sa.column("result", sa.JSON))
PLANS = sa.table("plans", sa.column("search_id"), sa.column("position"), sa.column("document", sa.JSON))


def upgrade() -> None:
    of_the_best = PLANS.c.document["gap"].as_float()
    # A gap of 1 comes of a bound of 0: nothing was proven.
    best = sa.select(sa.func.nullif(of_the_best, 1.0)).where(PLANS.c.search_id == SEARCHES.c.id, PLANS.c.position == 0)
    op.execute(sa.update(SEARCHES).where(SEARCHES.c.gap.is_not(None)).values(gap=best.scalar_subquery()))


def downgrade() -> None:
    of_the_fastest = SEARCHES.c.result["optimality"]["gap"].as_float()
    op.execute(sa.update(SEARCHES).where(SEARCHES.c.result.is_not(None)).values(gap=of_the_fastest))
