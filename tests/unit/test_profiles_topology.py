"""Which tier a communication group lands on."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_profiles import ProfileError, cluster_topology, load_profile

A2 = load_profile("ascend-800t-a2")
CLOUDMATRIX = load_profile("cloudmatrix-384")


@pytest.mark.parametrize(
    ("stride", "size", "members"),
    [
        (1, 8, [8, 8]),  # tp 8: a node
        (1, 2, [2, 2]),
        (1, 32, [8, 32]),  # ep 32: four nodes
        (64, 16, [1, 16]),  # dp 16 outside tp 8, pp inside other nodes
        (8, 16, [1, 16]),
        (2, 16, [4, 16]),
        (1, 12, [4, 12]),  # straddles: pieces of 8 + 4 and 4 + 8
        (3, 2, [1, 2]),  # ranks 6 and 9 lie in two nodes
        (1, 1, [1, 1]),
    ],
)
def test_groups_on_the_800t_a2(stride: int, size: int, members: list[int]) -> None:
    assert cluster_topology(A2, num_npus=1024).place(stride, size).ranks_t.tolist() == members


def test_one_node_holds_every_group() -> None:
    topology = cluster_topology(A2, num_npus=8)
    assert topology.instances == (1, 1)
    assert topology.place([1, 3, 2], [6, 2, 4]).ranks_t.tolist() == [[6, 6], [2, 2], [4, 4]]


def test_one_supernode_needs_no_scale_out() -> None:
    topology = cluster_topology(CLOUDMATRIX, num_npus=384)
    assert (topology.num_ranks, topology.instances) == (768, (384, 1, 1))
    placement = topology.place([1, 1, 2, 4], [2, 768, 384, 128])
    assert placement.ranks_t.tolist() == [[2, 2, 2], [2, 768, 768], [1, 384, 384], [1, 128, 128]]
    assert placement.outermost_tier.tolist() == [0, 1, 1, 1]
    assert placement.fan_out.tolist() == [[2, 1, 1], [2, 384, 1], [1, 384, 1], [1, 128, 1]]


def test_groups_across_supernodes() -> None:
    topology = cluster_topology(CLOUDMATRIX, num_npus=768)
    assert topology.instances == (768, 2, 1)
    # 256 ranks end inside a supernode of 768 = 3 x 256; 512 straddle and fall into pieces of 256.
    assert topology.place(1, [256, 512, 1536]).ranks_t.tolist() == [[2, 256, 256], [2, 256, 512], [2, 768, 1536]]
    assert topology.place(768, 2).outermost_tier == 2


def test_broken_node_shifts_the_next_supernode() -> None:
    """47 + 48 nodes: the boundary at rank 752 cuts a group of 32 into 16 + 16, and none of 16."""
    topology = cluster_topology(CLOUDMATRIX, blocks=[(0, 47), (1, 48)])
    assert (topology.num_ranks, topology.instances) == (1520, (760, 2, 1))
    assert topology.place(1, [16, 32]).ranks_t.tolist() == [[2, 16, 16], [2, 16, 32]]
    alone = cluster_topology(CLOUDMATRIX, blocks=[(0, 47)])
    assert alone.place(1, 32).ranks_t.tolist() == [2, 32, 32]


def test_full_blocks_are_the_whole_cluster() -> None:
    assert cluster_topology(CLOUDMATRIX, blocks=[(0, 48), (1, 48)]) == cluster_topology(CLOUDMATRIX, num_npus=768)
    assert cluster_topology(CLOUDMATRIX, blocks=[(0, 24), (0, 24), (1, 48)]) == cluster_topology(
        CLOUDMATRIX, num_npus=768
    )
    assert cluster_topology(A2, blocks=[(0, 10), (1, 6)]) == cluster_topology(A2, num_npus=128)


def test_idle_ranks_are_left_out() -> None:
    topology = cluster_topology(CLOUDMATRIX, num_npus=400, num_ranks=768)
    assert (topology.num_ranks, topology.instances[1]) == (768, 1)
    assert cluster_topology(CLOUDMATRIX, num_npus=400).instances[1] == 2
    assert cluster_topology(A2, num_ranks=16) == cluster_topology(A2, num_npus=16)


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"blocks": [(0, 49)]}, "/blocks/0/nodes"),
        ({"blocks": [(1, 48), (0, 40), (0, 9)]}, "/blocks/1/nodes"),
        ({"blocks": [(0, 0)]}, "/blocks"),
        ({"blocks": []}, "/blocks"),
        ({"num_npus": 4, "num_ranks": 9}, ""),
        ({"num_npus": 0}, ""),
        ({}, ""),
    ],
)
def test_impossible_clusters_are_refused(arguments: dict[str, object], path: str) -> None:
    with pytest.raises(ProfileError) as error:
        cluster_topology(CLOUDMATRIX, **arguments)  # type: ignore[arg-type]
    assert error.value.path == path


def test_shapes_broadcast_with_the_candidate_first() -> None:
    topology = cluster_topology(A2, num_npus=6144)
    placement = topology.place(1, np.array([[2, 4], [8, 16]]))
    assert placement.ranks_t.shape == (2, 2, 2)
    assert placement.ranks_t.dtype == np.int64
