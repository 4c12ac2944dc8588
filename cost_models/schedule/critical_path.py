"""The longest path through a schedule's graph, as counts of how often it passes each chunk.

For a fixed operation order the makespan is the maximum over paths, and every path is linear in the chunk times. The
path that is longest for one layout is therefore a lower bound on the makespan of every other layout: a cut.

Parameters
----------
forward, backward, pairs : how often a `SchedulePath` runs each pass and each pair [count].
edges, covered, split : edges that it crosses; of these, out of a pair, out of a split backward [count].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.compiled import compiled
from cost_models.schedule.sends import Sends, as_sends
from cost_models.schedule.simulation import blocks_of, prepared, run_slots

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Ints
    from cost_models.schedule.orders import Numbers, OperationOrder

EQUAL = 1e-12
"""Of the makespan: inputs that arrive within this much of one another arrive at the same moment."""


@dataclass(frozen=True, eq=False)
class SchedulePath:
    """Counts of a path: each chunk's forward and backward [pp, vpp], fused pairs [pp, f, b], edges that it crosses.

    A pair counts in `forward` and in `backward` too, and its hidden time is taken off again by `pairs`. Of the edges,
    `covered` [pp, f, b] leave a pair and `split` [pp, vpp] a split backward of that chunk.
    """

    forward: Ints
    backward: Ints
    pairs: Ints
    edges: int
    covered: Ints
    split: Ints

    def length_s(
        self,
        forward_s: Floats,
        backward_s: Floats,
        hidden_pair_s: Floats | None = None,
        p2p_s: Sends | Floats | float = 0.0,
    ) -> Floats:
        """Seconds along this path [n]: a lower bound on the makespan of every candidate of the same order."""
        length = np.einsum("npc,pc->n", forward_s, self.forward.astype(np.float64))
        length += np.einsum("npc,pc->n", backward_s, self.backward.astype(np.float64))
        if hidden_pair_s is not None:
            length -= np.einsum("npfb,pfb->n", hidden_pair_s, self.pairs.astype(np.float64))
        sends = as_sends(p2p_s)
        p2p = np.broadcast_to(np.asarray(sends.p2p_s, dtype=np.float64), length.shape)
        length += self.edges * p2p
        if sends.covering_s is not None:
            saved = np.minimum(sends.covering_s, p2p[:, None, None, None])
            length -= np.einsum("npfb,pfb->n", saved, self.covered.astype(np.float64))
        if sends.split_s is not None:
            length -= np.einsum("npc,pc->n", sends.split_s, self.split.astype(np.float64))
        return np.asarray(length)


def critical_path(
    order: OperationOrder,
    forward_s: Floats,
    backward_s: Floats,
    hidden_pair_s: Floats | None = None,
    p2p_s: Sends | float = 0.0,
) -> SchedulePath:
    """The longest path of one candidate; forward_s, backward_s [pp, vpp], hidden_pair_s [pp, vpp, vpp]."""
    hidden = None if hidden_pair_s is None else hidden_pair_s[None]
    return critical_paths(order, forward_s[None], backward_s[None], hidden, p2p_s)[0]


def critical_paths(
    order: OperationOrder,
    forward_s: Floats,
    backward_s: Floats,
    hidden_pair_s: Floats | None = None,
    p2p_s: Sends | float = 0.0,
) -> list[SchedulePath]:
    """The longest path of every candidate; parameters as `simulation.makespan_s`.

    Among inputs that arrive at the same moment the device's own previous slot comes first, so that the path stays on
    the pacing device.
    """
    graph, durations, lags = prepared(order, forward_s, backward_s, hidden_pair_s, p2p_s)
    inputs, paths = (graph.previous, graph.first_input, graph.second_input), []
    for block in blocks_of(durations.shape[1], 2 * graph.count):
        ends, arrivals = run_slots(graph, durations[:, block], lags[:, block])
        last_s = ends[graph.last]
        for candidate, start in enumerate(graph.last[last_s.argmax(axis=0)].tolist()):
            equal_s = EQUAL * float(last_s[:, candidate].max())
            passed, crossed = _walk(*inputs, ends, arrivals, candidate, start, equal_s)
            paths.append(_counted(order, graph.duration[passed], graph.lag[crossed]))
    return paths


@compiled
def _walk(
    previous: Numbers,
    first_input: Numbers,
    second_input: Numbers,
    ends: Floats,
    arrivals: Floats,
    candidate: int,
    slot: int,
    equal_s: float,
) -> tuple[Ints, Ints]:
    """Slots of a path from its last to its first, which starts at time zero, and those another device waited for."""
    passed, crossed = [slot][:0], [slot][:0]
    while slot < len(previous):
        passed.append(slot)
        first, second = first_input[slot], second_input[slot]
        sender = second if arrivals[second, candidate] > arrivals[first, candidate] else first
        if arrivals[sender, candidate] > ends[previous[slot], candidate] + equal_s:
            crossed.append(sender)
            slot = sender
        else:
            slot = previous[slot]
    return np.array(passed, dtype=np.int64), np.array(crossed, dtype=np.int64)


def _counted(order: OperationOrder, rows: Numbers, lags: Numbers) -> SchedulePath:
    parts, vpp = order.pp * order.vpp, order.vpp
    tally = np.bincount(rows, minlength=2 * parts + parts * vpp)
    pairs = tally[2 * parts :].reshape(order.pp, vpp, vpp)
    forward = tally[:parts].reshape(order.pp, vpp) + pairs.sum(axis=2)
    backward = tally[parts : 2 * parts].reshape(order.pp, vpp) + pairs.sum(axis=1)
    crossed = np.bincount(lags, minlength=1 + parts * vpp + parts)[1:]
    covered, split = crossed[: parts * vpp].reshape(pairs.shape), crossed[parts * vpp :].reshape(forward.shape)
    return SchedulePath(forward, backward, pairs, len(lags), covered, split)
