"""The best option counts of one stage for given layers, looked up many times during a search."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.stages.inner_problem import (
    ChunkTimes,
    InnerProblem,
    activation_bytes,
    chunk_times,
    fill_chunks,
    host_bytes,
    over_chunks,
    stage_bytes,
    start_bytes,
    static_bytes,
)
from autodeploy.search.choices.layer_choices import choices_of, least_extra_s, most_saved
from cost_models.arrays import product

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.costs.stages.inner_problem import MemoryOption
    from autodeploy.search.cp_sat.stage_program import StageProgram
    from cost_models.arrays import Floats, Ints


MOST_POINTS = 64
"""Counts that are looked at in full, of those that a stage with several chunks proposes."""
Chunks = tuple[tuple[int, ...], ...]  # layers of each class in each chunk of a stage


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Least time of one stage with given layers, whatever counts make it fit.

    forward_s, backward_s [vpp]; hidden_pair_s [vpp, vpp] without any option; extra_s: added to one pass or the other
    of its chunks besides. exact: some counts take just that.
    """

    forward_s: Floats
    backward_s: Floats
    hidden_pair_s: Floats
    extra_s: float
    exact: bool


@dataclass(frozen=True, eq=False)
class _Bare:
    """All stages with the same layers and no option: times by stage, bytes above the limit [pp, moments]."""

    forward_s: Floats
    backward_s: Floats
    hidden_pair_s: Floats
    missing_bytes: Floats

    def times(
        self, stage: int, *, forward_s: float = 0.0, backward_s: float = 0.0, extra_s: float = 0.0, exact: bool = False
    ) -> StageTimes:
        """Of one stage, with what options add to each of its forward or backward passes, or to either."""
        forward, backward = self.forward_s[stage] + forward_s, self.backward_s[stage] + backward_s
        return StageTimes(forward, backward, self.hidden_pair_s[stage], extra_s, exact)


