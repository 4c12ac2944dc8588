"""Processes for what a request waits for: predictions and ablations, beside the thread that answers everybody else.

Python computes in one thread at a time, so that a second of it in the server would be a second without an answer for
anyone. A call has a time limit, and only so many wait.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from autodeploy.kit.errors import LimitError, OverloadError, SpecError
from autodeploy.messages import Message
from autodeploy.service.runner import processes
from autodeploy.service.runner.runner import CallTally

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from concurrent.futures import ProcessPoolExecutor

    from autodeploy.kit.settings import Settings


# Whose call is next.
Thing = TypeVar("Thing")


class RoundRobin(Generic[Thing]):
    """Things that one caller uses at a time, and the callers who wait for one.

    places : callers that use one or wait, of all keys.
    places_of_key : the same of one key; callers without a key may have all places.
    """

    def __init__(self, things: Sequence[Thing], *, places: int, places_of_key: int) -> None:
        self._idle = list(things)
        self._places = places
        self._places_of_key = places_of_key
        self._changed = threading.Condition()
        self._waiting: dict[int, str] = {}
        self._numbers = count()
        self._using: Counter[str] = Counter()
        self._ended: dict[str, float] = {}

    @contextmanager
    def turn(self, key: str, limit_s: float) -> Iterator[Thing]:
        """One of the things, for the block.

        Raises LimitError when the key has all the places that it may have; OverloadError when nobody may wait any more;
        TimeoutError when no turn came within `limit_s` seconds.
        """
        thing = self._wait(key, time.monotonic() + limit_s)
        try:
            yield thing
        finally:
            with self._changed:
                self._using[key] -= 1
                self._ended[key] = time.monotonic()
                self._idle.append(thing)
                self._forget()
                self._changed.notify_all()

    @property
    def in_use(self) -> int:
        """Number used now."""
        return self._using.total()

    @property
    def waiting(self) -> int:
        """Number of callers that wait."""
        return len(self._waiting)

    @property
    def idle_s(self) -> float:
        """Seconds since the last use; 0 while one is used or waited for."""
        with self._changed:
            if self.in_use or self.waiting:
                return 0.0
            return time.monotonic() - max(self._ended.values(), default=-math.inf)

    def _wait(self, key: str, end_s: float) -> Thing:
        with self._changed:
            self._refuse_too_many(key)
            number = next(self._numbers)
            self._waiting[number] = key
            try:
                while not (self._idle and self._next() == number):
                    left_s = end_s - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError
                    self._changed.wait(left_s)
                self._using[key] += 1
                return self._idle.pop()
            finally:
                del self._waiting[number]
                self._changed.notify_all()  # another one may be next now

    def _refuse_too_many(self, key: str) -> None:
        if self.in_use + self.waiting >= self._places:
            raise OverloadError(Message("jobs.too_many_predictions"), hint=Message("common.try_again"))
        of_key = self._using[key] + sum(other == key for other in self._waiting.values())
        if key and of_key >= self._places_of_key:
            raise LimitError(Message("jobs.key_predictions_busy", count=self._places_of_key))

    def _next(self) -> int:
        """Of the key with the fewest in use, then of the one served longest ago, the one that waits longest."""
        return min(self._waiting, key=lambda number: (*self._rank(self._waiting[number]), number))

    def _rank(self, key: str) -> tuple[int, float]:
        return self._using[key], self._ended.get(key, float("-inf"))

    def _forget(self) -> None:
        """Keys that ask for nothing are as new."""
        asking = set(self._waiting.values()) | {key for key, number in self._using.items() if number}
        if len(self._ended) > 100 * max(1, len(asking)):
            self._ended = {key: moment_s for key, moment_s in self._ended.items() if key in asking}
            self._using = +self._using


P = ParamSpec("P")
Answer = TypeVar("Answer")
log = logging.getLogger(__name__)

# Calls that may wait for a process, for each there is.
MAX_WAITING_PER_PROCESS = 8


class CallPool:
    """`settings.call_processes` processes, each made by `make_ready` or when first needed, and again after it died."""

    def __init__(
        self,
        settings: Settings,
        planner: str,
        tally: CallTally | None = None,
        niceness: int = processes.CALL_NICENESS,
    ) -> None:
        self.tally = tally or CallTally()
        self._limit_s = settings.call_limit_s
        self._lock = threading.Lock()
        self._searching: set[str] = set()
        memory_bytes = settings.search_memory_bytes
        self._processes = [_CallProcess(planner, memory_bytes, niceness) for _ in range(settings.call_processes)]
        places = settings.call_processes * (1 + MAX_WAITING_PER_PROCESS)
        self._turns = RoundRobin(self._processes, places=places, places_of_key=max(2, places // 2))

    @property
    def num_processes(self) -> int:
        """Calls that run at once."""
        return len(self._processes)

    @property
    def in_use(self) -> int:
        """Calls that run now."""
        return self._turns.in_use

    @property
    def waiting(self) -> int:
        """Calls that wait for a process."""
        return self._turns.waiting

    @property
    def idle_s(self) -> float:
        """Seconds since the last call ended; 0 while one runs or waits."""
        return self._turns.idle_s

    @contextmanager
    def search_of(self, team: str) -> Iterator[None]:
        """Inside, a team's one call that searches; callers without a team are not held up.

        Raises LimitError when the team has one already.
        """
        with self._lock:
            taken = team in self._searching
            if team and not taken:
                self._searching.add(team)
        if taken:
            self.tally.refused("key")
            raise LimitError(Message("jobs.team_searches_already"))
        try:
            yield
        finally:
            with self._lock:
                self._searching.discard(team)

    def make_ready(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> None:
        """Has every process made and run the function once, so that no caller waits for that.

        Calls that come meanwhile wait for their turn. A process that does not come up is left to the next call, which
        says so.
        """
        barrier = threading.Barrier(len(self._processes))

        def first() -> None:
            try:
                with self._turns.turn("", self._limit_s) as process:
                    barrier.wait(self._limit_s)  # each has another one
                    process.run(self._limit_s, function, *args, **kwargs)
            except Exception as error:
                log.warning("a process for predictions did not get ready: %r", error)

        starting = [threading.Thread(target=first, daemon=True) for _ in self._processes]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()

    def call(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """`call_of` nobody in particular."""
        return self.call_of("", function, *args, **kwargs)

    def call_of(self, key: str, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Result of the function in another process, or its error; it and its arguments can be pickled.

        key : whose call it is: keys take turns.

        Raises LimitError when half of all places are this key's; OverloadError when too many calls wait, the time is
        over, or the process died.
        """
        asked_s = time.monotonic()
        end_s = asked_s + self._limit_s
        try:
            with self._turns.turn(key, self._limit_s) as process:
                self.tally.waited(time.monotonic() - asked_s)
                return process.run(end_s - time.monotonic(), function, *args, **kwargs)
        except LimitError:
            self.tally.refused("key")
            raise
        except OverloadError:
            self.tally.refused("full")
            raise
        except TimeoutError as error:
            self.tally.refused("slow")
            raise self._too_long() from error
        except (BrokenProcessPool, MemoryError) as error:
            self.tally.refused("died")
            raise OverloadError(Message("jobs.prediction_died")) from error

    def _too_long(self) -> OverloadError:
        return OverloadError(
            Message("jobs.took_too_long", seconds=self._limit_s),
            hint=Message("jobs.use_search_queue"),
        )

    def close(self) -> None:
        """Ends the processes and what they compute."""
        for process in self._processes:
            process.end()


