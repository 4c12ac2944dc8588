"""A bucket of requests for each key."""

from __future__ import annotations

import pytest

from api.http import access as request_rate
from api.http.access import BURST_S, RequestRate
from autodeploy.kit.errors import LimitError

pytestmark = pytest.mark.unit


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_then_the_rate():
    clock = Clock()
    rate = RequestRate(2.0, clock=clock)
    for _ in range(round(2.0 * BURST_S)):
        rate.take("a")
    with pytest.raises(LimitError, match="more than 2 requests per second") as caught:
        rate.take("a")
    assert caught.value.retry_after_s == 1
    rate.take("b")  # another key has its own
    clock.now_s += 0.5
    rate.take("a")
    with pytest.raises(LimitError):
        rate.take("a")


def test_a_refused_request_does_not_count():
    clock = Clock()
    rate = RequestRate(0.1, clock=clock)
    rate.take("a")
    for _ in range(5):
        with pytest.raises(LimitError) as caught:
            rate.take("a")
    assert caught.value.retry_after_s == 10
    clock.now_s += 10.0
    rate.take("a")


def test_few_keys_are_remembered(monkeypatch):
    monkeypatch.setattr(request_rate, "MOST_KEYS", 2)
    rate = RequestRate(0.1, clock=Clock())
    for key in "abc":
        rate.take(key)
    rate.take("a")  # forgotten, hence full
    with pytest.raises(LimitError):
        rate.take("c")
