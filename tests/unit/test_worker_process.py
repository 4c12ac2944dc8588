"""A second process answers what the first one would, and is never what a search hangs on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autodeploy.search.branch_and_bound.worker_process import LARGE_QUESTION_BYTES, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 20.0


def wait_for(happened: Callable[[], bool]) -> None:
    """Until something happened; fails where it does not."""
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


class Counting:
    """A worker with a memory: each answer depends on what it was asked before."""

    def __init__(self) -> None:
        self.total = 0
        self.stopped: Callable[[], bool] = lambda: False

    def add(self, number: int) -> int:
        self.total += number
        return self.total

    def process(self) -> int:
        return os.getpid()

    def long(self, data: bytes) -> bytes:
        return data * 2

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def die(self, caller: int) -> int:
        """Ends its process, unless that is the caller's."""
        if os.getpid() != caller:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.total

    def until_stopped(self, mark: str) -> None:
        Path(mark).write_text(str(os.getpid()))
        while not self.stopped():
            time.sleep(0.01)
        Path(mark).unlink()


@pytest.mark.parametrize("parallel", [False, True])
def test_answers_are_those_of_one_worker_asked_in_that_order(parallel: bool) -> None:
    with WorkerProcess(Counting(), parallel=parallel, should_cancel=None) as worker_process:
        begun = [worker_process.begin(Counting.add, number) for number in (1, 10, 100)]
        assert [each.result() for each in reversed(begun)] == [111, 11, 1]
        asked = worker_process.begin(Counting.process)
        assert (asked.result() != os.getpid()) == parallel


def test_a_process_that_is_to_come_later_is_made_once_work_is_shared() -> None:
    with WorkerProcess(Counting(), parallel=True, should_cancel=None, later=True) as worker_process:
        assert worker_process.begin(Counting.process).result() == os.getpid()
        worker_process.begin(Counting.add, 7)
        worker_process.share()
        assert worker_process.parallel
        assert worker_process.begin(Counting.process).result() != os.getpid()
        assert worker_process.begin(Counting.add, 1).result() == 8


def test_it_starts_with_what_its_worker_knows_and_keeps_its_own_from_then_on() -> None:
    worker = Counting()
    worker.add(5)
    with WorkerProcess(worker, parallel=True, should_cancel=None) as worker_process:
        assert worker_process.begin(Counting.add, 1).result() == 6
    assert worker.total == 5


@pytest.mark.parametrize("parallel", [False, True])
def test_long_questions_and_answers_do_not_wait_for_each_other(parallel: bool) -> None:
    data = bytes(40 * LARGE_QUESTION_BYTES)
    with WorkerProcess(Counting(), parallel=parallel, should_cancel=None) as worker_process:
        begun = [worker_process.begin(Counting.long, data) for _ in range(3)]
        assert [each.result() for each in begun] == [data * 2] * 3


def test_an_error_is_raised_where_the_answer_is_read() -> None:
    with WorkerProcess(Counting(), parallel=True, should_cancel=None) as worker_process:
        begun = worker_process.begin(Counting.fail, "no such layout")
        with pytest.raises(ValueError, match="no such layout"):
            begun.result()
        assert worker_process.begin(Counting.add, 2).result() == 2


def test_what_a_process_that_died_owes_is_computed_here() -> None:
    worker = Counting()
    with WorkerProcess(worker, parallel=True, should_cancel=None) as worker_process:
        assert worker_process.begin(Counting.add, 3).result() == 3
        begun = [worker_process.begin(Counting.die, os.getpid()), worker_process.begin(Counting.add, 4)]
        assert [each.result() for each in begun] == [0, 4]
        assert not worker_process.parallel
        assert worker_process.begin(Counting.add, 1).result() == 5


def test_a_cancelled_search_does_not_wait_and_leaves_no_process(tmp_path: Path) -> None:
    mark = tmp_path / "running"
    cancelled = False
    with WorkerProcess(Counting(), parallel=True, should_cancel=lambda: cancelled) as worker_process:
        begun = worker_process.begin(Counting.until_stopped, str(mark))
        wait_for(lambda: mark.exists() and mark.read_text() != "")
        cancelled = True
        assert not begun.ready()
        assert begun.result() is None
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_it_stops_when_the_process_that_asks_is_gone(tmp_path: Path) -> None:
    mark = tmp_path / "running"
    asking = os.fork()
    if not asking:
        WorkerProcess(Counting(), parallel=True, should_cancel=None).begin(Counting.until_stopped, str(mark))
        time.sleep(60)
        os._exit(0)
    wait_for(lambda: mark.exists() and mark.read_text() != "")
    os.kill(asking, signal.SIGKILL)
    os.waitpid(asking, 0)
    wait_for(lambda: not mark.exists())
