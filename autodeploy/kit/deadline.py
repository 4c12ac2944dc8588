"""When a search has to end: its time limit, or somebody's wish, kept also by code that never looks at a clock.

Whoever computes polls the deadline and stops by itself. What does not look in time, many arrays or compiled loops one
after the other, is interrupted shortly afterwards: `Overdue` is raised in its thread, between two of its instructions,
and what was found before stands. An import or a compilation is left to end: half of one would be in the way of the
next.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LATE_S: Final = 0.2
"""After it should have stopped by itself, what still computes is interrupted."""
LAST_S: Final = 0.6
"""After the limit, or after somebody asked to stop, nothing is computed any more."""
FOR_THE_END: Final = 0.3
MOST_FOR_THE_END_S: Final = 3.0
"""Of the time limit, what is kept for weighing and describing the plans that were found: a share, and at most seconds
of computing."""
FOR_THE_REPORT: Final = 0.5
"""Of what is kept, for describing them."""
WITHOUT_PLAN: Final = 0.4
"""Of what is kept, as long as there is no plan to describe."""
POLL_S: Final = 0.04
WHOLE: Final = frozenset({"numba", "llvmlite", "logging"})
"""Packages whose calls are never cut off: they compile, or lock what a fork needs and release it in a hook of it."""
AGAIN_S: Final = 0.5
"""An interruption that was lost, in a destructor, is repeated."""

MAX_INTERRUPTS: Final = 100
"""Turns of a loop, each of which looks for an exception that was sent."""

_INTERRUPTED: Final = threading.Event()


class Overdue(BaseException):
    """A computation past its time. No Exception: nobody else is to catch it."""


class Deadline:
    """Says when to stop: the user cancels, or the time limit is near.

    Calling it is true once the present part is to end: at first the search, after `weigh` the ranking by risk, after
    `finish` also its report.

    should_cancel : whether the user wants the search to end.
    started : `time.monotonic()` at its begin. limit_s : wall-clock seconds from there.
    """

    def __init__(self, should_cancel: Callable[[], bool] | None, started: float, limit_s: float) -> None:
        self._should_cancel = should_cancel
        self._started, self._limit_s, self._end = started, limit_s, started + limit_s
        self._computed_before_s = time.process_time()
        self._part_end = self._end - self._kept_s * WITHOUT_PLAN
        self._cancelled_at: float | None = None
        self.out_of_time = False
        self.interrupted = False
        """Whether anything was cut off: the process may keep traces of it."""

    def __call__(self) -> bool:
        now = time.monotonic()
        if now > self._part_end:
            self.out_of_time = True
            return True
        return self._cancelled(now)

    @property
    def _kept_s(self) -> float:
        """For the report. Where others share the machine all takes longer, by as much as it took so far."""
        computed_s = max(1.0, time.process_time() - self._computed_before_s)  # the first second tells nothing
        slower = max(1.0, (time.monotonic() - self._started) / computed_s)
        return min(MOST_FOR_THE_END_S * slower, FOR_THE_END * self._limit_s)

    def has_plan(self) -> None:
        """There is a plan that has to be described."""
        self._part_end = self._end - self._kept_s

    def weigh(self) -> bool:
        """From now on for weighing what was found; whether there is only what was kept for it."""
        hurried = self()
        self._part_end = self._end - FOR_THE_REPORT * self._kept_s
        return hurried

    def finish(self) -> bool:
        """From now on for the report of what was found; whether there is no time but for the plans themselves."""
        hurried = self()
        self._part_end = self._end
        return hurried

    @property
    def is_past(self) -> bool:
        """Whether the whole time limit is over."""
        return time.monotonic() > self._end

    @property
    def left_s(self) -> float:
        """Seconds of the time limit that are left."""
        return max(0.0, self._end - time.monotonic())

    def search(self, part: Callable[[], T]) -> T | None:
        """The result of a part of the search; None where it did not end soon after it should."""
        return self._run(part, lambda: self._part_end + LATE_S, LATE_S)

    def describe(self, part: Callable[[], T]) -> T | None:
        """The same of a part of the report that others come after: some time is left for them."""
        return self._run(part, lambda: self._end - self._kept_s / 3.0, LATE_S)

    def last(self, part: Callable[[], T]) -> T | None:
        """The same of what the answer can't do without: as long as the limit allows at all."""
        return self._run(part, lambda: self._end + LAST_S, LAST_S)

    def _cancelled(self, now: float) -> bool:
        if self._cancelled_at is None and self._should_cancel is not None and self._should_cancel():
            self._cancelled_at = now
        return self._cancelled_at is not None

    def _run(self, part: Callable[[], T], end: Callable[[], float], after_cancel_s: float) -> T | None:
        def is_over() -> bool:
            now = time.monotonic()
            if self._cancelled(now) and self._cancelled_at is not None:
                return now > min(end(), self._cancelled_at + after_cancel_s)
            return now > end()

        if is_over():
            results = None
        else:
            results = _interrupted_when(is_over, part)
            if results:
                return results[0]
        self.interrupted = True
        self.out_of_time |= self._cancelled_at is None
        return None


def interrupted_here() -> bool:
    """Whether anything was cut off in this process, ever."""
    return _INTERRUPTED.is_set()


def _interrupted_when(is_over: Callable[[], bool], part: Callable[[], T]) -> list[T]:
    """The part's result as a list of one; an empty list where it was interrupted."""

    class Mine(Overdue):
        """The interruption of this part: parts lie in each other."""

    thread, done, lock, sent = threading.get_ident(), threading.Event(), threading.Lock(), threading.Event()

    def watch() -> None:
        while not done.wait(POLL_S):
            if is_over() and not _may_not_be_cut(thread):
                with lock:
                    if not done.is_set():
                        _INTERRUPTED.set()  # whoever catches it on its way
                        sent.set()
                        _raise_in(thread, Mine)
                done.wait(AGAIN_S)

    def leave() -> None:
        with lock:
            done.set()
        if sent.is_set():
            _let_arrive()  # one that is on its way has nobody to reach any more

    results: list[T] = []
    watcher = threading.Thread(target=watch, name="deadline", daemon=True)
    try:
        try:
            watcher.start()
            results.append(part())
        finally:
            leave()
    except (Mine, SystemError) as error:
        if not _came_of(error, Mine):
            raise
        leave()  # it may have come while the part was being left: then `done` was not set yet
    return results


def _came_of(error: BaseException | None, first: type[BaseException]) -> bool:
    """Whether an error is this one, or was made of it: machine code says SystemError where Python code that it calls is
    interrupted.
    """
    while error is not None and not isinstance(error, first):
        error = error.__cause__
    return error is not None


def _may_not_be_cut(thread: int) -> bool:
    """Whether a thread is in the middle of an import or a compilation."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in WHOLE:
            return True
        frame = frame.f_back
    return False


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise in another thread at its next instruction that looks for it."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _let_arrive() -> None:
    """Here what was sent to this thread is raised, if it wasn't before.

    Taking it back with a null pointer would leave CPython 3.11 looking for it for ever: at every call and every turn of
    a loop, and under a tracer or a profiler without end.
    """
    for _ in range(MAX_INTERRUPTS):
        pass
