"""How a process runs that is the product's own: one thread a library, and a collector that seldom looks for cycles."""

from __future__ import annotations

import gc
import os
from typing import Final

# A search uses one core, or two by a second process: libraries that would start a thread on every core are told not to,
# before they are imported.
SINGLE_THREADED: Final = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    )
}
# New objects before the youngest are collected, and such passes before older ones are: a search makes few cycles.
COLLECTED_AFTER: Final = (20_000, 10, 10)


def use_one_thread() -> None:
    """Tells libraries that are imported from now on, here and in processes made here, unless the user did."""
    for name, value in SINGLE_THREADED.items():
        os.environ.setdefault(name, value)


def collect_seldom() -> None:
    """Keeps what was imported: the collector would walk all of it several times a search, 5 % of its time."""
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


def leave_at_once() -> None:
    """Keeps the collector from a last walk over all that was imported, most of a second, while the process ends."""
    gc.freeze()
