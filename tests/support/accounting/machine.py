"""A machine as plain floats, who sits where in it, and what one operator or one message takes.

Written apart from the planner's own formulas, from their definitions: scalars only, one operator at a time.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class Link:
    """One tier of the network: `instance` ranks share it, the whole cluster where None.

    Of the outermost tier, `leaf` ranks are below one switch, whose uplinks carry 1 / `narrower` of what they can send.
    """

    instance: int | None
    bytes_per_s: float
    mesh_links: int  # of a full mesh; 0 for a switch
    latency_s: float
    efficiency: float
    half_size: float  # bytes that a rank receives in one pass while half of the rate is lost to starting
    leaf: int | None = None
    narrower: float = 1.0

    def start_s(self) -> float:
        """(s + s_half) / rate less s / rate."""
        return self.half_size / (self.bytes_per_s * self.efficiency)

    def home(self, rank: int) -> int:
        """Which instance a rank is in."""
        return 0 if self.instance is None else rank // self.instance

    def switch(self, rank: int) -> int:
        """Which leaf switch a rank is below."""
        return 0 if self.leaf is None else rank // self.leaf

    def above(self, members: list[int], held: int) -> float:
        """Share of what a member receives over this tier, in pieces of `held` members, that comes through uplinks."""
        first = members[0]
        far = sum(self.switch(r) != self.switch(first) for r in members[held:])
        return far / max(len(members) - held, 1)

    def hop_slower(self, members: list[int]) -> float:
        """All members send to the next one: those that leave a leaf share its uplinks, which are all its ranks'."""
        slowest = 1.0
        for here, there in itertools.pairwise([*members, members[0]]):
            if self.switch(here) != self.switch(there):
                beside = sum(self.switch(r) == self.switch(here) for r in members)
                slowest = max(slowest, self.narrower / beside)
        return slowest


