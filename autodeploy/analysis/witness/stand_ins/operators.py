"""Operators that a framework issues, counted by pass: calls that write device memory.

Views and allocations are none. A stand-in for a device's operator is one, whatever it computes with; a collective is
none, since it is counted as one.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .record import NOTES

ALLOCATIONS = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("detach", "detach_", "_unsafe_view"),
    }
)


class Operators(TorchDispatchMode):
    """Notes each call of torch's operators that is no view, no allocation and no part of a stand-in."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not (NOTES.inside or NOTES.quiet) and _writes(func):
            NOTES.operator(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@functools.cache
def _writes(func: Any) -> bool:
    returns = func._schema.returns
    views = any(one.alias_info is not None and not one.alias_info.is_write for one in returns)
    return not views and func.overloadpacket.__name__ not in ALLOCATIONS


def as_one(name: str, function: Any) -> Any:
    """The function, counted as one operator of this name."""

    @functools.wraps(function)
    def counted(*args: Any, **named: Any) -> Any:
        if NOTES.inside:
            return function(*args, **named)
        NOTES.operator(name)
        NOTES.inside = True
        try:
            return function(*args, **named)
        finally:
            NOTES.inside = False

    return counted


def count_backward(*holders: Any) -> None:
    """Counts the backward passes of autograd functions in these modules as one operator each."""
    for holder in holders:
        for name, made in vars(holder).items():
            if (
                isinstance(made, type)
                and issubclass(made, torch.autograd.Function)
                and made.__module__ == holder.__name__
            ):
                made.backward = staticmethod(as_one(f"{name}.backward", made.backward))


def install() -> None:
    """Counts from here on; for the rest of the process."""
    Operators().__enter__()
