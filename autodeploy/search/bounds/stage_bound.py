"""A lower bound on the step time of many candidates at once: every stage alone, with the memory it is forced to save.

A path that paces on stage p runs all its micro batches: M times the work of its layers less what their pairs can hide,
and the ramp before them. Where the layers do not fit, some must be recomputed or swapped. With a price mu in seconds
for a byte held, the time e that a stage adds to a micro batch obeys, at each of its peak moments with h micro batches
in flight in a layer's chunk (Lagrange's relaxation, valid for every mu >= 0):

    e >= mu (bytes without any choice - limit) + sum over layers of min over choices (seconds - mu h bytes saved)

Both sides are sums over layers, so for a given T each stage holds at most so many layers, in whole numbers; the bound
is the least T at which the stages together have room for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from autodeploy.search.choices.layer_choices import prices as prices_of
from cost_models.compiled import compiled, row_major
from cost_models.schedule import (
    Schedule,
    chunk_micro_batches,
    group_size,
    in_flight_moments,
    kinds,
    pair_counts,
)

if TYPE_CHECKING:
    from autodeploy.search.choices.layer_choices import Part
    from cost_models.arrays import Floats, Ints

    Number = Any  # a float or an array


# Loops over the lines that stages obey.
LEAST_COST = 1e-30
"""No layer is for nothing: a line is divided by what one adds."""


@compiled
def cheapest_chunks(weight: Floats) -> tuple[Floats, Floats]:
    """Cost of a layer of each class in its cheapest chunk, and of one more in every chunk at least [n, pp, rows].

    weight [n, pp, rows, vpp, classes] : of a layer in each chunk.
    """
    n, pp, rows, vpp, classes = weight.shape
    layer, everywhere = np.empty((n, pp, rows, classes)), np.zeros((n, pp, rows))
    for each in range(n):
        for stage in range(pp):
            for row in range(rows):
                low, line = layer[each, stage, row], weight[each, stage, row]
                for number in range(classes):
                    low[number] = line[0, number]
                    for chunk in range(1, vpp):
                        low[number] = min(low[number], line[chunk, number])
                for chunk in range(vpp):
                    more = np.inf
                    for number in range(classes):
                        more = min(more, line[chunk, number] - low[number])
                    everywhere[each, stage, row] += more
    return layer, everywhere


@compiled
def in_order(layer: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Cost and number of the layers of each line, those of the cheapest class first.

    counts [classes] : layers of each class; one without any has no place.
    """
    n, pp, rows, classes = layer.shape
    places = 0
    for count in counts:  # numpy's own takes longer to compile than all of this
        places += count > 0.0
    cost, offered = np.empty((n, pp, rows, places)), np.empty((n, pp, rows, places))
    for each in range(n):
        for stage in range(pp):
            for row in range(rows):
                of, left, known = cost[each, stage, row], offered[each, stage, row], 0
                for number in range(classes):
                    if counts[number] > 0.0:
                        place, own = known, max(layer[each, stage, row, number], LEAST_COST)
                        while place > 0 and of[place - 1] > own:
                            of[place], left[place] = of[place - 1], left[place - 1]
                            place -= 1
                        of[place], left[place] = own, counts[number]
                        known += 1
    return cost, offered


@compiled
def in_order_of_chunks(
    cost: Floats, offered: Floats, weight: Floats, layer: Floats, counts: Floats, least: int, most: int
) -> tuple[Floats, Floats]:
    """Layers in order with what the chunk of each adds at least: the cheapest chunks are filled first.

    weight : what a layer of each class adds in each chunk [n, pp, rows, vpp, classes].
    counts : as of `in_order`.
    least, most : layers of a chunk; what the least of them add is paid.
    """
    n, pp, rows, places = cost.shape
    vpp, classes = weight.shape[3:]
    with_chunks, taken = np.empty((n, pp, rows, places * (vpp + 1))), np.empty((n, pp, rows, places * (vpp + 1)))
    added, paid = np.empty(vpp), least * vpp
    for each in range(n):
        for stage in range(pp):
            for row in range(rows):
                for chunk in range(vpp):
                    place, own = chunk, np.inf
                    for number in range(classes):
                        if counts[number] > 0.0:
                            own = min(own, weight[each, stage, row, chunk, number] - layer[each, stage, row, number])
                    while place > 0 and added[place - 1] > own:
                        added[place] = added[place - 1]
                        place -= 1
                    added[place] = own
                before, known = 0.0, 0
                for place in range(places):
                    own, count = cost[each, stage, row, place], offered[each, stage, row, place]
                    start, end = 0.0, paid
                    for chunk in range(-1, vpp):
                        fit = min(before + count, end) - max(before, start)
                        with_chunks[each, stage, row, known] = own + (added[chunk] if chunk >= 0 else 0.0)
                        taken[each, stage, row, known] = max(fit, 0.0)
                        start, end, known = end, paid + (most - least) * (chunk + 2), known + 1
                    before += count
    return with_chunks, taken


