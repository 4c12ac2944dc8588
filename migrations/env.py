"""Runs revisions on the connection that `autodeploy.store.migrate` hands over."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

from autodeploy.store.tables import Base, UtcDateTime


def render_item(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """A revision stands alone: it names no type of the program, which may change."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run through `autodeploy db upgrade`")
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    compare_type=True,
    render_as_batch=connection.dialect.name == "sqlite",
    render_item=render_item,
)
with context.begin_transaction():
    context.run_migrations()
