"""The host's time line beside the device's."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.host_bound import exposed_host_s, issue_s


def test_issue_time_counts_operators_and_synchronisations() -> None:
    # T_host = N_ops * t_issue + N_sync * t_sync.
    assert float(issue_s(100, 8e-6, 2, 50e-6)) == pytest.approx(900e-6)


def test_a_device_slower_than_the_host_hides_issuing() -> None:
    assert float(exposed_host_s(issue_s(100, 8e-6, 0, 50e-6), 1e-3, 0, 50e-6)) == 0.0


def test_a_device_faster_than_the_host_waits_the_difference() -> None:
    assert float(exposed_host_s(issue_s(100, 8e-6, 0, 50e-6), 5e-4, 0, 50e-6)) == pytest.approx(3e-4)


def test_a_synchronisation_is_exposed_whatever_the_device_does() -> None:
    assert float(exposed_host_s(issue_s(100, 8e-6, 1, 50e-6), 1.0, 1, 50e-6)) == pytest.approx(50e-6)


def test_device_and_wait_together_are_no_less_than_the_host() -> None:
    device = np.linspace(0.0, 2e-3, 50)
    host = issue_s(120, 8e-6, 1, 50e-6)
    assert np.all(device + exposed_host_s(host, device, 1, 50e-6) >= np.maximum(device, host) - 1e-15)
