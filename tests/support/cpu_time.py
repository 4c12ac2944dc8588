"""CPU seconds instead of wall clock: what other programs on the machine do does not count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def least_cpu_s(call: Callable[[], object], *, limit_s: float, tries: int = 3) -> float:
    """CPU seconds of this process for one call: the least of up to `tries`, ending early once within `limit_s`."""
    least = float("inf")
    for _ in range(tries):
        before = time.process_time()
        call()
        least = min(least, time.process_time() - before)
        if least < limit_s:
            break
    return least
