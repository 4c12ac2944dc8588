"""The planner of a runner, by the name of its module."""

from __future__ import annotations

from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.search.planner import Planner

PLANNER = "autodeploy.search.planner"


def load_planner(module: str = PLANNER) -> Planner:
    """The planner in that module. A name, because another process finds it by that."""
    return cast("Planner", import_module(module))


def _by_name(module: ModuleType) -> tuple[Callable[[str], ModuleType], tuple[str]]:
    """A planner among the arguments of a call goes to the other process by its name, as functions do."""
    return import_module, (module.__name__,)


ForkingPickler.register(ModuleType, _by_name)
