"""Leaf switches that are narrower above than below: who pays for it, and how much."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.inputs.machine import Machine, machine_of
from autodeploy.costs.stages.step_parts import p2p_s
from autodeploy.costs.steps.one_strategy import candidate_for
from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Strategy
from cost_models.all_to_all import Routing, flat_s, hierarchical_s
from cost_models.collectives import all_gather_s, all_reduce_s, ring_pass_s
from hardware_profiles import ProfileError, cluster_topology, load_profile
from hardware_profiles.profile import Profile
from hardware_profiles.reading import parse_profile_document
from hardware_profiles.shipped_yaml import load_shipped_yaml

SHIPPED = Path(__file__).parents[2] / "hardware_profiles" / "data"
LEAF_NODES = 4
CARDS = 256


@cache
def with_leaf(over: float | None, nodes: int = LEAF_NODES, name: str = "ascend-800t-a2") -> Profile:
    """A shipped profile, its scale-out tier behind leaf switches; as shipped without `over`."""
    document = load_shipped_yaml((SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"))
    if over is not None:
        said = {"kind": "assumed", "source": "own"}
        document["tiers"][-1]["leaf_nodes"] = {"value": nodes, "unit": "nodes", **said}
        document["tiers"][-1]["leaf_oversubscription"] = {"value": over, "unit": "ratio", **said}
    return Profile(parse_profile_document(document))


def machine(profile: Profile, cards: int = CARDS) -> Machine:
    """All of that many cards."""
    device = profile.device(None)
    return machine_of(profile, device, cluster_topology(profile, num_npus=cards), "bf16")


def times(found: Machine, stride: int, size: int) -> list[float]:
    """Seconds of every kind of exchange of 64 MiB."""
    group, tiers, fixed, size_b = found.group(stride, size), found.tiers, found.comm_op_s, 2.0**26
    return [
        float(all_gather_s(size_b, group, tiers, fixed)),
        float(all_reduce_s(size_b, group, tiers, fixed)),
        float(ring_pass_s(size_b, group, tiers, fixed)),
        float(flat_s(size_b, 8.0, group, tiers, fixed)),
        float(flat_s(size_b, 8.0, group, tiers, fixed, Routing(deduplicate=True))),
        float(hierarchical_s(size_b, 8.0, group, tiers, fixed)),
    ]


GROUPS = [(1, 8), (1, 32), (8, 4), (1, 64), (8, 32), (32, 8), (16, 16), (2, 128)]


@pytest.mark.parametrize(("stride", "size"), GROUPS)
def test_no_oversubscription_is_no_leaf_and_more_is_never_faster(stride: int, size: int) -> None:
    plain = times(machine(with_leaf(None)), stride, size)
    assert times(machine(with_leaf(1.0)), stride, size) == plain
    found = np.array([plain, *(times(machine(with_leaf(o)), stride, size) for o in (1.25, 2.0, 4.0, 8.0))])
    assert np.all(np.diff(found, axis=0) >= 0.0)
    if stride * size <= 8 * LEAF_NODES:
        assert np.all(found == found[0]), "a group below one leaf pays nothing"
    else:
        slower = found[-1] > found[0]
        # One member of a ring leaves the leaf, through the uplinks of all its members there.
        assert slower[2] == (max(1, 8 * LEAF_NODES // stride) < 8.0)
        assert np.all(np.delete(slower, 2))


def test_a_group_with_one_node_a_leaf_gets_the_uplinks_share() -> None:
    plain, narrow = machine(with_leaf(None)), machine(with_leaf(2.0))
    size = 2.0**36
    for of in (all_gather_s, all_reduce_s, ring_pass_s):
        before, after = (float(of(size, m.group(32, 8), m.tiers, 0.0)) for m in (plain, narrow))
        assert after / before == pytest.approx(2.0, rel=1e-3)


def test_of_eight_nodes_below_two_leaves_four_of_seven_blocks_cross() -> None:
    plain, narrow = machine(with_leaf(None)), machine(with_leaf(3.0))
    size = 2.0**36
    gathered = [float(all_gather_s(size, m.group(8, 8), m.tiers, 0.0)) for m in (plain, narrow)]
    assert gathered[1] / gathered[0] == pytest.approx((3.0 + 4.0 * 3.0) / 7.0, rel=1e-3)
    exchanged = [float(flat_s(size, 8.0, m.group(8, 8), m.tiers, 0.0)) for m in (plain, narrow)]
    assert exchanged[1] / exchanged[0] == pytest.approx(4.0 * 3.0 / 7.0, rel=1e-3)


def test_a_cluster_below_one_leaf_has_none() -> None:
    assert machine(with_leaf(4.0), cards=32).group(1, 32).near is None


def test_supernodes_below_one_leaf_and_below_several() -> None:
    inside = machine(with_leaf(2.0, nodes=8, name="cloudmatrix-384"), cards=768)
    assert inside.group(768, 2).near == 1.0
    assert times(inside, 1, 256) == times(machine(with_leaf(None, name="cloudmatrix-384"), 768), 1, 256)
    above = machine(with_leaf(2.0, nodes=96, name="cloudmatrix-384"), cards=384 * 4)
    assert above.group(768, 4).near == 2.0


@pytest.mark.parametrize("nodes", [5, 50])
def test_a_leaf_that_cuts_supernodes_is_refused(nodes: int) -> None:
    profile = with_leaf(2.0, nodes=nodes, name="cloudmatrix-384")
    with pytest.raises(ProfileError, match="cuts through"):
        cluster_topology(profile, num_npus=768)


def test_blocks_of_healthy_nodes_are_refused() -> None:
    with pytest.raises(ProfileError, match="not modelled"):
        cluster_topology(with_leaf(2.0), blocks=[(0, 8)])


def document(leaf: Any = None, **cluster: Any) -> dict[str, Any]:
    """A spec whose cluster says its leaf switches itself."""
    cluster = {"profile": "ascend-800t-a2", "num_npus": CARDS, "leaf": leaf} | cluster
    training = {"seq_length": 4096, "global_batch_size": 256}
    return {"model": "llama2-7b", "cluster": cluster, "training": training}


def test_a_spec_says_its_leaf_switches_as_a_profile_does() -> None:
    own = profile_of(parse_spec(document({"nodes": LEAF_NODES, "oversubscription": 3.0})).cluster, calibrated=False)
    found, expected = machine(own), machine(with_leaf(3.0))
    for stride, size in GROUPS:
        assert times(found, stride, size) == times(expected, stride, size)
    assert own.content_hash != load_profile("ascend-800t-a2", calibrated=False).content_hash


def test_every_plan_pays_for_leaf_switches_that_are_narrower_above() -> None:
    """Of one strategy whose replicas lie below several leaves, and of one below a single leaf."""

    def step_s(strategy: dict[str, Any], leaf: Any, cards: int = 64) -> float:
        given = document(leaf, num_npus=cards) | {"strategy": {"schedule": "1f1b", "micro_batch_size": 1} | strategy}
        return float(planner.estimate(parse_spec(given)).step_time_s)

    leaves = [None, *({"nodes": LEAF_NODES, "oversubscription": o} for o in (1.0, 2.0, 8.0))]
    crossing = [step_s({"tp": 8, "pp": 1}, leaf) for leaf in leaves]
    assert crossing[0] == crossing[1] < crossing[2] < crossing[3]
    below = [step_s({"tp": 8, "pp": 1}, leaf, cards=LEAF_NODES * 8) for leaf in leaves]
    assert len(set(below)) == 1


@pytest.mark.parametrize(
    ("changes", "path", "told"),
    [
        ({"leaf": 2}, "/cluster/leaf", "2 is not a mapping"),
        ({"leaf": {"nodes": 0, "oversubscription": 2}}, "/cluster/leaf/nodes", "too small"),
        ({"leaf": {"nodes": 4, "oversubscription": 0.5}}, "/cluster/leaf/oversubscription", "too small"),
        ({"leaf": {"nodes": 4, "oversubscription": 2, "spines": 2}}, "/cluster/leaf/spines", ""),
        (
            {"profile": "cloudmatrix-384", "num_npus": 768, "leaf": {"nodes": 36, "oversubscription": 2}},
            "/cluster/leaf/nodes",
            "cuts through",
        ),
        (
            {"num_npus": None, "blocks": [{"supernode": 0, "nodes": 8}], "leaf": {"nodes": 4, "oversubscription": 2}},
            "/cluster/leaf",
            "not modelled with blocks",
        ),
    ],
)
def test_a_leaf_that_makes_no_cluster_is_refused_with_its_path(changes: dict[str, Any], path: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        planner.prepare(parse_spec(document(**changes)))
    (error,) = caught.value.errors
    assert error.path == path
    assert told in error.message
    assert error.hint


def test_half_a_leaf_is_refused() -> None:
    with pytest.raises(ProfileError, match="leaf_oversubscription"):
        with_leaf(0.5)


@pytest.mark.parametrize(("pp", "below"), [(32, 4), (16, 2), (8, 1)])
def test_stages_below_one_leaf_share_its_uplinks(pp: int, below: int) -> None:
    """A stage takes one, two or four nodes of a leaf of four: one of the stages there sends through the uplinks."""

    def send_s(over: float) -> float:
        spec = parse_spec(document({"nodes": LEAF_NODES, "oversubscription": over}))
        context = spec_context(spec, profile_of(spec.cluster), frozenset({"flash_attention"}))
        strategy = Strategy(tp=8, pp=pp, micro_batch_size=1, schedule="1f1b")
        return float(p2p_s(candidate_for(context, strategy), context)[0])

    plain = send_s(1.0)
    assert send_s(float(below)) == plain
    wire_s = send_s(2.0 * below) - plain
    assert wire_s > 0.0
    assert send_s(3.0 * below) - plain == pytest.approx(2.0 * wire_s, rel=0.2)