class StageChoices:
    """Option choices of a problem by (stage, layers). With `mask` [options] the options are given: all on or off.

    With one chunk a stage an integer program chooses them and says what they add at least; with several chunks counts
    are proposed.
    """

    def __init__(self, problem: InnerProblem, mask: Ints | None = None) -> None:
        self.problem = problem
        self.mask = mask
        self.moments = problem.moments
        self.stop: Callable[[], bool] | None = None  # polled between look-ups: the rest counts as not fitting
        self.hurry: Callable[[], bool] | None = None  # polled within a look-up: it gives what it has
        self._saved = np.array([most_saved(problem.options, number) for number in range(len(problem.classes))])
        self._bare: dict[Chunks, _Bare] = {}
        self._counts: dict[tuple[int, Chunks], Ints | None] = {}
        self._programs: dict[tuple[int, Chunks], StageProgram] = {}
        self._with_mask: dict[Chunks, tuple[ChunkTimes, np.ndarray]] = {}

    def bare(self, stage: int, chunks: Chunks) -> StageTimes | None:
        """A quick bound: times without options, and the least time that any options could add.

        None when even the most that its layers can free isn't enough. With given options: their times, None when they
        don't fit.
        """
        if self.mask is not None:
            return self._given(stage, chunks)
        bare = self._without_options(chunks)
        need = bare.missing_bytes[stage]
        if need.max() <= 0.0:
            return bare.times(stage, exact=True)
        layers = np.array(chunks, dtype=np.int64)
        if (need > product(product(self.moments[stage], layers), self._saved) * (1.0 + 1e-9)).any():
            return None
        # A byte counts most in the chunk that holds most micro batches.
        most = np.maximum(self.moments[stage].max(axis=1), 1e-30)
        extra_s = least_extra_s(self.problem.options, layers.sum(axis=0), float(np.max(need / most)))
        if not np.isfinite(extra_s):
            return None
        return bare.times(stage, backward_s=extra_s) if self.problem.vpp == 1 else bare.times(stage, extra_s=extra_s)

    def least(self, stage: int, chunks: Chunks) -> StageTimes | None:
        """A tight bound for a stage with one chunk; None when no counts make its layers fit.

        For x forward and y backward passes on a path, counts that add f and b seconds to them add
        min(x, y) (f + b) + (x - y)⁺ f + (y - x)⁺ b: each of the three is at its own least here.
        """
        quick = self.bare(stage, chunks)
        if quick is None or quick.exact:
            return quick
        program = self._program(stage, chunks)
        if program.both is None:
            return None
        forward, backward = program.forward_s, program.backward_s
        either = max(0.0, program.both.added_s - forward - backward)
        return self._without_options(chunks).times(stage, forward_s=forward, backward_s=backward, extra_s=either)

    def complete(self, layout: Ints) -> tuple[Ints, np.ndarray]:
        """Least-time option counts [n, pp, options] of layouts, and whether every stage fits [n]."""
        problem = self.problem
        if self.mask is not None:
            applied = over_chunks(layout)[..., problem.classes_of_options] * self.mask
            return applied, fits(problem, layout, applied)
        applied = np.zeros((*layout.shape[:2], len(problem.options)), dtype=np.int64)
        tight = stage_bytes(problem, layout, applied) > problem.limit_bytes
        ok = np.ones(len(layout), dtype=np.bool_)
        for row, stage in zip(*np.nonzero(tight), strict=True):
            if self.stop is not None and self.stop():
                ok[row] = False
            if ok[row]:
                counts = self._chosen(int(stage), as_chunks(layout[row, stage]))
                if counts is None:
                    ok[row] = False
                else:
                    applied[row, stage] = counts
        return applied, ok

    def _given(self, stage: int, chunks: Chunks) -> StageTimes | None:
        if chunks not in self._with_mask:
            layout = self._everywhere(chunks, 1)
            applied, _ = self.complete(layout)
            times = chunk_times(self.problem, layout, applied)
            self._with_mask[chunks] = (times, stage_fits(self.problem, layout, applied)[0])
        times, fit = self._with_mask[chunks]
        if not fit[stage]:
            return None
        return StageTimes(
            times.forward_s[0, stage], times.backward_s[0, stage], times.hidden_pair_s[0, stage], 0.0, exact=True
        )

    def _chosen(self, stage: int, chunks: Chunks) -> Ints | None:
        """Counts [options] that fit; None when there are none, or none were found."""
        key = (stage, chunks)
        if key not in self._counts:
            fitting = np.zeros((0, len(self.problem.options)), dtype=np.int64)
            hopeless = self.bare(stage, chunks) is None
            if not hopeless and self.problem.vpp == 1:
                fitting = self._by_program(stage, chunks)
            if not hopeless and not len(fitting):
                fitting = self._proposed(stage, chunks)
            self._counts[key] = fitting[0] if len(fitting) else None
        return self._counts[key]

    def _by_program(self, stage: int, chunks: Chunks) -> Ints:
        """Counts that add least [0 or 1, options], of those that fit.

        The program's numbers are rounded: what it finds may miss the limit by some bytes.
        """
        program, fitting = self._program(stage, chunks), np.zeros((0, len(self.problem.options)), dtype=np.int64)
        for again in (False, True):
            best = None if len(fitting) else program.fitting() if again else program.both
            if best is not None and best.counts is not None:
                fitting = self._fastest(stage, chunks, best.counts[None])
            elif not again:
                break
        return fitting

    def _program(self, stage: int, chunks: Chunks) -> StageProgram:
        """With one chunk a stage a byte freed counts at every moment, most at the one with most in flight."""
        from autodeploy.search.cp_sat.stage_program import StageProgram, SwapWindow

        key = (stage, chunks)
        if key not in self._programs:
            bare, in_flight = self._without_options(chunks), self.moments[stage, :, 0]
            window = SwapWindow(
                float(bare.forward_s[stage, 0]), float(bare.backward_s[stage, 0]), self.problem.host_link_bytes_per_s
            )
            self._programs[key] = StageProgram(
                self.problem.options,
                chunks[0],
                float((bare.missing_bytes[stage] / np.maximum(in_flight, 1e-30)).max()),
                # A pair gives swaps a longer window than its passes have.
                None if self.problem.pairs else window,
                self.problem.host_bytes_per_device / max(float(in_flight.max()), 1e-30),
                self.hurry,
            )
        return self._programs[key]

    def _proposed(self, stage: int, chunks: Chunks) -> Ints:
        """Counts of a few sets of options [n, options] that fit, the fastest first."""
        bare, problem = self._without_options(chunks), self.problem
        need = bare.missing_bytes[stage]
        layers = np.array(chunks, dtype=np.int64)
        link = problem.host_link_bytes_per_s
        window = min(float(bare.forward_s[stage].sum()), float(bare.backward_s[stage].sum()))
        if np.isfinite(problem.host_bytes_per_device):
            window = 0.0  # host memory is short: every swapped byte counts
        shown = np.argsort(-need, kind="stable")[:2]  # its worst moments
        if sum(o.swap_bytes * layers[:, o.layer_class].sum() for o in problem.options) > link * window:
            shown = shown[:1]
        frontier = nested_frontier(
            problem.options, layers, self.moments[stage, shown], np.maximum(need[shown], 0.0), link * window
        )
        out = np.maximum(0.0, frontier.swap_bytes / link - bare.forward_s[stage].sum())
        back = np.maximum(0.0, frontier.swap_bytes / link - bare.backward_s[stage].sum() - frontier.extra_s)
        added = frontier.extra_s + out + back
        # On the host at least what the least busy chunk holds; `_fastest` checks the rest.
        on_host = frontier.swap_bytes * self.moments[stage].min(axis=1).max()
        enough = (frontier.saved >= need[shown] * (1.0 - 1e-9)).all(axis=1)
        rows = np.flatnonzero(enough & (on_host <= problem.host_bytes_per_device * (1.0 + 1e-9)))
        rows = rows[np.argsort(added[rows], kind="stable")]
        fitting = self._fastest(stage, chunks, frontier.counts[rows[:MOST_POINTS]])
        if len(rows) and not len(fitting):
            lean = np.argsort(-frontier.saved.sum(axis=1), kind="stable")[:MOST_POINTS]
            fitting = self._fastest(stage, chunks, frontier.counts[lean])
        return fitting

    def _fastest(self, stage: int, chunks: Chunks, applied: Ints) -> Ints:
        """The counts [n, options] that really fit, the least total time first."""
        layout = self._everywhere(chunks, len(applied))
        everywhere = np.repeat(applied[:, None, :], self.problem.pp, axis=1)
        fit = stage_fits(self.problem, layout, everywhere)[:, stage]
        times = chunk_times(self.problem, layout[fit], everywhere[fit])
        total = (times.forward_s[:, stage] + times.backward_s[:, stage]).sum(axis=1)
        return np.asarray(applied[fit][np.argsort(total, kind="stable")])

    def _without_options(self, chunks: Chunks) -> _Bare:
        if chunks not in self._bare:
            layout = self._everywhere(chunks, 1)
            none = np.zeros((1, self.problem.pp, len(self.problem.options)), dtype=np.int64)
            times = chunk_times(self.problem, layout, none)
            self._bare[chunks] = _Bare(
                times.forward_s[0],
                times.backward_s[0],
                times.hidden_pair_s[0],
                missing_bytes(self.problem, self.moments, layout, none)[0],
            )
        return self._bare[chunks]

    def _everywhere(self, chunks: Chunks, rows: int) -> Ints:
        layers = np.array(chunks, dtype=np.int64)
        return np.broadcast_to(layers, (rows, self.problem.pp, *layers.shape))


