"""The longest path through a schedule's graph, as counts of how often it passes each chunk.

For a fixed operation order the makespan is the maximum over paths, and every path is linear in the chunk times. The
path that is longest for one layout is therefore a lower bound on the makespan of every other layout: a cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.schedule.simulation import Floats, _ends, _prepared

if TYPE_CHECKING:
    from cost_models.schedule.orders import OperationOrder

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SchedulePath:
    """How often a path runs each chunk's forward and backward [pp, vpp], fuses a pair [pp, f, b], crosses an edge.

    A pair counts in `forward` and in `backward` too, and its hidden time is taken off again by `pairs`.
    """

    forward: Ints
    backward: Ints
    pairs: Ints
    edges: int

    def length_s(
        self,
        forward_s: Floats,
        backward_s: Floats,
        hidden_pair_s: Floats | None = None,
        p2p_s: Floats | float = 0.0,
    ) -> Floats:
        """Seconds along this path [n]: a lower bound on the makespan of every candidate of the same order."""
        length = np.einsum("npc,pc->n", forward_s, self.forward.astype(np.float64))
        length += np.einsum("npc,pc->n", backward_s, self.backward.astype(np.float64))
        if hidden_pair_s is not None:
            length -= np.einsum("npfb,pfb->n", hidden_pair_s, self.pairs.astype(np.float64))
        return np.asarray(length + self.edges * np.asarray(p2p_s))


def critical_path(
    order: OperationOrder,
    forward_s: Floats,
    backward_s: Floats,
    hidden_pair_s: Floats | None = None,
    p2p_s: float = 0.0,
) -> SchedulePath:
    """The longest path of one candidate; forward_s, backward_s [pp, vpp], hidden_pair_s [pp, vpp, vpp]."""
    hidden = None if hidden_pair_s is None else hidden_pair_s[None]
    return critical_paths(order, forward_s[None], backward_s[None], hidden, p2p_s)[0]


def critical_paths(
    order: OperationOrder,
    forward_s: Floats,
    backward_s: Floats,
    hidden_pair_s: Floats | None = None,
    p2p_s: float = 0.0,
) -> list[SchedulePath]:
    """The longest path of every candidate; parameters as `simulation.makespan_s`.

    Among inputs that arrive at the same moment the device's own previous slot comes first, so that the path stays on
    the pacing device.
    """
    graph, durations, edge = _prepared(order, forward_s, backward_s, hidden_pair_s, p2p_s)
    ends = _ends(graph, durations, edge)
    links = (graph.previous.tolist(), graph.first_input.tolist(), graph.second_input.tolist())
    paths = []
    for candidate in range(len(edge)):
        passed, edges = _trace(ends[:, candidate].tolist(), links, graph.last.tolist(), graph.count, p2p_s)
        paths.append(_counted(order, graph.duration[passed], edges))
    return paths


def _trace(
    ends: list[float], links: tuple[list[int], list[int], list[int]], last: list[int], count: int, p2p_s: float
) -> tuple[list[int], int]:
    """Slots of the longest path, from its end to its start, and how many edges between devices it takes."""
    previous, first, second = links
    slot = max(last, key=lambda i: ends[i])
    tolerance = 1e-12 * ends[slot]
    passed, edges = [], 0
    while slot < count:
        passed.append(slot)
        before = previous[slot]
        remote = max(first[slot], second[slot], key=lambda i: ends[i])
        if ends[remote] + p2p_s > ends[before] + tolerance:
            before, edges = remote, edges + 1
        slot = before
    return passed, edges


def _counted(order: OperationOrder, rows: Ints, edges: int) -> SchedulePath:
    parts, vpp = order.pp * order.vpp, order.vpp
    tally = np.bincount(rows, minlength=2 * parts + parts * vpp)
    pairs = tally[2 * parts :].reshape(order.pp, vpp, vpp)
    forward = tally[:parts].reshape(order.pp, vpp) + pairs.sum(axis=2)
    backward = tally[parts : 2 * parts].reshape(order.pp, vpp) + pairs.sum(axis=1)
    return SchedulePath(forward, backward, pairs, edges)
