"""The planner of a runner, by the name of its module."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from autodeploy.search.planner import Planner

PLANNER = "autodeploy.search.planner"


def load_planner(module: str = PLANNER) -> Planner:
    """The planner in that module. A name, because another process finds it by that."""
    return cast("Planner", import_module(module))
