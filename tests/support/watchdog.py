"""Ends a process of tests that hangs, with the stack of every thread.

As pytest's `faulthandler_timeout`, whose watch is begun and ended with every test: half a millisecond each, and most
take no longer themselves.
"""

from __future__ import annotations

import faulthandler
import math
import time

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

HANGS_AFTER_S = 600
"""The slowest test takes a minute on two cores."""
BEGUN_EVERY_S = 30


class Watchdog:
    """A plugin of pytest: a test may take ten minutes, less the half minute that the watch may have begun before it."""

    _begun_s = -math.inf

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Begins the watch anew, if it is not young."""
        now_s = time.monotonic()
        if now_s - self._begun_s > BEGUN_EVERY_S:
            errors = item.config.stash[fault_handler_stderr_fd_key]
            faulthandler.dump_traceback_later(HANGS_AFTER_S, file=errors, exit=True)
            self._begun_s = now_s

    def pytest_exception_interact(self) -> None:
        """Pytest has ended the watch: somebody may look at what failed."""
        self._begun_s = -math.inf

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self) -> None:
        """Ends the watch."""
        faulthandler.cancel_dump_traceback_later()
