"""Cluster geometry: how many ranks of a communication group share one instance of each tier.

Ranks are numbered along the cluster: the dies of a card are neighbours, then the cards of a node, the nodes of a
supernode, the supernodes. A group is `size` ranks, `stride` apart, and the groups of one kind tile the ranks, so every
group starts at a multiple of stride * size plus an offset below the stride.

Between two instances of a tier lies a boundary. If every boundary is a multiple of the stride, a group is cut only
into pieces whose lengths are multiples of gcd(size, grain / stride), the grain being the greatest common divisor of
the tier's boundaries; in a cluster of many instances the smallest piece has exactly that length. A collective ends
with its worst-placed rank, and a small piece has the fewest links out of its instance, so that length is taken for
every piece. For even, aligned groups it is exact (8 of 32 ranks in a node of 8); a group that a broken node or a size
without common factors makes straddle a boundary is taken at its worst.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autodeploy.messages import Message
from hardware_profiles.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardware_profiles.profile import Profile

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class GroupPlacement:
    """Placement of the groups of each candidate. Arrays over candidates; tiers on the last axis, innermost first.

    `ranks_t` [..., n_tiers]: members of a group within one instance of tier t. Each entry divides the next; the last
    is the group's size.
    """

    stride: IntArray
    size: IntArray
    ranks_t: IntArray

    @cached_property
    def fan_out(self) -> IntArray:
        """[..., n_tiers] pieces of tier t - 1 that meet in one instance of tier t; their product is the size."""
        fan_out = self.ranks_t.copy()
        fan_out[..., 1:] //= self.ranks_t[..., :-1]
        return fan_out

    @property
    def outermost_tier(self) -> IntArray:
        """[...] index of the innermost tier that holds the whole group: the slowest one its traffic crosses."""
        outermost: IntArray = np.argmax(self.ranks_t == self.size[..., None], axis=-1)
        return outermost


@dataclass(frozen=True)
class ClusterTopology:
    """The ranks in use and the boundaries between instances of each tier.

    `grains` [n_tiers]: greatest common divisor of the tier's boundaries in ranks; 0 where one instance holds all.
    `instances` [n_tiers]: instances of the tier, partial ones included.
    `leaf_grain`: the grain of the leaf switches of the outermost tier; 0 where one, or none, is above all ranks.
    """

    num_ranks: int
    tier_names: tuple[str, ...]
    grains: tuple[int, ...]
    instances: tuple[int, ...]
    leaf_grain: int = 0

    def place(self, stride: ArrayLike, size: ArrayLike) -> GroupPlacement:
        """Place groups of `size` ranks `stride` apart (arrays that broadcast together, entries >= 1).

        A group that does not fit in the cluster (stride * size > num_ranks) has no placement and is not refused
        here: the arithmetic rules of the strategy space do that.
        """
        strides, sizes = np.asarray(stride, dtype=np.int64), np.asarray(size, dtype=np.int64)
        if strides.shape != sizes.shape:
            strides, sizes = np.broadcast_arrays(strides, sizes)
        grains = np.asarray(self.grains, dtype=np.int64)
        units, misfit = np.divmod(grains, strides[..., None])
        ranks = np.where(misfit == 0, np.gcd(sizes[..., None], units), 1)
        return GroupPlacement(stride=strides, size=sizes, ranks_t=ranks)

    def below_one_leaf(self, placed: GroupPlacement) -> IntArray | None:
        """[...] of the outermost tier's fan-out, how many lie below one leaf switch; None where all ranks do."""
        if not self.leaf_grain:
            return None
        units, misfit = np.divmod(np.int64(self.leaf_grain), placed.stride)
        members = np.where(misfit == 0, np.gcd(placed.size, units), 1)
        inside = placed.size // placed.fan_out[..., -1]
        near: IntArray = np.maximum(1, members // inside)
        return near


def cluster_topology(
    profile: Profile,
    *,
    num_npus: int | None = None,
    blocks: Sequence[tuple[int, int]] | None = None,
    num_ranks: int | None = None,
) -> ClusterTopology:
    """The geometry of a cluster: `num_npus` cards in full supernodes, or `blocks` of (supernode, healthy nodes).

    `num_ranks` keeps the first ranks only, when some of the cluster stays idle; alone it counts the cluster in ranks.
    ProfileError when a block has more nodes than a supernode or the ranks asked for are not there.
    """
    if blocks is not None:
        _check_blocks(profile, blocks)
        supernodes = [nodes * profile.ranks_per_node for nodes in _nodes_by_supernode(blocks).values()]
        total = sum(supernodes)
    else:
        total = num_npus * profile.devices_per_npu if num_npus is not None else (num_ranks or 0)
        supernodes = _even_lengths(total, profile.ranks_per_node * (profile.supernode_nodes or 0))
    used = total if num_ranks is None else num_ranks
    if not 1 <= used <= total:
        raise ProfileError(Message("common.exceeds", one=f"num_ranks {used}", other=f"{total}"))
    lengths = [
        supernodes if document.span == "supernode" else _even_lengths(total, tier.ranks or 0)
        for document, tier in zip(profile.document.tiers, profile.tiers, strict=True)
    ]
    boundaries = [_boundaries(used, tier_lengths) for tier_lengths in lengths]
    return ClusterTopology(
        num_ranks=used,
        tier_names=tuple(tier.name for tier in profile.tiers),
        grains=tuple(math.gcd(*inside) for inside in boundaries),
        instances=tuple(len(inside) + 1 for inside in boundaries),
        leaf_grain=_leaf_grain(profile, total, used, broken=blocks is not None),
    )


def _leaf_grain(profile: Profile, total: int, used: int, *, broken: bool) -> int:
    """Greatest common divisor of the boundaries between leaf switches in ranks; 0 without one.

    ProfileError where a leaf joins neither whole instances of the tier inside nor a part of one, or nodes are missing.
    """
    tier = profile.tiers[-1]
    if tier.leaf_nodes is None or tier.leaf_oversubscription == 1.0:
        return 0
    ranks, path = tier.leaf_nodes * profile.ranks_per_node, f"/tiers/{len(profile.tiers) - 1}/leaf_nodes"
    inside = (profile.tiers[-2].ranks if len(profile.tiers) > 1 else None) or 1
    if ranks % inside and inside % ranks:
        hint = Message("profiles.leaf_size", name=profile.tiers[-2].name, count=inside)
        raise ProfileError(Message("profiles.leaf_cuts_tier", count=ranks), path=path, hint=hint)
    if broken:
        hint = Message("common.leave_it_out_or", instead="num_npus")
        raise ProfileError(Message("specs.not_modelled_with", one="leaf_nodes", other="blocks"), path=path, hint=hint)
    return math.gcd(*_boundaries(used, _even_lengths(total, ranks)))


def _even_lengths(total: int, length: int) -> list[int]:
    """Lengths of the instances of an evenly cut line, the last one perhaps shorter; one instance if length is 0."""
    if length <= 0:
        return [total]
    whole, rest = divmod(total, length)
    return [length] * whole + ([rest] if rest else [])


def _boundaries(used: int, lengths: Sequence[int]) -> list[int]:
    """Boundaries strictly inside the first `used` ranks."""
    ends = np.cumsum(np.asarray(lengths, dtype=np.int64))
    return [int(end) for end in ends if end < used]


def _nodes_by_supernode(blocks: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Healthy nodes of each supernode, in the order in which they are first named."""
    nodes_of: dict[int, int] = {}
    for supernode, nodes in blocks:
        nodes_of[supernode] = nodes_of.get(supernode, 0) + nodes
    return nodes_of


def _check_blocks(profile: Profile, blocks: Sequence[tuple[int, int]]) -> None:
    if not blocks or any(nodes < 1 for _, nodes in blocks):
        raise ProfileError(Message("profiles.block_has_no_node"), path="/blocks", hint=Message("common.leave_it_out"))
    limit = profile.supernode_nodes
    nodes_of = _nodes_by_supernode(blocks)
    for index, (supernode, _) in enumerate(blocks):
        if limit is not None and nodes_of[supernode] > limit:
            raise ProfileError(
                Message(
                    "common.exceeds",
                    one=f"supernode {supernode}: nodes {nodes_of[supernode]}",
                    other=f"supernode_nodes {limit}",
                ),
                path=f"/blocks/{index}/nodes",
                hint=Message("field_fault.at_most", bound=limit),
            )
