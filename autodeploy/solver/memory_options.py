"""Which option counts of one stage are legal, and the exact frontier of memory saved against time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autodeploy.evaluation.inner_problem import Floats, InnerProblem, Ints, MemoryOption, fill_chunks


@lru_cache(maxsize=512)
def conflicts(options: tuple[MemoryOption, ...]) -> tuple[frozenset[int], ...]:
    """The options that each option competes with: same layer class, and one names the other in `excludes`."""
    return tuple(
        frozenset(
            j
            for j, b in enumerate(options)
            if i != j and a.layer_class == b.layer_class and (b.name in a.excludes or a.name in b.excludes)
        )
        for i, a in enumerate(options)
    )


@lru_cache(maxsize=512)
def cliques(options: tuple[MemoryOption, ...]) -> tuple[tuple[int, ...], ...]:
    """Maximal sets of options that all compete with each other (two or more)."""
    rival = conflicts(options)
    found: list[tuple[int, ...]] = []

    def grow(clique: tuple[int, ...], candidates: frozenset[int], done: frozenset[int]) -> None:
        if not candidates and not done:
            found.append(clique)
        for option in sorted(candidates):
            grow((*clique, option), candidates & rival[option], done & rival[option])
            candidates, done = candidates - {option}, done | {option}

    grow((), frozenset(range(len(options))), frozenset())
    return tuple(sorted(tuple(sorted(c)) for c in found if len(c) > 1))


def legal_options(problem: InnerProblem, layout: Ints, applied: Ints) -> np.ndarray:
    """Whether option counts [n, pp, options] fit their layers and their rivals [n].

    A count is at most the stage's layers of its class; options that all compete with each other share the layers of
    every chunk. With uniform options an option's name is on for all its layers or for none, the same on every stage.
    """
    totals = layout.sum(axis=2)
    legal = (applied >= 0).all(axis=(1, 2))
    filled = []
    for index, option in enumerate(problem.options):
        legal &= (applied[:, :, index] <= totals[..., option.layer_class]).all(axis=1)
        filled.append(fill_chunks(applied[:, :, index], layout[..., option.layer_class]))
    for clique in cliques(problem.options):
        used = sum(filled[i] for i in clique)
        legal &= (used <= layout[..., problem.options[clique[0]].layer_class]).all(axis=(1, 2))
    if problem.uniform_options:
        for name in {option.name for option in problem.options}:
            members = [i for i, option in enumerate(problem.options) if option.name == name]
            count = np.stack([applied[:, :, i] for i in members], axis=-1)
            whole = np.stack([totals[..., problem.options[i].layer_class] for i in members], axis=-1)
            legal &= (count == 0).all(axis=(1, 2)) | (count == whole).all(axis=(1, 2))
    return np.asarray(legal)


@dataclass(frozen=True, eq=False)
class Frontier:
    """Option counts of one stage that no other counts beat.

    counts [n, options]; saved [n, moments]: bytes freed at each of the stage's peak moments; extra_s [n]: recomputing;
    swap_bytes [n]: moved out and in by one micro batch.
    """

    counts: Ints
    saved: Floats
    extra_s: Floats
    swap_bytes: Floats


def stage_frontier(
    options: tuple[MemoryOption, ...], chunks: Ints, moments: Floats, need: Floats | None = None
) -> Frontier:
    """All undominated option counts of a stage whose chunks hold `chunks` [vpp, classes] layers.

    moments [moments, vpp]: micro batches in flight. need [moments]: bytes that must be freed; more is worth nothing, so
    savings are cut off there (None: keep the whole frontier).

    Options that compete are branched on, most rivals first; the independent rest is summed up one by one with
    dominance, so that the frontier stays small.
    """
    active = [i for i, o in enumerate(options) if chunks[:, o.layer_class].sum() > 0]
    room = np.array([_first(chunks[:, o.layer_class]) for o in options], dtype=np.int64)
    total = np.array([chunks[:, o.layer_class].sum() for o in options], dtype=np.int64)
    rows = _branch(options, chunks, moments, need, tuple(active), room, total, np.zeros(len(options), dtype=np.int64))
    return _undominated(_joined(rows), need)


def _first(layers: Ints) -> int:
    """Layers of the first chunk that has any: the one that every option fills first."""
    return int(layers[np.argmax(layers > 0)])


def _branch(
    options: tuple[MemoryOption, ...],
    chunks: Ints,
    moments: Floats,
    need: Floats | None,
    active: tuple[int, ...],
    room: Ints,
    total: Ints,
    chosen: Ints,
) -> list[Frontier]:
    """Frontiers for every count of the option with most rivals, until no two active options compete."""
    rival = conflicts(options)
    degree = {i: len(rival[i] & set(active)) for i in active}
    worst = max(active, key=lambda i: degree[i], default=None)
    if worst is None or degree[worst] == 0:
        return [_summed(options, chunks, moments, need, active, np.minimum(total, _cap(room, total)), chosen)]
    rest = tuple(i for i in active if i != worst)
    found = []
    for count in range(int(_cap(room, total)[worst]) + 1):
        left, with_count = room.copy(), chosen.copy()
        with_count[worst] = count
        if count:
            for other in rival[worst]:
                # Both fill the first chunk first: together they can't exceed it.
                left[other] = max(0, int(left[other]) - count)
        limits = total.copy()
        if count:
            for other in rival[worst]:
                limits[other] = min(int(limits[other]), int(left[other]))
        found += _branch(options, chunks, moments, need, rest, left, limits, with_count)
    return [_undominated(_joined(found), need)]


def _cap(room: Ints, total: Ints) -> Ints:
    return np.where(room > 0, total, 0)


def _summed(
    options: tuple[MemoryOption, ...],
    chunks: Ints,
    moments: Floats,
    need: Floats | None,
    active: tuple[int, ...],
    most: Ints,
    chosen: Ints,
) -> Frontier:
    """Sum of independent options on top of the chosen counts, with dominance after each."""
    saved = np.zeros((1, len(moments)))
    extra, swap = np.zeros(1), np.zeros(1)
    for index in np.flatnonzero(chosen):
        step_saved, step_extra, step_swap = _alone(options[index], chunks, moments, chosen[index : index + 1])
        saved, extra, swap = saved + step_saved, extra + step_extra, swap + step_swap
    frontier = Frontier(chosen[None, :], saved, extra, swap)
    for index in active:
        values = np.arange(most[index] + 1)
        step_saved, step_extra, step_swap = _alone(options[index], chunks, moments, values)
        counts = np.repeat(frontier.counts, len(values), axis=0)
        counts[:, index] = np.tile(values, len(frontier.counts))
        frontier = _undominated(
            Frontier(
                counts,
                (frontier.saved[:, None] + step_saved[None]).reshape(-1, len(moments)),
                (frontier.extra_s[:, None] + step_extra[None]).ravel(),
                (frontier.swap_bytes[:, None] + step_swap[None]).ravel(),
            ),
            need,
        )
    return frontier


def _alone(option: MemoryOption, chunks: Ints, moments: Floats, counts: Ints) -> tuple[Floats, Floats, Floats]:
    filled = fill_chunks(counts[:, None], chunks[None, None, :, option.layer_class])[:, 0]
    return filled @ moments.T * option.saved_bytes, counts * option.extra_backward_s, counts * option.swap_bytes


def _joined(rows: list[Frontier]) -> Frontier:
    if len(rows) == 1:
        return rows[0]
    return Frontier(
        np.concatenate([r.counts for r in rows]),
        np.concatenate([r.saved for r in rows]),
        np.concatenate([r.extra_s for r in rows]),
        np.concatenate([r.swap_bytes for r in rows]),
    )


def _undominated(frontier: Frontier, need: Floats | None) -> Frontier:
    """Drop counts that another one matches or beats in memory, time and swap; among equals the first stays."""
    saved = frontier.saved if need is None else np.minimum(frontier.saved, need)
    order = np.lexsort((-saved.sum(axis=1), frontier.swap_bytes, frontier.extra_s))
    cost = np.stack([frontier.extra_s, frontier.swap_bytes], axis=1)[order]
    gain = saved[order]
    keep = np.ones(len(order), dtype=np.bool_)
    at = 0
    # Each kept row strikes out all it dominates; rows are sorted so that only later ones can be dominated.
    while at < len(order):
        if keep[at]:
            later = slice(at + 1, None)
            beaten = (cost[later, 1] >= cost[at, 1]) & (gain[later] <= gain[at]).all(axis=1)
            keep[later] &= ~beaten
        at += 1
    rows = order[keep]
    return Frontier(frontier.counts[rows], saved[rows], frontier.extra_s[rows], frontier.swap_bytes[rows])


def uniform_choices(problem: InnerProblem) -> Ints:
    """Sets of option names that may be on together, as masks over options [sets, options], fewest first."""
    names = sorted({option.name for option in problem.options})
    rival = conflicts(problem.options)
    members = {name: [i for i, option in enumerate(problem.options) if option.name == name] for name in names}
    clash = {
        frozenset((a, b))
        for a, b in itertools.combinations(names, 2)
        if any(j in rival[i] for i in members[a] for j in members[b])
    }
    sets: list[tuple[str, ...]] = [()]
    for name in names:
        sets += [(*s, name) for s in sets if all(frozenset((name, other)) not in clash for other in s)]
    masks = np.zeros((len(sets), len(problem.options)), dtype=np.int64)
    for row, chosen in enumerate(sets):
        for name in chosen:
            masks[row, members[name]] = 1
    return masks[np.argsort(masks.sum(axis=1), kind="stable")]
