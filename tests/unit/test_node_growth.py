"""What computation loses on more nodes: a prior for current releases, a release's own factor where it has one."""

from __future__ import annotations

import pytest

from autodeploy.costs.inputs.machine import machine_of
from hardware_profiles import load_profile
from hardware_profiles.topology import cluster_topology


def factor(profile_name: str, nodes: int, release: str | None = None, **efficiency: float) -> float:
    profile = load_profile(profile_name, calibrated=False)
    topology = cluster_topology(profile, num_npus=nodes * profile.npus_per_node)
    machine = machine_of(profile, profile.device(), topology, "bf16", release=release, efficiency=efficiency)
    return float(machine.software_factor)


def test_every_doubling_of_the_nodes_costs_the_current_release_the_same() -> None:
    assert factor("ascend-800t-a2", 1) == 1.0
    assert factor("ascend-800t-a2", 64, node_growth=0.01) == pytest.approx(1.01**6)
    assert factor("ascend-800t-a2", 64) == pytest.approx(1.004**6)


def test_a_release_with_a_factor_of_its_own_goes_by_that() -> None:
    assert factor("ascend-800t-a2", 64, "mindformers") == 1.0
    assert factor("ascend-800t-a2", 64, "mid_2024", release_mid_2024_per_doubling=1.04) == pytest.approx(1.04**6)
