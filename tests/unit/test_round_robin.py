"""Places in the pool of calls: keys take turns, and none has them all; what was answered is kept."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from autodeploy.kit.errors import LimitError, OverloadError, SpecError
from autodeploy.service.runner.call_pool import KeptAnswers, RoundRobin

pytestmark = pytest.mark.unit


def until(condition) -> None:
    end_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


class Callers:
    """Callers that hold the one thing until they are told to let go."""

    def __init__(self, *, places: int = 20, places_of_key: int = 10) -> None:
        self.turns = RoundRobin(["thing"], places=places, places_of_key=places_of_key)
        self.served: list[str] = []
        self._may_end = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def ask(self, key: str) -> None:
        """Waits until the caller has a place."""
        asked = self.turns.in_use + self.turns.waiting + 1
        thread = threading.Thread(target=self._call, args=(key,), daemon=True)
        self._threads.append(thread)
        thread.start()
        until(lambda: self.turns.in_use + self.turns.waiting == asked)

    def _call(self, key: str) -> None:
        with self.turns.turn(key, 20.0):
            self.served.append(key)
            self._may_end.acquire()

    def let_all_end(self) -> None:
        for number in range(len(self._threads)):
            until(lambda number=number: len(self.served) > number)
            self._may_end.release()
        for thread in self._threads:
            thread.join()


def test_keys_take_turns():
    callers = Callers()
    for key in "cccccaba":
        callers.ask(key)
    callers.let_all_end()
    assert "".join(callers.served) == "cabcaccc"


def test_one_key_has_not_all_places():
    callers = Callers(places=6, places_of_key=3)
    for key in "ccc":
        callers.ask(key)
    with pytest.raises(LimitError, match="already has 3 predictions"), callers.turns.turn("c", 1.0):
        pass
    for key in "aab":
        callers.ask(key)
    with pytest.raises(OverloadError, match="at once"), callers.turns.turn("d", 1.0):
        pass
    callers.let_all_end()
    assert sorted(callers.served) == sorted("cccaab")


def test_without_keys_nobody_is_refused_before_the_places_are_gone():
    callers = Callers(places=4, places_of_key=1)
    for _ in range(4):
        callers.ask("")
    callers.let_all_end()


def test_a_turn_that_does_not_come_in_time_leaves_no_trace():
    callers = Callers()
    callers.ask("a")
    with pytest.raises(TimeoutError), callers.turns.turn("b", 0.05):
        pass
    assert (callers.turns.in_use, callers.turns.waiting) == (1, 0)
    callers.ask("b")
    callers.let_all_end()
    assert callers.turns.in_use == 0


def test_a_call_that_fails_gives_its_turn_back():
    turns = RoundRobin(["thing"], places=2, places_of_key=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"), turns.turn("a", 1.0):
            raise ValueError("no")
    assert (turns.in_use, turns.waiting) == (0, 0)


def test_an_answer_is_made_once_and_so_is_a_refusal() -> None:
    kept, made = KeptAnswers(2), []

    def make(name: str) -> str:
        made.append(name)
        if name == "refused":
            raise SpecError(name)
        if name == "overloaded":
            raise OverloadError(name)
        return name.upper()

    def ask(name: str) -> str:
        return kept.answer(name, lambda: make(name))

    assert [ask("a"), ask("a")] == ["A", "A"]
    for _ in range(2):
        with pytest.raises(SpecError):
            ask("refused")
        with pytest.raises(OverloadError):
            ask("overloaded")
    assert made == ["a", "refused", "overloaded", "overloaded"]
    assert [ask("b"), ask("c"), ask("b"), ask("a")] == ["B", "C", "B", "A"]
    assert made[4:] == ["b", "c", "a"]


def test_who_asks_what_is_being_made_waits_for_it() -> None:
    kept, begun, go_on, made = KeptAnswers(4), threading.Event(), threading.Event(), []

    def slow() -> int:
        made.append(1)
        begun.set()
        assert go_on.wait(10)
        return 7

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(kept.answer, "question", slow)
        assert begun.wait(10)
        second = threads.submit(kept.answer, "question", slow)
        go_on.set()
        assert (first.result(10), second.result(10)) == (7, 7)
    assert made == [1]


def test_it_is_idle_since_the_last_use_ended() -> None:
    turns = RoundRobin(["thing"], places=2, places_of_key=2)
    assert turns.idle_s == float("inf")
    with turns.turn("a", 1.0):
        assert turns.idle_s == 0.0
    time.sleep(0.02)
    assert 0.02 <= turns.idle_s < 20.0
