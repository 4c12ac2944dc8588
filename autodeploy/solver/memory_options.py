"""Which option counts of one stage are legal, and the exact frontier of memory saved against time."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autodeploy.evaluation.inner_problem import Floats, InnerProblem, Ints, MemoryOption, fill_chunks
from autodeploy.solver.rivals import connected, maximal_cliques

MOST_COUNTS = 2_000_000
"""Counts compared at once: about two seconds."""


class TooManyCounts(Exception):
    """The frontier of a stage is too large to be listed."""


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
    found = maximal_cliques(frozenset(range(len(options))), conflicts(options))
    return tuple(clique for clique in found if len(clique) > 1)


@lru_cache(maxsize=512)
def components(options: tuple[MemoryOption, ...]) -> tuple[tuple[int, ...], ...]:
    """Options in groups that compete directly or through others; options of different groups never do."""
    found = connected(frozenset(range(len(options))), conflicts(options))
    return tuple(tuple(sorted(group)) for group in found)


def legal_options(problem: InnerProblem, layout: Ints, applied: Ints) -> np.ndarray:
    """Whether option counts [n, pp, options] fit their layers and their rivals [n].

    A count is at most the stage's layers of its class; options that all compete with each other share the layers of
    every chunk. With uniform options an option's name is on for all its layers or for none, the same on every stage.
    """
    totals = layout.sum(axis=2)
    legal = (applied >= 0).all(axis=(1, 2))
    classes = np.array([option.layer_class for option in problem.options], dtype=np.int64)
    legal &= (applied <= totals[..., classes]).all(axis=(1, 2))
    filled = fill_chunks(applied.swapaxes(1, 2), layout[..., classes].transpose(0, 3, 1, 2))  # [n, options, pp, vpp]
    for clique in cliques(problem.options):
        used = filled[:, list(clique)].sum(axis=1)
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


def num_branches(options: tuple[MemoryOption, ...], layers: Ints) -> int:
    """How many combinations of competing options a stage with `layers` [classes] has `stage_frontier` go through."""
    # Counts of options that share the layers of a class are about the ways to split them.
    return sum(math.comb(int(layers[number]) + branched, branched) for number, branched in _branched(options))


@lru_cache(maxsize=512)
def _branched(options: tuple[MemoryOption, ...]) -> tuple[tuple[int, int], ...]:
    """The layer class of each component of what competes, and how many of its options are branched on."""
    rival, found = conflicts(options), []
    for mine in components(options):
        active, branched = set(mine), 0
        while any(rival[i] & active for i in active):
            active.discard(max(active, key=lambda i: (len(rival[i] & active), -i)))
            branched += 1
        found.append((options[mine[0]].layer_class, branched))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class _Stage:
    """What a frontier is built for: chunks [vpp, classes], moments [1 or 2, vpp], need [moments] or None, free swap."""

    options: tuple[MemoryOption, ...]
    chunks: Ints
    moments: Floats
    need: Floats | None
    free_swap_bytes: float


def stage_frontier(
    options: tuple[MemoryOption, ...],
    chunks: Ints,
    moments: Floats,
    need: Floats | None = None,
    free_swap_bytes: float = 0.0,
) -> Frontier:
    """All undominated option counts of a stage whose chunks hold `chunks` [vpp, classes] layers.

    Parameters
    ----------
    moments : micro batches in flight at one or two of the stage's peak moments [moments, vpp].
    need : bytes that must be freed [moments]; more is worth nothing, so savings are cut off there (None: keep all).
    free_swap_bytes : swapping less than this in all costs no time, so it isn't compared.

    Notes
    -----
    Component by component of what competes: options that do are branched on, most rivals first; what is independent is
    summed up one by one with dominance, so that the frontier stays small.

    Raises
    ------
    TooManyCounts
        if more than `MOST_COUNTS` would have to be compared at once.
    """
    stage = _Stage(options, chunks, moments, need, free_swap_bytes)
    total = np.array([chunks[:, o.layer_class].sum() for o in options], dtype=np.int64)
    movable = np.array([o.swap_bytes for o in options]) * total
    left = float(movable.sum())
    none = np.zeros((1, len(options)), dtype=np.int64)
    frontier = Frontier(none, np.zeros((1, len(moments))), np.zeros(1), np.zeros(1))
    everything = left
    for mine in components(options):
        mine = tuple(i for i in mine if total[i])
        if not mine:
            continue
        own = float(movable[list(mine)].sum())
        left -= own
        # Dominance may not count on swaps that other options could still fill up.
        others = everything - own
        part = _joined(_branch(stage, mine, total, np.zeros(len(options), dtype=np.int64), others))
        part = undominated(part, None, stage.free_swap_bytes - others)
        frontier = undominated(_few(frontier, part), need, stage.free_swap_bytes - left)
    return frontier


def _branch(stage: _Stage, active: tuple[int, ...], most: Ints, chosen: Ints, later: float) -> list[Frontier]:
    """Frontiers for every count of the option with most rivals, until no two active options compete.

    later: bytes that options outside `active` may still swap.
    """
    rival = conflicts(stage.options)
    worst = max(active, key=lambda i: len(rival[i] & set(active)), default=None)
    if worst is None or not rival[worst] & set(active):
        return [_summed(stage, active, most, chosen, later)]
    layers = stage.chunks[:, stage.options[worst].layer_class]
    first = int(layers[np.argmax(layers > 0)])
    found = []
    for count in range(int(most[worst]) + 1):
        with_count, limits = chosen.copy(), most.copy()
        with_count[worst] = count
        if count:
            for other in rival[worst]:
                # All options fill the first chunk first: rivals share it, and spill over only alone.
                used = sum(int(with_count[i]) for i in _cliquish(stage.options, other, with_count))
                limits[other] = max(0, min(int(most[other]), first - used))
        found += _branch(stage, tuple(i for i in active if i != worst), limits, with_count, later)
    return found


def _cliquish(options: tuple[MemoryOption, ...], option: int, chosen: Ints) -> frozenset[int]:
    """Chosen rivals of an option that share layers with it: the largest group that all compete with each other."""
    rival = conflicts(options)
    best: frozenset[int] = frozenset()
    for clique in cliques(options):
        if option in clique:
            group = frozenset(i for i in clique if i != option and chosen[i])
            if sum(int(chosen[i]) for i in group) > sum(int(chosen[i]) for i in best):
                best = group
    return best or frozenset(i for i in rival[option] if chosen[i])


def _summed(stage: _Stage, active: tuple[int, ...], most: Ints, chosen: Ints, later: float) -> Frontier:
    """Sum of independent options on top of the chosen counts, with dominance after each."""
    frontier = Frontier(chosen[None, :], np.zeros((1, len(stage.moments))), np.zeros(1), np.zeros(1))
    for taken in np.flatnonzero(chosen).tolist():
        frontier = _few(frontier, _alone(stage, taken, chosen[taken : taken + 1], keep=False))
    left = later + sum(float(most[i]) * stage.options[i].swap_bytes for i in active)
    for index in active:
        left -= float(most[index]) * stage.options[index].swap_bytes
        step = _alone(stage, index, np.arange(most[index] + 1), keep=True)
        frontier = undominated(_few(frontier, step), None, stage.free_swap_bytes - left)
    return frontier


def _alone(stage: _Stage, index: int, counts: Ints, *, keep: bool) -> Frontier:
    option = stage.options[index]
    filled = fill_chunks(counts[:, None], stage.chunks[None, None, :, option.layer_class])[:, 0]
    rows = np.zeros((len(counts), len(stage.options)), dtype=np.int64)
    if keep:
        rows[:, index] = counts
    saved = filled @ stage.moments.T * option.saved_bytes
    times = counts.astype(np.float64)
    return Frontier(rows, saved, times * option.extra_backward_s, times * option.swap_bytes)


def summed(a: Frontier, b: Frontier) -> Frontier:
    """Every combination of a row of a and a row of b."""
    return Frontier(
        (a.counts[:, None] + b.counts[None]).reshape(-1, a.counts.shape[1]),
        (a.saved[:, None] + b.saved[None]).reshape(-1, a.saved.shape[1]),
        (a.extra_s[:, None] + b.extra_s[None]).ravel(),
        (a.swap_bytes[:, None] + b.swap_bytes[None]).ravel(),
    )


def _few(a: Frontier, b: Frontier) -> Frontier:
    """`summed` of no more than `MOST_COUNTS`."""
    if len(a.extra_s) * len(b.extra_s) > MOST_COUNTS:
        raise TooManyCounts
    return summed(a, b)


def _joined(rows: list[Frontier]) -> Frontier:
    if len(rows) == 1:
        return rows[0]
    return Frontier(
        np.concatenate([r.counts for r in rows]),
        np.concatenate([r.saved for r in rows]),
        np.concatenate([r.extra_s for r in rows]),
        np.concatenate([r.swap_bytes for r in rows]),
    )


def undominated(frontier: Frontier, need: Floats | None, free_swap_bytes: float) -> Frontier:
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
