"""The makespan of a schedule from its graph, for a batch of candidates at once.

A slot starts when its device is free and its inputs have arrived: end = max(end of the slot before, end of every input
+ its lag) + duration. The duration of a fused pair is F + B - hidden. Lags: see `sends`.

Parameters
----------
busy_s, idle_s : time of a device in slots; in gaps [n, P].
paired_hidden_s : hidden inside the pairs of a device [n, P].
start_s, end_s : of every slot [P, slots].
keep_times : whether they are kept.
graph : an `EventGraph`.
durations, lags : the tables that slots index [rows, n] [s].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.bounded_cache import kept
from cost_models.compiled import compiled, row_major
from cost_models.schedule.kinds import Schedule, schedule
from cost_models.schedule.orders import NONE, NUMBER, Numbers, OperationOrder, operation_order
from cost_models.schedule.sends import Sends, as_sends

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Ints


# An operation order compiled to a list of slots in which every slot comes after its inputs.
@dataclass(frozen=True, eq=False)
class EventGraph:
    """The slots of all devices, each after its inputs.

    Row `count` of an end-time table stands for time zero (before a device's first slot), row `count + 1` for "no such
    input". Inputs from the same device need no edge: the device's own order implies them.

    Attributes
    ----------
    previous : the slot before, on the same device [slot].
    first_input, second_input : slots on other devices whose output this slot waits for [slot].
    duration : row of the table of durations: p V + c forward, P V + p V + c backward, 2 P V + (p V + f) V + b pair
        [row].
    lag : row of the table of lags: 0 an output that leaves as the slot ends, 1 + (p V + f) V + b a pair, 1 + P V V + p
        V + b a split backward [row].
    flat : p * slots + s of each slot, which is slot s of device p in the order [slot].
    last : the last slot of each device [pp].
    width : slots of a device in the order.
    """

    count: int
    previous: Numbers
    first_input: Numbers
    second_input: Numbers
    duration: Numbers
    lag: Numbers
    flat: Numbers
    last: Ints
    width: int

    @property
    def no_lag(self) -> Numbers:
        """Row of the table of lags where it has one row [row]."""
        return np.zeros_like(self.lag)

    @property
    def device(self) -> Numbers:
        """The device of each slot [slot]."""
        return np.asarray(self.flat // self.width)

    @property
    def slot_of(self) -> Ints:
        """Position of each slot of the order in this sorted list, NONE where it has none [pp, slots]."""
        positions = np.full(len(self.last) * self.width, NONE)
        positions[self.flat] = np.arange(self.count)
        return positions.reshape(-1, self.width)


def event_graph(kind: str, pp: int, vpp: int, micro_batches: int) -> EventGraph:
    """The compiled graph of a schedule; see `operation_order` for the errors."""
    return _graph_of(schedule(kind), pp, vpp, micro_batches)


@kept(256)
def _graph_of(how: Schedule, pp: int, vpp: int, micro_batches: int) -> EventGraph:
    return compile_order(operation_order(how.name, pp, vpp, micro_batches))


def compile_order(order: OperationOrder) -> EventGraph:
    """Sort the slots and number their inputs.

    Raises
    ------
    RuntimeError : the order deadlocks, naming the slot at which each device is stuck.
    """
    first, second = _inputs(order)
    width = first.shape[1]
    flat, reached = _after_inputs(first, second, order.slots)
    if len(flat) < order.slots.sum():
        stuck = ", ".join(f"device {p} at slot {reached[p]}" for p in np.flatnonzero(reached < order.slots))
        raise RuntimeError(
            f"{order.kind} with pp {order.pp}, vpp {order.vpp}, {order.micro_batches} micro batches deadlocks: {stuck}"
        )
    count = len(flat)
    position = np.full(first.size + 1, count + 1, dtype=NUMBER)  # the last one is that of an absent input
    position[flat] = np.arange(count)
    by_device = position[:-1].reshape(first.shape)
    start = np.full((order.pp, 1), count, dtype=NUMBER)
    return EventGraph(
        count=count,
        previous=np.concatenate([start, by_device[:, :-1]], axis=1).ravel()[flat],
        first_input=position[first.ravel()[flat]],
        second_input=position[second.ravel()[flat]],
        duration=_duration_rows(order).ravel()[flat].astype(NUMBER),
        lag=_lag_rows(order).ravel()[flat].astype(NUMBER),
        flat=flat,
        last=by_device[np.arange(order.pp), order.slots - 1].astype(np.int64),
        width=width,
    )


def _duration_rows(order: OperationOrder) -> Ints:
    vpp, parts = order.vpp, order.pp * order.vpp
    device = np.arange(order.pp)[:, None] * vpp
    forward, backward = device + order.forward_chunk, parts + device + order.backward_chunk
    pair = 2 * parts + forward * vpp + order.backward_chunk
    return np.where(order.pairs, pair, np.where(order.forward_chunk != NONE, forward, backward))


def _lag_rows(order: OperationOrder) -> Ints:
    vpp, parts = order.vpp, order.pp * order.vpp
    device = np.arange(order.pp)[:, None] * vpp
    pair = 1 + (device + order.forward_chunk) * vpp + order.backward_chunk
    split = 1 + parts * vpp + device + order.backward_chunk
    return np.where(order.pairs, pair, np.where(order.splits, split, 0))


def _slot_numbers(order: OperationOrder) -> tuple[Numbers, Numbers]:
    """Flat slot p * slots + s of each forward and each backward [pp * vpp, micro batch]."""
    width = order.forward_chunk.shape[1]
    tables = []
    for micro_batch, chunk in (
        (order.forward_micro_batch, order.forward_chunk),
        (order.backward_micro_batch, order.backward_chunk),
    ):
        table = np.full((order.pp * order.vpp, order.micro_batches), NONE, dtype=NUMBER)
        device, slot = np.nonzero(chunk != NONE)
        table[device * order.vpp + chunk[device, slot], micro_batch[device, slot]] = device * width + slot
        tables.append(table)
    return tables[0], tables[1]


def _inputs(order: OperationOrder) -> tuple[Numbers, Numbers]:
    """Flat slots on other devices that each slot waits for [pp, slots] (two only for pairs), NONE where absent."""
    forwards, backwards = _slot_numbers(order)
    device = np.broadcast_to(np.arange(order.pp)[:, None], order.forward_chunk.shape)

    def waits(micro_batch: Numbers, chunk: Numbers, sender: Ints, table: Numbers) -> Numbers:
        part = np.where(chunk != NONE, sender[device, np.maximum(chunk, 0)], NONE)
        remote = (part != NONE) & (part // order.vpp != device)
        there = table[np.maximum(part, 0), np.maximum(micro_batch, 0)]
        return np.where(remote, there, np.array(NONE, dtype=NUMBER))

    ahead = waits(order.forward_micro_batch, order.forward_chunk, order.forward_from, forwards)
    behind = waits(order.backward_micro_batch, order.backward_chunk, order.backward_from, backwards)
    first = np.where(ahead != NONE, ahead, behind)
    return first, np.where((ahead != NONE) & (behind != NONE), behind, np.array(NONE, dtype=NUMBER))


@compiled
def _after_inputs(first: Numbers, second: Numbers, slots: Ints) -> tuple[Numbers, Ints]:
    """Flat slots in an order in which inputs come first, and how many of each device are in it [pp]."""
    devices, width = first.shape
    done = np.zeros(devices * width + 1, dtype=np.bool_)
    done[-1] = True  # NONE indexes the last entry: an absent input is always there
    reached = np.zeros(devices, dtype=np.int64)
    flat = np.empty(slots.sum(), dtype=np.int32)
    count, before = 0, -1
    while before < count:
        before = count
        for device in range(devices):
            at = reached[device]
            while at < slots[device] and done[first[device, at]] and done[second[device, at]]:
                flat[count] = device * width + at
                done[flat[count]] = True
                count += 1
                at += 1
            reached[device] = at
    return flat[:count], reached


BLOCK = 192
"""Candidates simulated at once, so that what their slots need stays in memory."""
MOST_ENDS = 250_000
"""Ends of slots that stay in the cache: of longer schedules fewer candidates are simulated at once."""
LEAST_TOGETHER = 8
"""Candidates simulated at once however long a schedule is: alone each takes three times as long."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of the graph for each candidate.

    makespan_s [n]; busy_s, idle_s, paired_hidden_s [n, pp]: time in slots, time in gaps (before, between and after
    slots, each measured as a gap), communication hidden inside pairs. start_s, end_s [pp, slots] of the first
    candidate when asked for, NaN-free: padding slots hold 0.
    """

    makespan_s: Floats
    busy_s: Floats
    idle_s: Floats
    paired_hidden_s: Floats
    start_s: Floats | None = None
    end_s: Floats | None = None


def makespan_s(
    order: OperationOrder,
    forward_s: Floats,
    backward_s: Floats,
    hidden_pair_s: Floats | None = None,
    p2p_s: Sends | Floats | float = 0.0,
) -> Floats:
    """Seconds from the first forward to the last backward [n].

    Parameters
    ----------
    forward_s, backward_s : time of one micro batch in each chunk [n, pp, vpp].
    hidden_pair_s : what the pair (forward chunk f, backward chunk b) of a device hides [n, pp, f, b]; None hides
        nothing.
    p2p_s : latency of an edge between two devices [n] or scalar, the sender's device being free meanwhile; or
        `Sends`, with what runs beside them.
    """
    graph, durations, lags = prepared(order, forward_s, backward_s, hidden_pair_s, p2p_s)
    blocks = blocks_of(durations.shape[1], graph.count)
    if len(lags) > 1:
        tables = (run_slots(graph, durations[:, b], lags[:, b])[0] for b in blocks)
        return np.concatenate([each[graph.last].max(axis=0) for each in tables])
    inputs = graph.previous, graph.first_input, graph.second_input, graph.duration
    lag, makespan = row_major(lags[0]), np.empty(durations.shape[1])
    for block in blocks:
        ends = np.empty((graph.count + 2, len(makespan[block])))
        ends[graph.count :] = ((0.0,), (-np.inf,))
        _run_alike(*inputs, row_major(durations[:, block]), lag[block], ends)
        makespan[block] = ends[graph.last].max(axis=0)
    return makespan


def simulate(
    order: OperationOrder,
    forward_s: Floats,
    backward_s: Floats,
    hidden_pair_s: Floats | None = None,
    p2p_s: Sends | Floats | float = 0.0,
    *,
    keep_times: bool = False,
) -> Timeline:
    """Makespan, busy time and gaps of every device; parameters as `makespan_s`.

    keep_times adds the start and end of every slot of candidate 0. On every device busy + idle = makespan.
    """
    graph, durations, lags = prepared(order, forward_s, backward_s, hidden_pair_s, p2p_s)
    blocks = blocks_of(durations.shape[1])  # sums over slots: their last bits depend on how many stand side by side
    parts = [_account(order, graph, durations[:, block], lags[:, block]) for block in blocks]
    makespan, busy, idle = (np.concatenate([part[i] for part in parts]) for i in range(3))
    hidden = np.zeros_like(busy)
    if hidden_pair_s is not None:
        counts = pair_counts(order.kind, order.pp, order.vpp, order.micro_batches)
        hidden = np.einsum("npfb,pfb->np", hidden_pair_s, counts.astype(np.float64))
    start = end = None
    if keep_times:
        table = np.append(run_slots(graph, durations[:, :1], lags[:, :1])[0][: graph.count, 0], 0.0)
        end = table[graph.slot_of]
        start = end - np.append(durations[graph.duration, 0], 0.0)[graph.slot_of]
    return Timeline(makespan, busy, idle, hidden, start, end)


def pair_counts(kind: str, pp: int, vpp: int, micro_batches: int) -> npt.NDArray[np.int64]:
    """Number of times each device fuses a forward of chunk f with a backward of chunk b [pp, f, b].

    See `operation_order` for the errors.
    """
    return _pairs_of(schedule(kind), pp, vpp, micro_batches)


@kept(256)
def _pairs_of(how: Schedule, pp: int, vpp: int, micro_batches: int) -> npt.NDArray[np.int64]:
    order = operation_order(how.name, pp, vpp, micro_batches)
    counts = np.zeros((order.pp, order.vpp, order.vpp), dtype=np.int64)
    device, slot = np.nonzero(order.pairs)
    np.add.at(counts, (device, order.forward_chunk[device, slot], order.backward_chunk[device, slot]), 1)
    counts.setflags(write=False)
    return counts


def simulated_together(order: OperationOrder) -> int:
    """Candidates of an order whose makespans are simulated side by side: more take as long each."""
    return _together(int(order.slots.sum()))


def _together(slots: int) -> int:
    return max(LEAST_TOGETHER, min(BLOCK, MOST_ENDS // max(slots, 1)))


def blocks_of(candidates: int, slots: int = 0) -> list[slice]:
    size = _together(slots)
    return [slice(start, start + size) for start in range(0, candidates, size)]


def prepared(
    order: OperationOrder,
    forward_s: Floats,
    backward_s: Floats,
    hidden_pair_s: Floats | None,
    p2p_s: Sends | Floats | float,
) -> tuple[EventGraph, Floats, Floats]:
    """The graph and the tables of durations and of lags [rows, n] that its slots index."""
    candidates = forward_s.shape[0]
    if forward_s.shape != (candidates, order.pp, order.vpp) or backward_s.shape != forward_s.shape:
        raise ValueError(
            f"forward_s and backward_s must have the shape [n, {order.pp}, {order.vpp}], "
            f"not {forward_s.shape} and {backward_s.shape}"
        )
    rows = [forward_s.reshape(candidates, -1), backward_s.reshape(candidates, -1)]
    if order.has_pairs:
        pair = forward_s[..., :, None] + backward_s[..., None, :]
        if hidden_pair_s is not None:
            pair = pair - hidden_pair_s
        rows.append(pair.reshape(candidates, -1))
    graph = event_graph(order.kind, order.pp, order.vpp, order.micro_batches)
    durations = np.ascontiguousarray(np.concatenate(rows, axis=1).T)
    return graph, durations, as_sends(p2p_s).lags_s(order, candidates)


def run_slots(graph: EventGraph, durations: Floats, lags: Floats) -> tuple[Floats, Floats]:
    """When every slot ends, and when its output arrives elsewhere [count + 2, n].

    The last two rows are time zero and "no such input".
    """
    ends, arrivals = (np.empty((graph.count + 2, durations.shape[1])) for _ in range(2))
    for table in (ends, arrivals):
        table[graph.count :] = ((0.0,), (-np.inf,))
    inputs = graph.previous, graph.first_input, graph.second_input
    lag = graph.lag if len(lags) > 1 else graph.no_lag
    tables = row_major(durations), row_major(lags)
    _run(*inputs, graph.duration, lag, *tables, ends, arrivals)
    return ends, arrivals


@compiled
def _run(
    previous: Numbers,
    first_input: Numbers,
    second_input: Numbers,
    duration: Numbers,
    lag: Numbers,
    durations: Floats,
    lags: Floats,
    ends: Floats,
    arrivals: Floats,
) -> None:
    """Fill `ends` and `arrivals` slot by slot."""
    for slot in range(len(previous)):
        before, first, second = previous[slot], first_input[slot], second_input[slot]
        length, late = duration[slot], lag[slot]
        for candidate in range(ends.shape[1]):
            ready = max(ends[before, candidate], arrivals[first, candidate], arrivals[second, candidate])
            end = ready + durations[length, candidate]
            ends[slot, candidate] = end
            arrivals[slot, candidate] = end + lags[late, candidate]


@compiled
def _run_alike(
    previous: Numbers,
    first_input: Numbers,
    second_input: Numbers,
    duration: Numbers,
    durations: Floats,
    lag_s: Floats,
    ends: Floats,
) -> None:
    """`_run` where every output arrives as long after its slot [n]: it fills `ends` alone."""
    for slot in range(len(previous)):
        before, first, second, length = previous[slot], first_input[slot], second_input[slot], duration[slot]
        for candidate in range(ends.shape[1]):
            late = lag_s[candidate]
            ready = max(ends[before, candidate], ends[first, candidate] + late, ends[second, candidate] + late)
            ends[slot, candidate] = ready + durations[length, candidate]


def _account(
    order: OperationOrder, graph: EventGraph, durations: Floats, lags: Floats
) -> tuple[Floats, Floats, Floats]:
    """Makespan [n], busy and idle [n, pp] of one block."""
    ends, arrivals = run_slots(graph, durations, lags)
    makespan = ends[graph.last].max(axis=0)
    gap = np.maximum(arrivals[graph.first_input], arrivals[graph.second_input]) - ends[graph.previous]
    gap = np.maximum(gap, 0.0)
    length = durations[graph.duration]
    busy, idle = np.empty((durations.shape[1], order.pp)), np.empty((durations.shape[1], order.pp))
    for device in range(order.pp):
        on_device = graph.device == device
        busy[:, device] = length[on_device].sum(axis=0)
        idle[:, device] = gap[on_device].sum(axis=0) + (makespan - ends[graph.last[device]])
    return makespan, busy, idle
