"""Searches of a program that plans and does nothing else: without what other services would load."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from autodeploy.service.runner.planning import load_planner
from autodeploy.service.searches.service import SearchService
from autodeploy.service.store.migration import ready_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.kit.settings import Settings


@contextmanager
def searches_alone(settings: Settings) -> Iterator[SearchService]:
    """The searches of the settings' database, which is closed at the end of the block.

    Raises ConflictError when PostgreSQL is at another revision.
    """
    database = ready_database(settings.database_url, settings.database_connections)
    try:
        yield SearchService(database, load_planner(), None, settings)
    finally:
        database.close()
