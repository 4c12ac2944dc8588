"""Set-up of the product's own processes: one thread a library, and a collector that seldom looks for cycles."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
from typing import Final, NoReturn

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
# Objects more than before at which the youngest are collected, and such passes before older ones are: a search makes
# few cycles, and what a program imports is a quarter of a million objects that stay, as many as a search keeps.
COLLECTED_AFTER: Final = (1_000_000, 10, 10)


def use_one_thread() -> None:
    """Tells libraries that are imported from now on, here and in processes made here, unless the user did."""
    for name, value in SINGLE_THREADED.items():
        os.environ.setdefault(name, value)


def collect_seldom() -> None:
    """Keeps what was imported: the collector would walk all of it several times a search, 5 % of its time."""
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


def leave(code: str | int | None) -> NoReturn:
    """Ends the process as `sys.exit` does, but leaves what memory holds to the system: half a second for a search.

    A thread that still runs is waited for, and output that can't be written is told of, in the usual way.
    """
    gc.freeze()
    if threading.active_count() == 1 and not isinstance(code, str):
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code or 0)
    sys.exit(code)
