"""An operation order compiled to a list of slots in which every slot comes after its inputs.

Parameters
----------
count : slots of the graph, each after its inputs [count].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.compiled import compiled
from cost_models.kept import kept
from cost_models.schedule.kinds import Schedule, schedule
from cost_models.schedule.orders import NONE, OperationOrder, operation_order

if TYPE_CHECKING:
    from cost_models.arrays import Ints


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
    device : the device of each slot.
    last : the last slot of each device [pp].
    slot_of : position [pp, slots] of each slot of the order in this sorted list [slot].
    """

    count: int
    previous: Ints
    first_input: Ints
    second_input: Ints
    duration: Ints
    lag: Ints
    device: Ints
    last: Ints
    slot_of: Ints


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
    position = np.full(first.size, count + 1)
    position[flat] = np.arange(count)
    by_device = position.reshape(first.shape)
    previous = np.concatenate([np.full((order.pp, 1), count), by_device[:, :-1]], axis=1).ravel()[flat]
    return EventGraph(
        count=count,
        previous=previous,
        first_input=_positions(first, position, count, flat),
        second_input=_positions(second, position, count, flat),
        duration=_duration_rows(order).ravel()[flat],
        lag=_lag_rows(order).ravel()[flat],
        device=flat // width,
        last=by_device[np.arange(order.pp), order.slots - 1],
        slot_of=np.where(np.arange(width) < order.slots[:, None], by_device, NONE),
    )


def _positions(slot: Ints, position: Ints, count: int, flat: Ints) -> Ints:
    chosen = slot.ravel()[flat]
    return np.where(chosen < 0, count + 1, position[np.maximum(chosen, 0)])


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


def _slot_numbers(order: OperationOrder) -> tuple[Ints, Ints]:
    """Flat slot p * slots + s of each forward and each backward [pp * vpp, micro batch]."""
    width = order.forward_chunk.shape[1]
    tables = []
    for micro_batch, chunk in (
        (order.forward_micro_batch, order.forward_chunk),
        (order.backward_micro_batch, order.backward_chunk),
    ):
        table = np.full((order.pp * order.vpp, order.micro_batches), NONE)
        device, slot = np.nonzero(chunk != NONE)
        table[device * order.vpp + chunk[device, slot], micro_batch[device, slot]] = device * width + slot
        tables.append(table)
    return tables[0], tables[1]


def _inputs(order: OperationOrder) -> tuple[Ints, Ints]:
    """Flat slots on other devices that each slot waits for [pp, slots] (two only for pairs), NONE where absent."""
    forwards, backwards = _slot_numbers(order)
    device = np.broadcast_to(np.arange(order.pp)[:, None], order.forward_chunk.shape)

    def waits(micro_batch: Ints, chunk: Ints, sender: Ints, table: Ints) -> Ints:
        part = np.where(chunk != NONE, sender[device, np.maximum(chunk, 0)], NONE)
        remote = (part != NONE) & (part // order.vpp != device)
        return np.where(remote, table[np.maximum(part, 0), np.maximum(micro_batch, 0)], NONE)

    ahead = waits(order.forward_micro_batch, order.forward_chunk, order.forward_from, forwards)
    behind = waits(order.backward_micro_batch, order.backward_chunk, order.backward_from, backwards)
    first = np.where(ahead != NONE, ahead, behind)
    return first, np.where((ahead != NONE) & (behind != NONE), behind, NONE)


@compiled
def _after_inputs(first: Ints, second: Ints, slots: Ints) -> tuple[Ints, Ints]:
    """Flat slots in an order in which inputs come first, and how many of each device are in it [pp]."""
    devices, width = first.shape
    done = np.zeros(devices * width + 1, dtype=np.bool_)
    done[-1] = True  # NONE indexes the last entry: an absent input is always there
    reached = np.zeros(devices, dtype=np.int64)
    flat = np.empty(slots.sum(), dtype=np.int64)
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
