"""Calls in other processes: their answers and errors come back, a slow or dead one costs only itself."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import pytest

from autodeploy.kit.errors import LimitError, OverloadError, SpecError
from autodeploy.service.runner.call_pool import MAX_WAITING_PER_PROCESS, CallPool
from tests.integration.conftest import QUICK, quick_settings

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
