"""Loops over the lines that stages obey: of each so many layers fit, the cheapest first.

Parameters
----------
layer : what a layer of each class adds in its cheapest chunk [n, pp, rows, classes].
constant : of each line [n, pp, rows].
cost, offered : of a line's layers in the order of their cost, and how many there are of each [n, pp, rows, places].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.compiled import compiled

if TYPE_CHECKING:
    from cost_models.arrays import Floats

LEAST_COST = 1e-30
"""No layer is for nothing: a line is divided by what one adds."""


@compiled
def cheapest_chunks(weight: Floats) -> tuple[Floats, Floats]:
    """What a layer of each class adds in its cheapest chunk, and one more in every chunk at least [n, pp, rows].

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

    Parameters
    ----------
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