@compiled
def most_under(constant: Floats, cost: Floats, offered: Floats, limit: Floats) -> Floats:
    """Most layers [n, pp] of each stage under all its lines; below zero where one has no room for its constant.

    limit : of a stage's lines [n, pp], or of all lines of a candidate [n, 1].
    """
    n, pp, rows, places = cost.shape
    most = np.full((n, pp), np.inf)
    for each in range(n):
        for stage in range(pp):
            own = limit[each, min(stage, limit.shape[1] - 1)]
            for row in range(rows):
                left = own - constant[each, stage, row]
                value = -1e9 if left < 0.0 else 0.0
                left = max(left, 0.0) * (1.0 + 1e-12)
                for place in range(places):
                    of = cost[each, stage, row, place]
                    taken = min(np.floor(left / of + 1e-9), offered[each, stage, row, place])
                    value += taken
                    left -= taken * of
                most[each, stage] = min(most[each, stage], value)
    return most


@compiled
def least_for(constant: Floats, cost: Floats, offered: Floats, count: int, most: Floats) -> Floats:
    """The least limit [n, pp, count + 1] of all lines under which a stage holds 0, 1, ... count layers.

    inf beyond the most that it holds in any case [n, pp].
    """
    n, pp, rows, places = cost.shape
    least = np.full((n, pp, count + 1), np.inf)
    for each in range(n):
        for stage in range(pp):
            for layers in range(min(count, int(max(most[each, stage], -1.0))) + 1):
                value = -np.inf
                for row in range(rows):
                    total, before = constant[each, stage, row], 0.0
                    for place in range(places):
                        if before >= layers:
                            break
                        own = offered[each, stage, row, place]
                        total += min(layers - before, own) * cost[each, stage, row, place]
                        before += own
                    value = max(value, total)
                least[each, stage, layers] = value
    return least


