"""The host's time line beside the device's."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.host_bound import bound_issue_factor, exposed_host_s, kernel_launch_s, restart_s


def test_issue_time_counts_operators_and_synchronisations() -> None:
    # T_host = N_ops * t_issue + N_sync * t_sync.
    assert float(kernel_launch_s(100, 8e-6, 2, 50e-6)) == pytest.approx(900e-6)


def test_a_device_slower_than_the_host_hides_issuing() -> None:
    assert float(exposed_host_s(kernel_launch_s(100, 8e-6, 0, 50e-6), 1e-3, 0, 50e-6)) == 0.0


def test_a_device_faster_than_the_host_waits_the_difference() -> None:
    assert float(exposed_host_s(kernel_launch_s(100, 8e-6, 0, 50e-6), 5e-4, 0, 50e-6)) == pytest.approx(3e-4)


def test_a_synchronisation_is_exposed_whatever_the_device_does() -> None:
    assert float(exposed_host_s(kernel_launch_s(100, 8e-6, 1, 50e-6), 1.0, 1, 50e-6)) == pytest.approx(50e-6)


def test_device_and_wait_together_are_no_less_than_the_host() -> None:
    device = np.linspace(0.0, 2e-3, 50)
    host = kernel_launch_s(120, 8e-6, 1, 50e-6)
    assert np.all(device + exposed_host_s(host, device, 1, 50e-6) >= np.maximum(device, host) - 1e-15)


def test_a_device_waits_until_the_host_is_ahead_again() -> None:
    # Three operators of 8 us each to issue; the second one keeps the device busy for longer than the third takes.
    issue = 8e-6
    assert float(restart_s([issue, issue, issue], [1e-6, 1e-3, 1e-6])) == pytest.approx(8e-6 + 7e-6)
    # Small operators first: the wait is the host's time for all of them but what the device worked.
    assert float(restart_s([12 * issue, 3 * issue, issue], [2e-6, 2e-6, 1e-2])) == pytest.approx(16 * issue - 4e-6)


def test_work_queued_before_a_synchronisation_hides_it() -> None:
    before = float(exposed_host_s(kernel_launch_s(30, 8e-6, 1, 50e-6), 1.0, 1, 50e-6, restart_s=1e-4))
    after = float(exposed_host_s(kernel_launch_s(30, 8e-6, 1, 50e-6), 1.0, 1, 50e-6, restart_s=1e-4, queued_s=4e-5))
    assert before == pytest.approx(1.5e-4)
    assert after == pytest.approx(1.1e-4)
    host = kernel_launch_s(30, 8e-6, 1, 50e-6)
    assert float(exposed_host_s(host, 1.0, 1, 50e-6, restart_s=1e-4, queued_s=1.0)) == 0.0


def test_bound_cores_issue_faster_unless_they_are_too_few() -> None:
    # 30 % of issuing waits for memory that is twice as far 7 times in 8: 1 / (0.7 + 0.3 * (1 / 8 + 7 / 8 * 2)).
    assert bound_issue_factor(24, 8, 2.0, 0.3) == pytest.approx(1 / 1.2625)
    assert bound_issue_factor(24, 1, 2.0, 0.3) == 1.0
    # The range that torch_npu's documentation gives a card of 160 cores and 8 cards holds all hot threads.
    assert bound_issue_factor(160 / 8, 8, 2.0, 0.3) == bound_issue_factor(4, 8, 2.0, 0.3)
    assert bound_issue_factor(3, 8, 2.0, 0.3) == pytest.approx(4 / 3 / 1.2625)
    assert bound_issue_factor(2, 1, 1.0, 0.0) == 2.0
