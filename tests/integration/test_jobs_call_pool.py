"""Calls in other processes: their answers and errors come back, a slow or dead one costs only itself."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import pytest

from autodeploy.kit.errors import LimitError, OverloadError, SpecError
from autodeploy.service.runner.ahead import MOST_OF_SET, MOST_SETS, AskedAhead
from autodeploy.service.runner.call_pool import MAX_WAITING_PER_PROCESS, CallPool, KeptAnswers
from tests.integration.conftest import QUICK, eventually, quick_settings

pytestmark = pytest.mark.integration


def double(number: int) -> int:
    return 2 * number


def refuse() -> None:
    raise SpecError("no such thing", path="/strategy/tp", hint="another")


_SEEN: list[int] = []


def remember() -> None:
    _SEEN.append(os.getpid())


def remembered() -> bool:
    return [os.getpid()] == _SEEN


def test_a_team_has_one_call_that_searches_and_others_are_not_held_up(sqlite_url):
    pool = CallPool(quick_settings(sqlite_url), QUICK)
    try:
        for team in ("vision", "speech", "a", "b", "c"):
            with pool.search_of(team), pool.search_of(""), pool.search_of(""):
                with pytest.raises(LimitError) as caught, pool.search_of(team):
                    pass
                assert caught.value.retry_after_s > 0
                with pool.search_of(f"not {team}"):
                    pass
            with pytest.raises(ValueError, match="its own"), pool.search_of(team):
                raise ValueError("its own")
            with pool.search_of(team):  # whatever became of the one before
                pass
    finally:
        pool.close()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def pool():
    pool = CallPool(quick_settings("sqlite:///unused.db", call_limit_s=25.0), QUICK)
    yield pool
    pool.close()


@pytest.mark.usefixtures("products_processes")
def test_answers_and_errors_come_back(pool):
    assert pool.call(double, 21) == 42
    assert pool.call(os.getpid) != os.getpid()
    assert pool.call(gc.get_freeze_count) > 10_000, "imported modules are out of the collector's sight"
    with pytest.raises(SpecError) as caught:
        pool.call(refuse)
    assert [(e.path, e.hint) for e in caught.value.errors] == [("/strategy/tp", "another")]


def test_processes_are_made_ready_before_the_first_call():
    pool = CallPool(quick_settings("sqlite:///unused.db", call_processes=2), QUICK)
    try:
        pool.make_ready(remember)
        assert (pool.in_use, pool.waiting) == (0, 0)
        began_s = time.monotonic()
        assert pool.call(remembered)
        assert time.monotonic() - began_s < 1.0, "neither made nor prepared by this call"
        pool.make_ready(refuse)  # logged; the processes are there all the same
        assert pool.call(double, 21) == 42
    finally:
        pool.close()


@pytest.mark.usefixtures("products_processes")
def test_a_process_that_dies_is_made_again(pool):
    with pytest.raises(OverloadError, match="died"):
        pool.call(die)
    assert pool.call(double, 1) == 2


def test_no_more_wait_than_may_and_none_longer_than_it_may():
    pool = CallPool(quick_settings("sqlite:///unused.db", call_limit_s=0.5), QUICK)
    ended: list[str] = []

    def call() -> None:
        try:
            pool.call(sleep, 60.0)
        except OverloadError as error:
            ended.append(str(error))

    callers = [threading.Thread(target=call) for _ in range(MAX_WAITING_PER_PROCESS + 4)]
    started_s = time.monotonic()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert time.monotonic() - started_s < 12.0
    assert sum("at once" in message for message in ended) == 3
    assert sum("longer than 0.5 s" in message for message in ended) == MAX_WAITING_PER_PROCESS + 1
    pool.close()
    with pytest.raises(OverloadError):
        pool.call(double, 1)


# -- what is asked ahead -------------------------------------------------------------------------------------------


@pytest.fixture
def ahead():
    kept, busy = KeptAnswers(20), threading.Event()
    asked = AskedAhead(quick_settings("sqlite:///unused.db"), QUICK, kept, busy.is_set)
    yield asked, kept, busy
    asked.close()


@pytest.mark.usefixtures("products_processes")
def test_what_was_asked_ahead_is_known_refusals_too(ahead):
    asked, kept, _ = ahead
    asked.ask("a set", [(1, refuse, ()), (2, double, (21,)), (3, die, ()), (4, os.getpid, ())])
    eventually(lambda: kept.has(4))
    with pytest.raises(SpecError):
        kept.answer(1, lambda: 0)
    assert kept.answer(2, lambda: 0) == 42
    assert not kept.has(3), "a process that died says nothing of the question"
    assert kept.answer(4, os.getpid) != os.getpid()


@pytest.mark.usefixtures("products_processes")
def test_nothing_is_asked_ahead_while_somebody_waits(ahead):
    asked, kept, busy = ahead
    busy.set()
    asked.ask("a set", [(1, double, (1,))])
    time.sleep(0.3)
    assert not kept.has(1)
    assert kept.answer(1, lambda: "own") == "own", "who asks meanwhile computes"
    busy.clear()
    asked.ask("another", [(2, double, (2,))])
    eventually(lambda: kept.has(2))
    assert kept.answer(1, lambda: 0) == "own"


@pytest.mark.usefixtures("products_processes")
def test_the_oldest_sets_are_forgotten_and_none_is_endless(ahead):
    asked, _, busy = ahead
    busy.set()
    for name in range(MOST_SETS + 1):
        asked.ask(name, [((name, number), double, (number,)) for number in range(2 * MOST_OF_SET)])
    busy.clear()
    asked.ask(MOST_SETS, [])  # it goes on
    eventually(lambda: not asked.open_sets)
    assert asked.answered == MOST_SETS * MOST_OF_SET
