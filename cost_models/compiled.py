"""Loops that numpy can't run at once, compiled to machine code.

Parameters
----------
function : what is compiled.
"""

from __future__ import annotations

from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Given = ParamSpec("Given")
Found = TypeVar("Found")


# Division by zero gives what it gives numpy: a check for it in a loop costs as much as the division.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


class Compiled(Generic[Given, Found]):
    """A function that numba compiles at its first call; see `compiled`."""

    def __init__(self, function: Callable[Given, Found]) -> None:
        self._function = function
        update_wrapper(self, function)

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        return self._machine_code(*args, **kwargs)

    @cached_property
    def _machine_code(self) -> Callable[Given, Found]:
        import numba  # takes half a second, and not every command runs a schedule

        try:
            made = numba.njit(cache=True, **OPTIONS)(self._function)
        except RuntimeError:  # no directory for its cache
            made = numba.njit(**OPTIONS)(self._function)
        else:
            _load_alone(made)
        return cast("Callable[Given, Found]", made)

    @property
    def _numba_type_(self) -> Any:
        """Type by which compiled code knows a name: here a function that it may call."""
        return self._machine_code._numba_type_  # type: ignore[attr-defined]


def _load_alone(dispatcher: Any) -> None:
    """Load what is kept of a function without numba's tables of functions, which only compiling reads.

    They take a fifth of a second of every process; numba fills them in before it looks (`Cache.load_overload`). The
    tests say when an upgrade has other names here, with which all works as it would.
    """
    from numba.core.runtime.nrt import rtsys

    cache = dispatcher._cache
    if not hasattr(cache, "_load_overload"):
        return

    def load(signature: Any, context: Any) -> Any:
        rtsys.initialize(context)  # the allocator of arrays
        return cache._load_overload(signature, context)

    cache.load_overload = load


def compiled(function: Callable[Given, Found]) -> Compiled[Given, Found]:
    """The function, compiled by numba at its first call in strict IEEE arithmetic: it answers as numpy would.

    What was compiled is kept beside the code or in the user's cache; where neither can be written every process
    compiles anew. Each combination of argument types is compiled on its own: give contiguous arrays. Compiled functions
    may call others of the same file: what is kept is renewed when its own file changes.
    """
    return Compiled(function)


def row_major(values: Any) -> Any:
    """An array row by row in memory and writeable: for any other, compiled code would be compiled anew."""
    array = np.ascontiguousarray(values)
    return array if array.flags.writeable else array.copy()
