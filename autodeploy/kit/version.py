"""Version of the engine: equal specs, profiles and versions give equal plans."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "0.0.0"
try:
    ENGINE_VERSION = version("autodeploy")
except PackageNotFoundError:  # run from a source tree that is not installed
    ENGINE_VERSION = UNKNOWN


@cache
def can_run(asked: str, own: str = ENGINE_VERSION) -> bool:
    """Whether a search that a server of version `asked` stored is for this one: every version reads those before it."""
    return own == UNKNOWN or _numbers(asked) <= _numbers(own)


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    return (*numbers, *(0,) * (3 - len(numbers)))
