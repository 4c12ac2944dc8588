"""Option counts of a stage with several chunks: a few sets of options that don't compete, each taken up step by step.

With several chunks a stage's counts only propose plans, so they need not be all undominated ones (see ADR 9). For each
price of a byte there is a best set of options for a layer; its members are applied to one layer after another, the
cheapest seconds a byte first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.evaluation.inner_problem import fill_chunks
from autodeploy.solver.memory_options import Frontier, conflicts, summed, undominated

if TYPE_CHECKING:
    from autodeploy.evaluation.inner_problem import Floats, Ints, MemoryOption

PRICES: Final = (0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 10.0, 1e9)
"""Prices of a byte, in those of the dearest option."""


@lru_cache(maxsize=256)
def nested_sets(options: tuple[MemoryOption, ...], layer_class: int) -> tuple[tuple[int, ...], ...]:
    """Sets of options of a class that don't compete, each in the order of its seconds a byte."""
    mine = [i for i, option in enumerate(options) if option.layer_class == layer_class and option.saved_bytes > 0.0]
    rival = conflicts(options)
    ratio = {i: options[i].extra_backward_s / options[i].saved_bytes for i in mine}
    dearest = max(ratio.values(), default=0.0) or 1.0

    def best(left: frozenset[int], price: float) -> tuple[float, frozenset[int]]:
        worth = {i: price * options[i].saved_bytes - options[i].extra_backward_s for i in left}
        useful = frozenset(i for i in left if worth[i] > 0.0)
        if not useful:
            return 0.0, frozenset()
        option = max(useful, key=lambda i: (len(rival[i] & useful), -i))
        value, taken = best(useful - {option} - rival[option], price)
        value, taken = value + worth[option], taken | {option}
        if not rival[option] & useful:
            return value, taken
        other = best(useful - {option}, price)
        return other if other[0] > value else (value, taken)

    sets = [best(frozenset(mine), price * dearest)[1] for price in PRICES]
    ordered = [tuple(sorted(chosen, key=lambda i: (ratio[i], i))) for chosen in sets if chosen]
    return tuple(dict.fromkeys(ordered))


def nested_frontier(
    options: tuple[MemoryOption, ...],
    chunks: Ints,
    moments: Floats,
    need: Floats,
    free_swap_bytes: float,
) -> Frontier:
    """Undominated counts of those sets for a stage whose chunks hold `chunks` [vpp, classes]; see `stage_frontier`."""
    none = np.zeros((1, len(options)), dtype=np.int64)
    found = Frontier(none, np.zeros((1, len(moments))), np.zeros(1), np.zeros(1))
    for number, layers in enumerate(chunks.sum(axis=0).tolist()):
        sets = nested_sets(options, number)
        if not layers or not sets:
            continue
        rows = _steps(sets, len(options), layers)
        own = _valued(options, rows, chunks, moments)
        found = undominated(summed(found, undominated(own, None, 0.0)), need, free_swap_bytes)
    return found


def _steps(sets: tuple[tuple[int, ...], ...], options: int, layers: int) -> Ints:
    """Counts [n, options] along every set: one more layer of one more option each time."""
    rows = [np.zeros(options, dtype=np.int64)]
    for members in sets:
        full = np.zeros(options, dtype=np.int64)
        for option in members:
            for count in range(1, layers + 1):
                row = full.copy()
                row[option] = count
                rows.append(row)
            full[option] = layers
    return np.unique(np.stack(rows), axis=0)


def _valued(options: tuple[MemoryOption, ...], rows: Ints, chunks: Ints, moments: Floats) -> Frontier:
    saved = np.zeros((len(rows), len(moments)))
    extra, swap = np.zeros(len(rows)), np.zeros(len(rows))
    for index in np.flatnonzero(rows.any(axis=0)).tolist():
        option = options[index]
        filled = fill_chunks(rows[:, index : index + 1], chunks[None, None, :, option.layer_class])[:, 0]
        saved += filled @ moments.T * option.saved_bytes
        extra += rows[:, index] * option.extra_backward_s
        swap += rows[:, index] * option.swap_bytes
    return Frontier(rows, saved, extra, swap)
