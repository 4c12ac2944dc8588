"""Prices of operators and exchanges that several layers share: a module of prediction is a layer and a head again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
P = ParamSpec("P")


class Prices:
    """What has been found for the same objects already."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[tuple[object, ...], Any]] = {}

    def once(self, of: tuple[object, ...], price: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`price` of its arguments, found once for each of the objects `of`, on which alone it differs."""
        key = (price, *map(id, of))
        if key not in self._found:
            # The objects are kept, or others could get their numbers.
            self._found[key] = of, price(*args, **kwargs)
        found: T = self._found[key][1]
        return found
