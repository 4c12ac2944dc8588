"""What every app and every database of a test process would make anew, and always alike: made once for all.

Hundreds of tests open a database and an app of their own. Each would compile the SQL of its statements and read the
signatures of all routes: a quarter of such tests.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from fastapi.routing import _EffectiveRouteContext
from sqlalchemy.orm import Mapper

from autodeploy.service.store import database

if TYPE_CHECKING:
    import pytest
    from sqlalchemy import Engine


class Statements(dict[tuple[Any, ...], Any]):
    """Compiled statements by all that SQLAlchemy tells them apart by, but for the dialect: that by its name."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], statement: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), statement)


def compile_statements_once(patch: pytest.MonkeyPatch) -> None:
    """Engines of one kind of database are made alike, and share what they compile."""
    shared, make = Statements(), database.create_engine
    of_mappers: defaultdict[Mapper[Any], Statements] = defaultdict(Statements)

    def create_engine(*args: Any, **options: Any) -> Engine:
        engine = make(*args, **options)
        engine._compiled_cache = shared
        return engine

    patch.setattr(database, "create_engine", create_engine)
    patch.setattr(Mapper, "_compiled_cache", property(of_mappers.__getitem__))


def read_routes_once(patch: pytest.MonkeyPatch) -> None:
    """Apps include the same routers alike, and none overrides what routes depend on."""
    contexts: dict[tuple[Any, ...], Any] = {}  # by the identity of a route, which its context keeps
    read = _EffectiveRouteContext.from_api_route

    def from_api_route(*, original_route: Any, include_context: Any) -> Any:
        key = (id(original_route), include_context.prefix, include_context.include_in_schema)
        if key not in contexts:
            contexts[key] = read(original_route=original_route, include_context=include_context)
        return contexts[key]

    patch.setattr(_EffectiveRouteContext, "from_api_route", from_api_route)
