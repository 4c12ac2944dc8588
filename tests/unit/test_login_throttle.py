"""Failed log-ins of one address are few a minute; another address is not held up, and memory is bounded."""

from __future__ import annotations

import pytest

from api.http import session as throttle
from api.http.session import WINDOW_S, LoginThrottle


def test_an_address_waits_until_its_oldest_failure_is_a_minute_old() -> None:
    limited = LoginThrottle(3)
    for now_s in (0.0, 1.0, 2.0):
        assert limited.wait_s("10.0.0.1", now_s) == 0.0
        limited.failed("10.0.0.1", now_s)
    assert limited.wait_s("10.0.0.1", 10.0) == pytest.approx(WINDOW_S - 10.0)
    assert limited.wait_s("10.0.0.2", 10.0) == 0.0
    assert limited.wait_s("10.0.0.1", WINDOW_S + 0.5) == 0.0
    limited.failed("10.0.0.1", WINDOW_S + 0.5)
    assert limited.wait_s("10.0.0.1", WINDOW_S + 0.6) == pytest.approx(0.4)


def test_one_host_has_a_whole_network_of_ipv6() -> None:
    limited = LoginThrottle(1)
    limited.failed("2001:db8::1", 0.0)
    assert limited.wait_s("2001:db8::2", 1.0) > 0.0
    assert limited.wait_s("2001:db8:0:1::1", 1.0) == 0.0


def test_no_more_addresses_are_remembered_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "REMEMBERED", 3)
    limited = LoginThrottle(1)
    for host in range(5):
        limited.failed(f"10.0.0.{host}", float(host))
    assert len(limited._failures) == 3
    assert limited.wait_s("10.0.0.0", 5.0) == 0.0
    assert limited.wait_s("10.0.0.4", 5.0) > 0.0