@dataclass(frozen=True)
class Numbers:
    """Everything the accounting knows about a device, its host and its network."""

    peak_flops: float
    hbm_bytes_per_s: float
    gemm_fraction: float
    gemm_k_half: float
    gemm_mn_half: float
    grouped_gemm: float
    attention_forward: float
    attention_backward: float
    attention_head_dim_half: float
    attention_seq_half: float
    hbm_fraction: float
    movement_fraction: float
    cube_op_s: float
    vector_op_s: float
    gemm_units: float
    comm_op_s: float
    issue_s: float
    sync_s: float
    host_link_bytes_per_s: float
    software_factor: float
    dispatch_loss: float
    combine_loss: float
    contention: float
    overlap: float
    runtime_bytes: float
    communicator_bytes: float
    fragmentation: float
    links: tuple[Link, ...]
    cube_cores: float = 1.0
    pipelined_tiles: bool = False
    grouped_gemm_exposed: float = 0.0
    gemm_added_exposed: float = 0.0
    operand_fraction: float = 1.0
    whole_rows_fraction: float = 1.0
    routing_factor: float = 1.0

    def with_one_tier(self, number: int) -> Numbers:
        """A machine on which only the messages over one tier of links take time."""
        free = [replace(link, bytes_per_s=math.inf, latency_s=0.0) for link in self.links]
        free[number] = self.links[number]
        return replace(self, links=tuple(free), comm_op_s=0.0)

    # -- operators -------------------------------------------------------------------------------------------

    def _matrix_rate(self, m: float, n: float, k: float, groups: float = 1) -> float:
        waits = self.gemm_k_half
        if self.pipelined_tiles:
            # A core waits at the first of its tiles only; an operator has no fewer tiles than products.
            mine = groups * max(m, 128) / 128 * max(n, 256) / 256 / self.cube_cores
            waits /= max(mine, 1)
        lost = waits / k + self.gemm_mn_half / m + self.gemm_mn_half / n
        return self.peak_flops * self.gemm_fraction / (1 + lost)

    def _touched_s(self, m: float, n: float, k: float, result: float) -> float:
        """Seconds to read both operands and to move `result` bytes for an element of the product."""
        return (2 * (m * k + k * n) + result * m * n) / (self.hbm_bytes_per_s * self.operand_fraction)

    def gemm(self, m: float, n: float, k: float, groups: float = 1, result: float = 2) -> float:
        """C[m, n] = A[m, k] B[k, n], `groups` in one operator: matrix or memory rate, and the fixed cost once."""
        matrix_s = (
            self._in_waves(m, n, k, groups) / groups
            if self.gemm_units
            else 2 * m * n * k / self._matrix_rate(m, n, k, groups)
        )
        each_s = max(matrix_s, self._touched_s(m, n, k, result)) + self._added_s(m, n, result, matrix_s)
        return (groups * each_s + self.cube_op_s) * self.software_factor

    def _added_s(self, m: float, n: float, result: float, matrix_s: float) -> float:
        """Seconds that a result's way into a wider sum shows: a share of the bytes beyond its own two."""
        beyond_s = max(result - 2, 0) * m * n / (self.hbm_bytes_per_s * self.operand_fraction)
        return self.gemm_added_exposed * min(matrix_s, beyond_s)

    def _in_waves(self, m: float, n: float, k: float, groups: float) -> float:
        """Seconds of all products on the matrix units, a tile on every one at a time."""
        per_unit = self.peak_flops * self.gemm_fraction / self.gemm_units
        return self._deepest(m, n, k, self.gemm_units, groups) / per_unit

    def rounds(self, m: float, n: float, k: float) -> float:
        """FLOPs of one matrix core while the cores together work through the tiles of a product."""
        return self._deepest(m, n, k, self.cube_cores, 1)

    def _deepest(self, m: float, n: float, k: float, units: float, groups: float) -> float:
        """FLOPs that one unit goes through; the library's best of three tiles and six ways to cut the depth."""
        found = []
        for high, wide, rate in ((256, 128, 1), (128, 256, 1), (128, 128, 0.95)):
            for cut in (1, 2, 3, 4, 6, 8):
                depth = k / cut + self.gemm_k_half
                rounds = math.ceil(groups * math.ceil(m / high) * math.ceil(n / wide) * cut / units)
                found.append(rounds * 2 * high * wide * depth / rate)
        return min(found)

    def grouped_gemm_s(
        self, groups: float, m: float, n: float, k: float, *, fused: bool, rows_differ: bool = True, result: float = 2
    ) -> float:
        """`groups` multiplications of m rows: whose groups end in half a tile, in one operator or one each."""
        together = groups if fused else 1
        tiled = m
        others = 1 - 1 / max(groups, 1)
        if rows_differ and not self.gemm_units:
            tiled += others * 128 / 2
        if self.gemm_units:
            rate = together * 2 * m * n * k / self._in_waves(m, n, k, together)
        else:
            rate = self._matrix_rate(tiled, n, k, together)
        rate *= self.grouped_gemm if together > 1 else 1
        matrix_s, memory_s = 2 * tiled * n * k / rate, self._touched_s(m, n, k, result)
        stored_s = result * m * n / (self.hbm_bytes_per_s * self.operand_fraction)
        shown = self.grouped_gemm_exposed * others
        fixed = self.cube_op_s * (1 if fused else groups)
        added_s = self._added_s(m, n, result, matrix_s) / max(groups, 1)
        seconds = groups * (max(matrix_s, memory_s) + shown * min(matrix_s, stored_s) + added_s) + fixed
        return seconds * self.software_factor

    def attention(self, flops: float, head_dim: float, seq: float, *, backward: bool) -> float:
        """A pass of flash attention that computes `flops` in products of mean width `head_dim`."""
        half = self.attention_head_dim_half
        full = (head_dim / (head_dim + half)) / (128 / (128 + half)) * seq / (seq + self.attention_seq_half)
        fraction = self.attention_backward if backward else self.attention_forward
        return (flops / (self.peak_flops * fraction * full) + self.cube_op_s) * self.software_factor

    def stream(self, moved: float, operators: float) -> float:
        """Vector operators that stream `moved` bytes."""
        seconds = moved / (self.hbm_bytes_per_s * self.hbm_fraction) + operators * self.vector_op_s
        return seconds * self.software_factor

    def scatter(self, moved: float, operators: float) -> float:
        """Operators that move rows by index."""
        seconds = moved / (self.hbm_bytes_per_s * self.movement_fraction) + operators * self.vector_op_s
        return seconds * self.software_factor

    def permute(self, moved: float, operators: float) -> float:
        """One kernel that moves whole rows."""
        seconds = moved / (self.hbm_bytes_per_s * self.whole_rows_fraction) + operators * self.vector_op_s
        return seconds * self.software_factor

    # -- messages --------------------------------------------------------------------------------------------

    def together(self, members: list[int]) -> list[int]:
        """How many members share an instance of each tier with the first one, innermost tier first."""
        return _together(tuple(link.instance for link in self.links), tuple(members))

    def _rate(self, link: Link, peers: int) -> float:
        share = min(1.0, peers / link.mesh_links) if link.mesh_links else 1.0
        return link.bytes_per_s * link.efficiency * share

    def all_gather(self, output: float, members: list[int], fixed: float | None = None) -> float:
        """Every member ends with `output` bytes: across the outermost tier first, each tier on its own links."""
        size = len(members)
        if size == 1:
            return 0.0
        spans, total, held = self.together(members), 0.0, output / size
        for tier in reversed(range(len(self.links))):
            link, inside = self.links[tier], spans[tier - 1] if tier else 1
            pieces = spans[tier] // inside
            if pieces > 1:
                steps = 1 if link.mesh_links else math.ceil(math.log2(pieces))
                # A tree's steps follow each other: blocks from other leaves take `narrower` times as long.
                waits = 1 + (link.narrower - 1) * link.above(members, inside)
                sent_s = waits * held * (pieces - 1) / self._rate(link, pieces - 1)
                total += sent_s + steps * link.latency_s + link.start_s()
            held *= pieces
        return total + (self.comm_op_s if fixed is None else fixed)

    def all_reduce(self, payload: float, members: list[int], fixed: float | None = None) -> float:
        """Reduce-scatter, then all-gather."""
        if len(members) == 1:
            return 0.0
        return 2 * self.all_gather(payload, members, 0.0) + (self.comm_op_s if fixed is None else fixed)

    def send(self, payload: float, first: int, second: int, among: list[int]) -> float:
        """One message between two ranks, over the innermost tier that joins them, while all of `among` send on."""
        link = next(one for one in self.links if one.home(first) == one.home(second))
        sent_s = payload * link.hop_slower(among) / self._rate(link, 1)
        return sent_s + link.latency_s + link.start_s() + self.comm_op_s

    def ring_step(self, chunk: float, members: list[int]) -> float:
        """All members pass a chunk on: the slowest hop counts."""
        if len(members) == 1:
            return 0.0
        pairs = zip(members, members[1:] + members[:1], strict=True)
        return max(self.send(chunk, a, b, members) for a, b in pairs)

    def _peers_s(self, received: float, peers: int, pieces: int, link: Link, loss: float, beside: int = 1) -> float:
        """Pairwise exchange with `peers` ranks of one tier, each step of which starts the links.

        Beyond eight ranks it slows, those of the exchanges `beside` it on the same fabric included.
        """
        slower = 1 + loss * math.log2(max(peers * beside + 1, 8) / 8)
        steps = 1 if link.mesh_links else math.ceil(math.log2(peers + 1))
        return received * slower / self._rate(link, pieces - 1) + steps * (link.latency_s + link.start_s())

    def all_to_all(
        self,
        token_bytes: float,
        choices: float,
        members: list[int],
        *,
        imbalance: float = 1.0,
        fixed: float | None = None,
        deduplicate: bool = False,
        expert_groups: int = 0,
        picked_groups: int = 0,
        loss: float = 0.0,
    ) -> float:
        """Each token to `choices` of the members; the tiers' links run side by side.

        deduplicate: a token crosses the outermost tier once for each instance that it goes to; its experts lie in
        `picked_groups` of `expert_groups`.
        """
        size = len(members)
        if size == 1:
            return 0.0
        spans, slowest = self.together(members), 0.0
        for tier, link in enumerate(self.links):
            inside = spans[tier - 1] if tier else 1
            peers, pieces = spans[tier] - inside, spans[tier] // inside
            if not peers:
                continue
            # A token that crosses once is copied to its experts' ranks from where it landed.
            copies = choices * peers / (spans[-2] if deduplicate and len(spans) > 1 else size)
            if deduplicate and tier == len(self.links) - 1:
                copies = (pieces - 1) * _reached(pieces, choices, expert_groups, picked_groups)
            # Messages to all peers travel at once: ports or uplinks set the pace.
            waits = max(1.0, link.narrower * link.above(members, inside))
            slowest = max(slowest, self._peers_s(token_bytes * copies * imbalance * waits, peers, pieces, link, loss))
        return slowest + (self.comm_op_s if fixed is None else fixed)

    def two_step(
        self, token_bytes: float, choices: float, members: list[int], imbalance: float, loss: float = 0.0
    ) -> float:
        """All-gather across the outermost tier beside an All-to-All inside; pipelined, so the slower one counts."""
        if len(members) == 1:
            return 0.0
        spans = self.together(members)
        inside = spans[-2] if len(spans) > 1 else 1
        outside = len(members) // inside
        outer = 0.0
        if outside > 1:
            last = self.links[-1]
            waits = 1 + (last.narrower - 1) * last.above(members, inside)
            outer = self._peers_s((outside - 1) * token_bytes * waits, outside - 1, outside, last, loss, inside)
        near = [r for r in members if self.links[-2].home(r) == self.links[-2].home(members[0])]
        inner = self.all_to_all(token_bytes, choices, near, imbalance=imbalance, fixed=0.0, loss=loss)
        return max(outer, inner) + 2 * self.comm_op_s


@lru_cache(maxsize=4096)
def _together(instances: tuple[int | None, ...], members: tuple[int, ...]) -> list[int]:
    """How many members share an instance of so many ranks with the first one."""
    return [
        len(members) if size is None else sum(rank // size == members[0] // size for rank in members)
        for size in instances
    ]


def _reached(nodes: int, choices: float, groups: int, picked: int) -> float:
    """Probability that one of `nodes` holds one of a token's experts, which lie in `picked` of the groups at most."""
    if not groups or picked >= groups:
        return 1 - (1 - 1 / nodes) ** choices
    if nodes > groups:  # a group over several nodes: it must be picked, and one of the experts be in the node's part
        return picked / groups * (1 - (1 - groups / (nodes * picked)) ** choices)
    here, hit = groups // nodes, 0.0
    for mine in range(min(here, picked) + 1):
        ways = math.comb(here, mine) * math.comb(groups - here, picked - mine)
        hit += ways / math.comb(groups, picked) * (1 - (1 - mine / picked) ** choices)
    return hit
