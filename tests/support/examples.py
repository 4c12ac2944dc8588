"""How many random cases a test looks at: `AUTODEPLOY_EXAMPLES=4 make test` looks at four times as many."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("AUTODEPLOY_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """So many, for tests where each of them takes tens of milliseconds or more."""
    return usual * TIMES
