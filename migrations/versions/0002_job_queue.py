"""tables of the job queue, on PostgreSQL"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        from autodeploy.service.runner.procrastinate_queue import install_schema

        install_schema(op.get_bind().connection.driver_connection)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        from autodeploy.service.runner.procrastinate_queue import remove_schema

        remove_schema(op.get_bind().connection.driver_connection)