def as_chunks(layers: Ints) -> Chunks:
    """A stage's layers [vpp, classes] as a key."""
    return tuple(map(tuple, layers.tolist()))


def missing_bytes(problem: InnerProblem, moments: Floats, layout: Ints, applied: Ints) -> Floats:
    """Bytes above the limit at every peak moment of every stage [n, pp, moments] (negative: spare); infinite where its
    start takes more, which no choice frees.
    """
    held = [activation_bytes(problem, layout, applied, moments[:, k : k + 1]) for k in range(moments.shape[1])]
    always = problem.fixed_bytes + static_bytes(problem, layout)
    missing = always[..., None] + np.stack(held, axis=-1) - problem.limit_bytes
    if problem.starting is not None:
        missing[start_bytes(problem, layout, problem.starting) > problem.limit_bytes] = np.inf
    return missing


def stage_fits(problem: InnerProblem, layout: Ints, applied: Ints) -> np.ndarray:
    """Whether each stage is within the card's and the host's memory [n, pp]."""
    memory = stage_bytes(problem, layout, applied) <= problem.limit_bytes
    if np.isfinite(problem.host_bytes_per_device):
        memory &= host_bytes(problem, layout, applied) <= problem.host_bytes_per_device
    return np.asarray(memory)


def fits(problem: InnerProblem, layout: Ints, applied: Ints) -> np.ndarray:
    """Whether every stage is within the card's and the host's memory [n]."""
    return np.asarray(stage_fits(problem, layout, applied).all(axis=1))


