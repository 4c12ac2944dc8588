"""Processes of searches and predictions that outlive the service that had them made: the next one takes them over.

They know no database, so that one which was idle when its service stopped is as good as a new one. Tests start some
three hundred services, and most of these never ask their processes for anything.
"""

from __future__ import annotations

import functools
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from autodeploy.service.runner.call_pool import _CallProcess
from autodeploy.service.runner.processes import SearchProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Of = SearchProcess | _CallProcess

MOST = 6
WAIT_S = 0.02  # one that is in use for longer runs something
OF_ONE_TEST = "PYTEST_CURRENT_TEST"
_idle: list[KeptPool] = []
_lock = threading.Lock()


class KeptPool(ProcessPoolExecutor):
    """A pool of one process, which knows how it was made."""

    how: tuple[Any, ...]

    @property
    def lives(self) -> bool:
        """Whether its process can be asked."""
        processes = (self._processes or {}).values()
        return bool(processes) and not self._broken and all(process.is_alive() for process in processes)


def made_as(*how: Any) -> tuple[Any, ...]:
    """What processes that may take each other's place were made with, their variables too."""
    return (*how, *sorted((name, value) for name, value in os.environ.items() if name != OF_ONE_TEST))


def take(how: tuple[Any, ...]) -> KeptPool | None:
    """An idle one that was made so."""
    with _lock:
        found = next((pool for pool in reversed(_idle) if pool.how == how and pool.lives), None)
        if found is not None:
            _idle.remove(found)
        return found


def end_all(but: int = 0) -> None:
    """Ends those that are idle, but for the last few."""
    with _lock:
        ended = _idle[: max(0, len(_idle) - but)]
        del _idle[: len(ended)]
    for pool in ended:
        pool.shutdown()


def keep_processes(patch: pytest.MonkeyPatch) -> None:
    """Services that stop keep their idle processes for the next."""
    for name in ("start", "run"):
        patch.setattr(SearchProcess, name, _in_use(getattr(SearchProcess, name)))
    patch.setattr(_CallProcess, "run", _in_use(_CallProcess.run))
    for name in ("interrupt", "close"):
        patch.setattr(SearchProcess, name, _kept_by(getattr(SearchProcess, name)))
    patch.setattr(_CallProcess, "end", _kept_by(_CallProcess.end))


def _use_of(process: Of) -> threading.RLock:
    lock: threading.RLock = process.__dict__.setdefault("_use", threading.RLock())
    return lock


def _in_use(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def used(process: Of, *args: Any, **kwargs: Any) -> Any:
        with _use_of(process):
            return method(process, *args, **kwargs)

    return used


def _kept_by(end: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(end)
    def ended(process: Of) -> None:
        use = _use_of(process)
        if use._is_owned():  # it is worn or broken: whoever uses it ends it
            end(process)
            return
        idle = use.acquire(timeout=WAIT_S)
        try:
            if idle and isinstance(process._pool, KeptPool) and process._pool.lives:
                with _lock:
                    _idle.append(process._pool)
                process._pool = process._pid = None
            end(process)
        finally:
            if idle:
                use.release()
        end_all(but=MOST)

    return ended
