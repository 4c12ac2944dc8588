"""Option counts of a stage with several chunks: a few sets of options that don't compete, each taken up step by step.

With several chunks a stage's counts only propose plans, so they need not be all undominated ones (see ADR 9). For each
price of a byte there is a best set of options for a layer; its members are applied to one layer after another, the
cheapest seconds a byte first.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.evaluation.stages.inner_problem import fill_chunks
from autodeploy.solver.inner.memory_options import conflicts

if TYPE_CHECKING:
    from autodeploy.evaluation.stages.inner_problem import Floats, Ints, MemoryOption

PRICES: Final = (0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 10.0, 1e9)
"""Prices of a byte, in those of the dearest option."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """Option counts of one stage, none of which another one beats.

    counts [n, options]; saved [n, moments]: bytes freed at each of the stage's peak moments; extra_s [n]: recomputing;
    swap_bytes [n]: moved out and in by one micro batch.
    """

    counts: Ints
    saved: Floats
    extra_s: Floats
    swap_bytes: Floats


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
    """Undominated counts of those sets for a stage whose chunks hold `chunks` [vpp, classes].

    moments : micro batches in flight at one or two of the stage's peak moments [moments, vpp].
    need : bytes that must be freed [moments]; more is worth nothing.
    free_swap_bytes : swapping less than this in all costs no time, so it isn't compared.
    """
    none = np.zeros((1, len(options)), dtype=np.int64)
    found = Frontier(none, np.zeros((1, len(moments))), np.zeros(1), np.zeros(1))
    for number, layers in enumerate(chunks.sum(axis=0).tolist()):
        sets = nested_sets(options, number)
        if not layers or not sets:
            continue
        rows = _steps(sets, len(options), layers)
        own = _valued(options, rows, chunks, moments)
        found = _undominated(_summed(found, _undominated(own, None, 0.0)), need, free_swap_bytes)
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


def _summed(a: Frontier, b: Frontier) -> Frontier:
    """Every combination of a row of a and a row of b."""
    return Frontier(
        (a.counts[:, None] + b.counts[None]).reshape(-1, a.counts.shape[1]),
        (a.saved[:, None] + b.saved[None]).reshape(-1, a.saved.shape[1]),
        (a.extra_s[:, None] + b.extra_s[None]).ravel(),
        (a.swap_bytes[:, None] + b.swap_bytes[None]).ravel(),
    )


def _undominated(frontier: Frontier, need: Floats | None, free_swap_bytes: float) -> Frontier:
    """Drop counts that another one matches or beats in memory, time and swap; among equals the first stays."""
    saved = frontier.saved if need is None else np.minimum(frontier.saved, need)
    swap = np.maximum(frontier.swap_bytes, free_swap_bytes)
    flat = bool((swap == swap[0]).all())
    first = saved[:, 0]
    second = -swap if saved.shape[1] == 1 or not flat else saved[:, 1]
    order = np.lexsort((-second, -first, frontier.extra_s))
    if flat and saved.shape[1] == 1:
        best = np.maximum.accumulate(np.concatenate([[-np.inf], first[order][:-1]]))
        rows = order[first[order] > best]
    else:
        rows = order[_staircase(first[order].tolist(), second[order].tolist())]
    return Frontier(frontier.counts[rows], frontier.saved[rows], frontier.extra_s[rows], frontier.swap_bytes[rows])


def _staircase(first: list[float], second: list[float]) -> list[int]:
    """Places whose point no earlier point reaches in both values: the earlier maxima form a falling staircase."""
    kept: list[int] = []
    xs: list[float] = []  # rising
    ys: list[float] = []  # falling
    for place, (x, y) in enumerate(zip(first, second, strict=True)):
        at = bisect.bisect_left(xs, x)
        if at < len(xs) and ys[at] >= y:
            continue
        kept.append(place)
        start = at
        while start > 0 and ys[start - 1] <= y:
            start -= 1
        end = at + 1 if at < len(xs) and xs[at] == x else at
        xs[start:end], ys[start:end] = [x], [y]
    return kept
