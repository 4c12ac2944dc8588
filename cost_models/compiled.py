"""Loops that numpy can't run at once, compiled to machine code."""

from __future__ import annotations

from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

Given = ParamSpec("Given")
Found = TypeVar("Found")


def compiled(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The function, compiled by numba at its first call in strict IEEE arithmetic: it answers as Python would.

    What was compiled is kept beside the code or in the user's cache; where neither can be written every process
    compiles anew. Each combination of argument types is compiled on its own: give contiguous arrays.
    """

    @cache
    def machine_code() -> Callable[Given, Found]:
        import numba  # takes half a second, and not every command runs a schedule

        try:
            made = numba.njit(cache=True, nogil=True)(function)
        except RuntimeError:  # no directory for its cache
            made = numba.njit(nogil=True)(function)
        return cast("Callable[Given, Found]", made)

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        return machine_code()(*args, **kwargs)

    return run
