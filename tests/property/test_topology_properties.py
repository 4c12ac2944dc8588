"""What holds of every placement: it accounts for each member, and no real piece of a group is smaller."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles import ClusterTopology, cluster_topology, load_profile

A2 = load_profile("ascend-800t-a2")
CLOUDMATRIX = load_profile("cloudmatrix-384")

topologies = st.one_of(
    st.integers(1, 256).map(lambda npus: cluster_topology(A2, num_npus=npus)),
    st.integers(1, 1200).map(lambda npus: cluster_topology(CLOUDMATRIX, num_npus=npus)),
    st.lists(st.integers(1, 48), min_size=1, max_size=4).map(
        lambda nodes: cluster_topology(CLOUDMATRIX, blocks=list(enumerate(nodes)))
    ),
)


def instance_of_each_rank(topology: ClusterTopology, blocks: list[int], tier: int) -> np.ndarray:
    """Instance of `tier` of every rank of a CloudMatrix cluster, by walking over its supernodes."""
    supernode = np.repeat(np.arange(len(blocks)), np.array(blocks) * 16)
    if topology.tier_names[tier] == "ub":
        return supernode
    if topology.tier_names[tier] == "die_pair":
        return np.arange(topology.num_ranks) // 2
    return np.zeros(topology.num_ranks, dtype=np.int64)


@given(topologies, st.integers(1, 2048), st.integers(1, 2048))
def test_fan_outs_multiply_to_the_group_size(topology: ClusterTopology, stride: int, size: int) -> None:
    placement = topology.place(stride, size)
    assert placement.ranks_t[-1] == size
    assert (placement.fan_out >= 1).all()
    assert np.prod(placement.fan_out) == size
    inner = np.concatenate([[1], placement.ranks_t[:-1]])
    assert (placement.fan_out * inner == placement.ranks_t).all()


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from([1, 2, 3, 4, 8, 12, 16, 24, 32]),
    st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32]),
)
def test_no_piece_of_a_real_group_is_smaller(blocks: list[int], stride: int, size: int) -> None:
    """Every group, walked rank by rank, over every tier; groups that the cluster cuts short are left out."""
    topology = cluster_topology(CLOUDMATRIX, blocks=list(enumerate(blocks)))
    promised = topology.place(stride, size).ranks_t
    span = stride * size
    for tier in range(len(promised)):
        instance = instance_of_each_rank(topology, blocks, tier)
        smallest = size
        for start in range(0, topology.num_ranks - span + 1, span):
            for offset in range(stride):
                members = instance[start + offset : start + span : stride]
                smallest = min(smallest, int(np.unique(members, return_counts=True)[1].min()))
        assert promised[tier] <= smallest


@given(st.integers(0, 4), st.integers(0, 6), st.integers(1, 64))
def test_powers_of_two_on_full_nodes_are_exact(log_stride: int, log_size: int, nodes: int) -> None:
    """Even, aligned groups: as many members in a node as fit, never fewer."""
    topology = cluster_topology(A2, num_npus=8 * nodes)
    stride, size = 2**log_stride, 2**log_size
    expected = size if nodes == 1 else min(size, max(1, 8 // stride))
    assert topology.place(stride, size).ranks_t[0] == expected


@given(topologies, st.lists(st.tuples(st.integers(1, 512), st.integers(1, 512)), min_size=1, max_size=20))
def test_arrays_equal_one_at_a_time(topology: ClusterTopology, groups: list[tuple[int, int]]) -> None:
    strides, sizes = np.array(groups).T
    together = topology.place(strides, sizes).ranks_t
    apart = [topology.place(stride, size).ranks_t for stride, size in groups]
    assert (together == np.array(apart)).all()


@given(st.integers(1, 400), st.integers(1, 64), st.integers(1, 64))
def test_fewer_ranks_never_cut_a_group_smaller(npus: int, stride: int, size: int) -> None:
    """A smaller cluster has a subset of the boundaries."""
    more = cluster_topology(CLOUDMATRIX, num_npus=npus + 384).place(stride, size).ranks_t
    fewer = cluster_topology(CLOUDMATRIX, num_npus=npus).place(stride, size).ranks_t
    assert (fewer >= more).all()