PRICES: Final = (0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 10.0, 1e9)
"""Prices of a byte, in those of the dearest option."""


@dataclass(frozen=True, eq=False)
class OptionFrontier:
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
    of_class = [i for i, option in enumerate(options) if option.layer_class == layer_class]
    ratio = {i: options[i].extra_backward_s / options[i].saved_bytes for i in of_class if options[i].saved_bytes > 0.0}
    dearest, choices = max(ratio.values(), default=0.0) or 1.0, choices_of(options, layer_class)
    sets = [[of_class[number] for number in choices.best(price * dearest)] for price in PRICES]
    return tuple(dict.fromkeys(tuple(sorted(members, key=lambda i: (ratio[i], i))) for members in sets if members))


def nested_frontier(
    options: tuple[MemoryOption, ...],
    chunks: Ints,
    moments: Floats,
    need: Floats,
    free_swap_bytes: float,
) -> OptionFrontier:
    """Undominated counts of those sets for a stage whose chunks hold `chunks` [vpp, classes].

    moments : micro batches in flight at one or two of the stage's peak moments [moments, vpp].
    need : bytes that must be freed [moments]; more is worth nothing.
    free_swap_bytes : swapping less than this in all costs no time, so it isn't compared.
    """
    none = np.zeros((1, len(options)), dtype=np.int64)
    frontier = OptionFrontier(none, np.zeros((1, len(moments))), np.zeros(1), np.zeros(1))
    for number, layers in enumerate(chunks.sum(axis=0).tolist()):
        sets = nested_sets(options, number)
        if not layers or not sets:
            continue
        rows = _steps(sets, len(options), layers)
        own = _valued(options, rows, chunks, moments)
        frontier = _undominated(_summed(frontier, _undominated(own, None, 0.0)), need, free_swap_bytes)
    return frontier


@lru_cache(maxsize=512)
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
    counts = np.unique(np.stack(rows), axis=0)
    counts.flags.writeable = False
    return counts


def _valued(options: tuple[MemoryOption, ...], rows: Ints, chunks: Ints, moments: Floats) -> OptionFrontier:
    saved = np.zeros((len(rows), len(moments)))
    extra, swap = np.zeros(len(rows)), np.zeros(len(rows))
    for index in np.flatnonzero(rows.any(axis=0)).tolist():
        option = options[index]
        filled = fill_chunks(rows[:, index : index + 1], chunks[None, None, :, option.layer_class])[:, 0]
        saved += product(filled, moments.T) * option.saved_bytes
        extra += rows[:, index] * option.extra_backward_s
        swap += rows[:, index] * option.swap_bytes
    return OptionFrontier(rows, saved, extra, swap)


def _summed(a: OptionFrontier, b: OptionFrontier) -> OptionFrontier:
    """Every combination of a row of a and a row of b."""
    return OptionFrontier(
        (a.counts[:, None] + b.counts[None]).reshape(-1, a.counts.shape[1]),
        (a.saved[:, None] + b.saved[None]).reshape(-1, a.saved.shape[1]),
        (a.extra_s[:, None] + b.extra_s[None]).ravel(),
        (a.swap_bytes[:, None] + b.swap_bytes[None]).ravel(),
    )


def _undominated(frontier: OptionFrontier, need: Floats | None, free_swap_bytes: float) -> OptionFrontier:
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
    return OptionFrontier(
        frontier.counts[rows], frontier.saved[rows], frontier.extra_s[rows], frontier.swap_bytes[rows]
    )


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