STEADY: Final = 4
"""Micro batches, in pipeline stages, after which an order's moments and its lone passes do not change any more."""
STEPS: Final = 7
"""Halvings between the least and the largest T of interest."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Candidates of one schedule and shape; arrays [n]."""

    schedule: str
    pp: int
    vpp: int
    micro_batches: Ints
    layers: tuple[Part, ...]
    pieces: tuple[Part, ...]
    room_bytes: Floats  # [n, pp] of a stage for its layers and pieces
    blocking_p2p_s: Floats
    p2p_s: Floats
    least_layers: int  # of a chunk
    most_layers: int

    @property
    def kind(self) -> Schedule:
        """Record of the schedule."""
        return kinds.schedule(self.schedule)

    @property
    def chunk_micro_batches(self) -> Floats:
        """Micro batches that one chunk runs."""
        return np.asarray(self.micro_batches // self.kind.copies, dtype=np.float64)

    def at(self, rows: Ints) -> Batch:
        """Some of the candidates, each once and in order."""
        if len(rows) == len(self.micro_batches):
            return self
        return replace(
            self,
            micro_batches=self.micro_batches[rows],
            layers=tuple(part.take(rows) for part in self.layers),
            pieces=tuple(part.take(rows) for part in self.pieces),
            room_bytes=self.room_bytes[rows],
            blocking_p2p_s=self.blocking_p2p_s[rows],
            p2p_s=self.p2p_s[rows],
        )

    def order(self, *, steady: bool = False) -> _Order:
        """Of the operations of the first candidate, or of the steady micro batches that all candidates have."""
        micro_batches = int(self.micro_batches[0])
        micro_batches_played = steady_micro_batches(self.pp, micro_batches, self.kind) if steady else micro_batches
        return _order(self.kind, self.pp, self.vpp, micro_batches_played)


@dataclass(frozen=True, eq=False)
class _Order:
    """moments [pp, k, vpp]; lone forwards and backwards of each chunk [pp, vpp]."""

    moments: Floats
    lone_forwards: Floats
    lone_backwards: Floats


def steady_micro_batches(pp: int, micro_batches: int, kind: Schedule | None = None) -> int:
    """The least number of micro batches whose order has the moments and the lone passes of this one.

    More whole groups only lengthen the steady phase. A last group of another size is its own case, and so is every
    number under a schedule with an order of its own.
    """
    if kind is not None and kind.own_order:
        return micro_batches
    if micro_batches <= STEADY * pp or group_size(pp, micro_batches) != pp or micro_batches % pp:
        return micro_batches
    return STEADY * pp


@lru_cache(maxsize=1024)
def _order(kind: Schedule, pp: int, vpp: int, micro_batches: int) -> _Order:
    counts = pair_counts(kind.name, pp, vpp, micro_batches).astype(np.float64)
    passes = chunk_micro_batches(kind.name, micro_batches)
    return _Order(
        in_flight_moments(kind.name, pp, vpp, micro_batches).astype(np.float64),
        passes - counts.sum(axis=2),
        passes - counts.sum(axis=1),
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Lines a + sum over layers of w <= limit that a stage obeys: a [n, pp, rows], w [n, pp, rows, classes].

    w is that of a layer's cheapest chunk. by_chunk: of each chunk [n, pp, rows, vpp, classes], where chunks hold so few
    layers that they can't all be in the cheapest one.
    least_layers, most_layers : of a chunk; what the least of them add is part of a.
    """

    constant: Floats
    layer: Floats
    by_chunk: Floats | None
    least_layers: int
    most_layers: int

    def sorted(self, counts: Floats) -> _Sorted:
        """The cheapest classes first; counts [classes]."""
        cost, offered = in_order(self.layer, counts)
        if self.by_chunk is not None:
            chunks = self.by_chunk, self.layer, counts, self.least_layers, self.most_layers
            cost, offered = in_order_of_chunks(cost, offered, *chunks)
        return _Sorted(self.constant, cost, offered)


class _Sorted(NamedTuple):
    """Lines with their layers in the order of their cost, and how many there are of each [n, pp, rows, places]."""

    constant: Floats
    cost: Floats
    offered: Floats

    def take(self, rows: Ints) -> _Sorted:
        """Of some candidates."""
        return _Sorted(self.constant[rows], self.cost[rows], self.offered[rows])

    def most(self, limit: Floats) -> Floats:
        """Most layers [n, pp] of each stage under all its lines; negative where not even its pieces fit.

        limit : of each stage's lines [n, pp], or of all lines [n, 1].
        """
        return most_under(self.constant, self.cost, self.offered, row_major(limit))

    def least(self, count: int, most: Floats) -> Floats:
        """The least limit [n, pp, count + 1] under which a stage holds 0, 1, ... count layers.

        inf beyond most [n, pp].
        """
        return least_for(self.constant, self.cost, self.offered, count, row_major(most))


def lower_bound_s(batch: Batch, low_s: Floats, high_s: Floats) -> Floats:
    """Lower bound on the step time [n], looked for between low_s and high_s; inf where it is above high_s.

    inf also where memory can't hold all layers with everything saved. Every candidate must have micro_batches of which
    `steady_micro_batches` are the same.
    """
    order = batch.order(steady=True)
    sets = _kept(batch, order)
    fits = np.logical_and.reduce([kept.sum(axis=1) >= counts.sum() for counts, kept in sets])
    bound_s, rows = np.full(len(low_s), np.inf), np.flatnonzero(fits)
    if len(rows):
        kept = [(counts, each[rows]) for counts, each in sets]
        bound_s[rows] = _timed(batch.at(rows), order, kept, low_s[rows], high_s[rows])
    return bound_s


def least_bound_s(batch: Batch) -> Floats:
    """The bound that `lower_bound_s` looks for, not looked for but computed [n], and of every class alone as well.

    For candidates with the same number of micro batches: where stages hold most is known for just as many.
    """
    order, bound_s = batch.order(), np.zeros(len(batch.micro_batches))
    rows = _time_rows(batch, order)
    for place, (counts, kept) in enumerate(_kept(batch, order, every=True)):
        total = int(counts.sum())
        time = rows.sorted(counts).least(total, kept)
        if total:
            # A stage has room for one more layer at each of its times: at the total-th of all there is room for all.
            each = np.partition(time[:, :, 1:].reshape(len(time), -1), total - 1)
            bound_s = np.maximum(bound_s, each[:, total - 1])
        if not place:
            bound_s = np.maximum(bound_s, time[:, :, min(batch.least_layers * batch.vpp, total)].max(axis=1))
    return np.asarray(bound_s + _tail_s(batch))


def most_layers(batch: Batch, makespan_s: float = float("inf")) -> Floats:
    """Most layers that each stage can hold within a makespan, with what memory makes it save [n, pp].

    Negative where not even its pieces fit.
    """
    order = batch.order()
    counts, most = _kept(batch, order)[0]
    if np.isfinite(makespan_s):
        most = np.minimum(most, _time_rows(batch, order).sorted(counts).most(np.full((len(most), 1), makespan_s)))
    return most


def _kept(batch: Batch, order: _Order, *, every: bool = False) -> list[tuple[Floats, Floats]]:
    """Sets of layers, by their counts, with how many of them memory can hold of each stage [n, pp]."""
    bytes_rows, room, most = _bytes_rows(batch, order), batch.room_bytes, batch.most_layers * batch.vpp
    return [
        (counts, np.minimum(bytes_rows.sorted(counts).most(room), most)) for counts in _layer_sets(batch, every=every)
    ]


def _timed(
    batch: Batch, order: _Order, kept_by_memory: list[tuple[Floats, Floats]], low_s: Floats, high_s: Floats
) -> Floats:
    """`lower_bound_s` where memory holds at most so many layers [n, pp] of sets of layers, given by their counts."""
    tail, rows = _tail_s(batch), _time_rows(batch, order)
    sets = [(counts.sum(), rows.sorted(counts), kept) for counts, kept in kept_by_memory]
    least = min(batch.least_layers * batch.vpp, sets[0][0])

    def enough(makespan_s: Floats) -> np.ndarray:
        """Whether the stages together hold every set of layers within a time [n]."""
        ok = np.ones(len(makespan_s), dtype=np.bool_)
        for place, (needed, lines, kept) in enumerate(sets):
            most = np.minimum(lines.most(makespan_s[:, None]), kept)
            ok &= most.sum(axis=1) >= needed
            if not place:
                ok &= (most >= least).all(axis=1)
        return ok

    bound_s, low, high = np.full(len(low_s), np.inf), np.asarray(low_s - tail), np.asarray(high_s - tail)
    open_ = np.flatnonzero(enough(high))
    low, high = low[open_], high[open_]
    sets = [(needed, lines.take(open_), kept[open_]) for needed, lines, kept in sets]
    for _ in range(STEPS if len(open_) else 0):
        middle = (low + high) / 2.0
        good = enough(middle)
        low, high = np.where(good, low, middle), np.where(good, middle, high)
    bound_s[open_] = low + tail[open_]
    return bound_s


def _counts(batch: Batch) -> Floats:
    """Layers of each class that the stages hold together [classes]: every copy of the model has its own."""
    return np.array([batch.kind.copies * part.count for part in batch.layers], dtype=np.float64)


def _tail_s(batch: Batch) -> Floats:
    """Seconds after the pipeline on the mean stage [n], which the slowest is not below."""
    layers = sum(n * part.tail_s for n, part in zip(_counts(batch), batch.layers, strict=True))
    return np.asarray(layers + sum(part.tail_s for part in batch.pieces)) / batch.pp


def _layer_sets(batch: Batch, *, every: bool) -> list[Floats]:
    """Counts by class of the layers that must find room: all, and those of one class alone, as a cheap one fills only
    so much: of the most frequent class, or of every one.
    """
    counts = _counts(batch)
    if np.count_nonzero(counts) <= 1:
        return [counts]
    alone = np.flatnonzero(counts) if every else [int(np.argmax(counts))]
    return [counts, *(np.where(np.arange(len(counts)) == number, counts, 0.0) for number in alone)]


def _bytes_rows(batch: Batch, order: _Order) -> _Rows:
    """Bytes of a stage at each of its moments, everything recomputed or swapped."""
    constant = _pieces_bytes(batch, order)
    return _cheapest_chunk(
        batch, constant, np.stack([part.lean_bytes(order.moments) for part in batch.layers], axis=-1)
    )


def _pieces_bytes(batch: Batch, order: _Order) -> Floats:
    """Bytes of every stage's pieces at each of its moments [n, pp, k]."""
    total = np.zeros((len(batch.room_bytes), *order.moments.shape[:2]))
    for piece in batch.pieces:
        moments = order.moments[piece.stage, :, piece.chunk]
        total[:, piece.stage] += piece.static_bytes[:, None] + piece.activation_bytes[:, None] * moments
    return total


def _cheapest_chunk(batch: Batch, constant: Floats, weight: Floats) -> _Rows:
    """Rows from weights by chunk [n, pp, k, vpp, classes]: every layer in its cheapest chunk, but none left empty, nor
    more in one than it may hold.
    """
    layer, everywhere = cheapest_chunks(row_major(weight))
    if batch.least_layers:
        constant = constant + batch.least_layers * everywhere
    tight = batch.vpp > 1 and batch.most_layers < _counts(batch).sum()
    return _Rows(np.asarray(constant), layer, weight if tight else None, batch.least_layers, batch.most_layers)


def _time_rows(batch: Batch, order: _Order) -> _Rows:
    m = batch.chunk_micro_batches
    own, forward = _own_s(batch)
    ramp = _ramp_s(batch)
    lines: list[_Rows] = []
    whole_m = m[:, None, None]
    work = np.stack([_work(part, m, order) for part in batch.layers], axis=-1)[:, :, None]  # [n, pp, 1, vpp, C]
    # Without a price memory is free: one row of time alone.
    lines.append(_cheapest_chunk(batch, whole_m * own[:, :, None] + ramp[:, :, None], work))
    if batch.kind.alternates:
        none = np.zeros((1, batch.pp, 1))
        lines.append(_path_rows(batch, own, forward, none, np.zeros((1, 1, 1, 1, len(batch.layers)))))
    prices = prices_of([part.choices for part in batch.layers])
    if len(prices):
        paid, extra = _memory_rows(batch, order, prices)
        constant = whole_m * (own[:, :, None] + paid) + ramp[:, :, None]
        lines.append(_cheapest_chunk(batch, constant, work + whole_m[..., None, None] * extra))
        if batch.kind.alternates:
            lines.append(_path_rows(batch, own, forward, paid, extra))
    by_chunk = [rows.by_chunk for rows in lines if rows.by_chunk is not None]
    return _Rows(
        np.concatenate([rows.constant for rows in lines], axis=2),
        np.concatenate([rows.layer for rows in lines], axis=2),
        np.concatenate(by_chunk, axis=2) if by_chunk else None,
        batch.least_layers,
        batch.most_layers,
    )


def _memory_rows(batch: Batch, order: _Order, prices: Floats) -> tuple[Floats, Floats]:
    """Seconds a micro batch for the bytes missing without layers, and for those of a layer, at each price.

    [n, pp, rows] and [n, pp, rows, vpp, classes]: a row for each price of a byte and each moment.
    """
    full = np.maximum.reduce([part.choices.dearest() for part in batch.layers])
    mean_in_flight = np.maximum(order.moments.mean(axis=2), 1e-9)  # [pp, k]
    missing = _pieces_bytes(batch, order) - batch.room_bytes[:, :, None]
    n, pp, vpp = len(missing), batch.pp, batch.vpp
    prices = prices / max(float(full[0]), 1e-300)
    ratios, place = np.unique(np.round(order.moments / mean_in_flight[..., None], 6), return_inverse=True)
    place = np.broadcast_to(place.reshape(pp, 1, -1, vpp), (pp, len(prices), mean_in_flight.shape[1], vpp))
    place = (np.arange(len(prices)) * len(ratios))[None, :, None, None] + place  # of prices times ratios
    scaled = full[:, None] * (prices[:, None] * ratios).ravel()  # mu h, [n, prices x ratios]
    mu = full[:, None, None, None] * prices[None, None, :, None] / mean_in_flight[None, :, None]  # [n, pp, prices, k]
    rows = (n, pp, len(prices) * mean_in_flight.shape[1])
    place = place.reshape(*rows[1:], vpp)
    extra = [part.paid_s(mu.reshape(rows), scaled, place) for part in batch.layers]
    return np.asarray((mu * missing[:, :, None]).reshape(rows)), np.stack(extra, axis=-1)


def _work(part: Part, m: Floats, order: _Order) -> Floats:
    """Seconds of a layer in all its micro batches, less what pairs hide at most [n, pp, vpp]."""
    paired_f, paired_b = (m[:, None, None] - lone[None] for lone in (order.lone_forwards, order.lone_backwards))
    both = m * (part.forward_s + part.backward_s)
    hidden = paired_f * part.hidden_forward_s[:, None, None] + paired_b * part.hidden_backward_s[:, None, None]
    return np.asarray(both[:, None, None] - hidden)


def _own_s(batch: Batch) -> tuple[Floats, Floats]:
    """Seconds of a micro batch in the pieces and the sends of each stage in both passes, and forward alone [n, pp]."""
    own, forward = np.zeros((2, len(batch.room_bytes), batch.pp))
    for piece in batch.pieces:
        own[:, piece.stage] += piece.forward_s + piece.backward_s
        forward[:, piece.stage] += piece.forward_s
    own += 2.0 * batch.vpp * batch.blocking_p2p_s[:, None]
    forward += batch.vpp * batch.blocking_p2p_s[:, None]
    return own, forward


def whole_s(batch: Batch) -> Floats:
    """X: forward and backward of one micro batch through the whole pipeline, without choices [n]."""
    layers = sum(part.count * (part.forward_s + part.backward_s) for part in batch.layers)
    return np.asarray(layers + _own_s(batch)[0].sum(axis=1))


def steady_s(work: Number, forward: Number, deeper: Number, micro_batches: Number) -> Number:
    """(M - 1) x_p - (P - 1 - p) F_p: what the path that stays on a stage of 1F1B takes beyond X, where M > P.

    The M - 1 other micro batches, but for the P - 1 - p forwards that it runs while the first one is further down.

    work, forward : x_p, F_p, both passes of a micro batch on the stage and its forward alone [s].
    deeper : stages behind it, P - 1 - p.
    """
    return (micro_batches - 1.0) * work - deeper * forward


def _path_rows(batch: Batch, own: Floats, forward: Floats, paid: Floats, extra: Floats) -> _Rows:
    """1f1b with M > P: X and `steady_s`."""
    m = batch.chunk_micro_batches[:, None]
    deeper = np.arange(batch.pp - 1, -1, -1, dtype=np.float64)
    constant = whole_s(batch)[:, None] + steady_s(own, forward, deeper, m)
    layer = [
        steady_s((part.forward_s + part.backward_s)[:, None], part.forward_s[:, None], deeper, m)
        for part in batch.layers
    ]
    later = (m - 1.0)[..., None]
    rows = _cheapest_chunk(
        batch,
        constant[..., None] + later * paid,
        np.stack(layer, axis=-1)[:, :, None, None, :] + later[..., None, None] * extra,
    )
    valid = (batch.micro_batches > batch.pp)[:, None, None]
    return replace(
        rows, constant=np.where(valid, rows.constant, 0.0), layer=np.where(valid[..., None], rows.layer, 0.0)
    )


def _ramp_s(batch: Batch) -> Floats:
    """The first forward down to a stage and the last backward up, through chunk 0 of the stages before [n, pp].

    Under an order of its own weight gradients may run after the way back, so nothing counts; nor does it where micro
    batches enter from both ends, as the nearer one may be the other.
    """
    if batch.kind.own_order or batch.kind.copies > 1:
        return np.zeros((len(batch.room_bytes), batch.pp))
    each = batch.least_layers * np.minimum.reduce([part.forward_s + part.backward_s for part in batch.layers])
    each = each + 2.0 * (batch.p2p_s + batch.blocking_p2p_s)
    ramp = np.arange(batch.pp)[None, :] * each[:, None]
    for piece in batch.pieces:
        if piece.chunk == 0:
            ramp[:, piece.stage + 1 :] += (piece.forward_s + piece.backward_s)[:, None]
    return np.asarray(ramp)
