"""Time of a framework's release: its factor on one node, and what every doubling of the nodes costs it."""

from __future__ import annotations

import pytest

from autodeploy.costs.inputs.machine import machine_of
from hardware_profiles import load_profile
from hardware_profiles.topology import cluster_topology

PROFILE = load_profile("ascend-800t-a2", calibrated=False)
OLD = {"release_early_2024": 1.2, "release_early_2024_per_doubling": 1.05, "release_mindformers": 1.2}


def factor(num_npus: int, release: str | None, values: dict[str, float] | None = None) -> float:
    topology = cluster_topology(PROFILE, num_npus=num_npus)
    machine = machine_of(PROFILE, PROFILE.device("910B3"), topology, "bf16", release=release, efficiency=values)
    return float(machine.software_factor)


@pytest.mark.parametrize(("cards", "doublings"), [(1, 0), (8, 0), (16, 1), (64, 3), (128, 4)])
def test_each_doubling_of_the_nodes_costs_the_same(cards: int, doublings: int) -> None:
    assert factor(cards, "early_2024", OLD) == pytest.approx(1.2 * 1.05**doublings)


def test_a_release_without_a_cost_of_nodes_has_its_factor_alone() -> None:
    assert factor(8, "mindformers", OLD) == factor(128, "mindformers", OLD) == pytest.approx(1.2)


def test_the_current_release_is_what_the_efficiencies_describe() -> None:
    none = OLD | {"device_scatter": 0.0}
    assert {factor(cards, None, none) for cards in (8, 64, 4096)} == {1.0}
    assert factor(64, "a release without a factor", none | {"release_current": 1.1}) == pytest.approx(1.1)


def test_the_shipped_candidates_slow_down_with_nodes_and_plans_do_not() -> None:
    shipped = load_profile("ascend-800t-a2").release_factors
    assert shipped["early_2024_per_doubling"] == shipped["mid_2024_per_doubling"] > 1.02
    assert "current_per_doubling" not in shipped
