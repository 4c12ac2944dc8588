"""Runs revisions on the connection that `autodeploy.service.store.migration` hands over."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Column

from autodeploy.service.store.base import Base, UtcDateTime


def render_item(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """A revision stands alone: it names no type of the program, which may change."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


def include_name(name: str | None, kind: str, _parents: Any) -> bool:
    """The tables of the job queue are procrastinate's own; revisions bring them as they are."""
    return kind != "table" or name is None or not name.startswith("procrastinate_")


def include_object(thing: Any, _name: str | None, kind: str, _reflected: bool, _other: Any) -> bool:
    """An index of an expression comes back in other words, and of SQLite not at all; some are of one database."""
    return kind != "index" or (thing._ddl_if is None and all(isinstance(each, Column) for each in thing.expressions))


connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run through `autodeploy db upgrade`")
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    compare_type=True,
    render_as_batch=connection.dialect.name == "sqlite",
    render_item=render_item,
    include_name=include_name,
    include_object=include_object,
)
with context.begin_transaction():
    context.run_migrations()