class KeptAnswers:
    """The last answers of a few hundred questions, refusals too; who asks what is being computed waits for it.

    most : answers that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: dict[Hashable, Future[Any]] = {}

    def answer(self, question: Hashable, make: Callable[[], Answer]) -> Answer:
        """The kept answer to a question, or the one that is made now."""
        with self._lock:
            kept = self._kept.pop(question, None)
            own = kept is None
            future: Future[Answer] = Future() if kept is None else kept
            self._kept[question] = future
            for oldest in tuple(self._kept)[: -self._most]:
                del self._kept[oldest]
        if own:
            self._fill(question, future, make)
        return future.result()

    def has(self, question: Hashable) -> bool:
        """Whether the answer is kept, or being made."""
        with self._lock:
            return question in self._kept

    def keep(self, question: Hashable, make: Callable[[], Any]) -> None:
        """Makes the answer to a question ahead of who may ask it; nobody who asks it meanwhile waits for this."""
        future: Future[Any] = Future()
        try:
            future.set_result(make())
        except SpecError as error:
            future.set_exception(error)
        with contextlib.suppress(SpecError):
            self.answer(question, future.result)

    def _fill(self, question: Hashable, future: Future[Answer], make: Callable[[], Answer]) -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            if not isinstance(error, SpecError):  # of this moment, not of the question
                with self._lock:
                    if self._kept.get(question) is future:
                        del self._kept[question]
            future.set_exception(error)


class _CallProcess:
    """One process, used by one thread at a time."""

    def __init__(self, planner: str, memory_bytes: int, niceness: int) -> None:
        self._planner, self._memory_bytes, self._niceness = planner, memory_bytes, niceness
        self._pool: ProcessPoolExecutor | None = None
        self._pid: int | None = None
        self._ended = False

    def run(self, limit_s: float, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        end_s = time.monotonic() + limit_s
        try:
            pool = self._started(limit_s)
            return pool.submit(function, *args, **kwargs).result(max(0.0, end_s - time.monotonic()))
        except (TimeoutError, BrokenProcessPool, MemoryError):
            self._kill()
            raise

    def end(self) -> None:
        self._ended = True
        self._kill()

    def _started(self, limit_s: float) -> ProcessPoolExecutor:
        if self._pool is None:
            if self._ended:
                raise BrokenProcessPool("the server stops")
            self._pool = processes.new_pool(self._planner, self._memory_bytes, self._niceness)
            self._pid = self._pool.submit(processes.process_id).result(limit_s)
        return self._pool

    def _kill(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        # A process that does not come up in time has told no number yet; its executor knows it.
        pids = {self._pid} if self._pid is not None else set(getattr(pool, "_processes", None) or ())
        self._pid = None
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pool.shutdown(wait=True, cancel_futures=True)
