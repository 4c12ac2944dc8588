"""CPU seconds instead of wall clock: what other programs on the machine do does not count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.support.pace import limit_here_s

if TYPE_CHECKING:
    from collections.abc import Callable


def least_cpu_s(call: Callable[[], object], *, limit_s: float, tries: int = 3) -> float:
    """CPU seconds of this process for one call, as the usual machine would take them.

    The least of up to `tries`, ending early once within `limit_s`.
    """
    least = float("inf")
    for _ in range(tries):
        slowness, before = limit_here_s(1.0), time.process_time()
        call()
        took_s = time.process_time() - before
        least = min(least, took_s / max(slowness, limit_here_s(1.0)))
        if least < limit_s:
            break
    return least
