"""Slowest of the devices of a cluster: expected maximum of their spread, a release's own factor where it has one."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.costs.inputs.machine import machine_of
from cost_models.host_bound import slowest_of
from cost_models.order_statistics import expected_maximum
from hardware_profiles import load_profile
from hardware_profiles.changes import apply_overlay, apply_overrides
from hardware_profiles.reading import parse_profile_document
from hardware_profiles.topology import cluster_topology

HARTER = {1: 0.0, 2: 0.56419, 3: 0.84628, 5: 1.16296, 8: 1.42360, 10: 1.53875, 100: 2.50759, 1000: 3.24144}
"""Biometrika 48 (1961), table 1."""


def factor(profile_name: str, nodes: int, release: str | None = None, **efficiency: float) -> float:
    profile = load_profile(profile_name, calibrated=False)
    topology = cluster_topology(profile, num_npus=nodes * profile.npus_per_node)
    machine = machine_of(profile, profile.device(), topology, "bf16", release=release, efficiency=efficiency)
    return float(machine.software_factor)


def test_the_expected_maximum_is_that_of_the_tables() -> None:
    found = expected_maximum(list(HARTER))
    assert found == pytest.approx(list(HARTER.values()), abs=1e-5)
    assert expected_maximum(0.5) == 0.0


def test_the_expected_maximum_is_that_of_drawn_clusters() -> None:
    drawn = np.random.default_rng(5).standard_normal((4000, 384)).max(axis=1)
    assert float(expected_maximum(384)) == pytest.approx(drawn.mean(), abs=4.0 * drawn.std() / 4000**0.5)


def test_all_devices_wait_for_the_slowest_beyond_that_of_a_node() -> None:
    assert factor("ascend-800t-a2", 1) == 1.0
    assert factor("ascend-800t-a2", 64, device_scatter=0.01) == pytest.approx(
        1.0 + 0.01 * (float(expected_maximum(512)) - 1.42360), rel=1e-7
    )
    shipped = factor("ascend-800t-a2", 64)
    assert shipped == pytest.approx(1.0 + float(slowest_of(512, 0.015) - slowest_of(8, 0.015)), rel=1e-9)
    assert 1.02 < shipped < factor("ascend-800t-a2", 512) < 1.04


def test_cards_of_two_dies_count_both() -> None:
    dies = factor("cloudmatrix-384", 4, device_scatter=0.01)
    assert dies == pytest.approx(1.0 + 0.01 * float(expected_maximum(64) - expected_maximum(16)), rel=1e-9)


def test_a_release_with_a_factor_of_its_own_goes_by_that() -> None:
    assert factor("ascend-800t-a2", 64, "mid_2024", release_mid_2024_per_doubling=1.04) == pytest.approx(1.04**6)


def test_growth_of_earlier_releases_is_read_as_the_scatter_that_says_the_same_on_256_nodes() -> None:
    profile = load_profile("ascend-800t-a2")
    by_override = apply_overrides(profile, {"efficiency.node_growth": 0.004})
    by_overlay = apply_overlay(
        profile,
        {
            "profile": "ascend-800t-a2",
            "efficiency": {"node_growth": 0.004},
            "covariance": {
                "source": "a fit",
                "factors": [{"name": "nodes", "multiplies": ["node_growth"]}],
                "log_covariance": [[0.25]],
            },
        },
    )
    document = profile.document.model_dump()
    document["efficiency"]["node_growth"] = document["efficiency"].pop("device_scatter") | {"value": 0.004}
    by_document = parse_profile_document(document).efficiency["device_scatter"].value
    scatter = by_override.efficiency["device_scatter"]
    assert scatter == by_overlay.efficiency["device_scatter"] == by_document
    assert factor("ascend-800t-a2", 256, device_scatter=scatter) == pytest.approx(1.004**8)
    assert by_overlay.covariance is not None
    assert by_overlay.covariance.factors[0].multiplies == ("device_scatter",)
