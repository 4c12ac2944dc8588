"""The best option counts of one stage for given layers, looked up many times during a search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.inner_problem import (
    ChunkTimes,
    Floats,
    InnerProblem,
    Ints,
    chunk_times,
    host_bytes,
    stage_bytes,
)
from autodeploy.solver.bounds import most_saved
from autodeploy.solver.memory_options import Frontier, TooManyCounts, num_branches, stage_frontier
from autodeploy.solver.nested_options import nested_frontier

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_POINTS = 64
MOST_BRANCHES = 2000
"""Combinations of competing options of a stage beyond which counts are proposed and not all compared."""
Chunks = tuple[tuple[int, ...], ...]  # layers of each class in each chunk of a stage


@dataclass(frozen=True, eq=False)
class StageChoice:
    """One stage with given layers: undominated option counts that fit.

    applied [points, options]; forward_s, backward_s [points, vpp] with them; base_forward_s, base_backward_s [vpp],
    hidden_pair_s [vpp, vpp] without any option; extra_s: no choice adds less time to the stage, over all its chunks.
    exact: every choice that fits is matched or beaten, chunk by chunk, by one of the points. Points come in order of
    their total time.
    """

    applied: Ints
    forward_s: Floats
    backward_s: Floats
    base_forward_s: Floats
    base_backward_s: Floats
    hidden_pair_s: Floats
    extra_s: float
    exact: bool


@dataclass(frozen=True, eq=False)
class _Bare:
    """All stages with the same layers and no option."""

    forward_s: Floats
    backward_s: Floats
    hidden_pair_s: Floats
    missing_bytes: Floats


class StageChoices:
    """Option choices of a problem by (stage, layers). With `mask` [options] the options are given: all on or off."""

    def __init__(self, problem: InnerProblem, mask: Ints | None = None) -> None:
        self.problem = problem
        self.mask = mask
        counts = problem.in_flight if problem.in_flight.ndim == 3 else problem.in_flight[:, None, :]
        self.moments = counts.astype(np.float64)
        self._choices: dict[tuple[int, Chunks], StageChoice | None] = {}
        self.stop: Callable[[], bool] | None = None  # polled between look-ups: the rest counts as not fitting
        self._cheapest_ratio = min(
            (o.extra_backward_s / o.saved_bytes for o in problem.options if o.saved_bytes > 0.0), default=0.0
        )
        self._bare: dict[Chunks, _Bare] = {}
        self._frontiers: dict[Chunks, Frontier] = {}
        self._too_many: set[Chunks] = set()
        self._with_mask: dict[Chunks, tuple[Ints, ChunkTimes, np.ndarray]] = {}

    def get(self, stage: int, chunks: Chunks) -> StageChoice | None:
        """The stage's choices; None when no counts make the layers fit. Without points: none was found."""
        key = (stage, chunks)
        if key not in self._choices:
            self._choices[key] = self._given(stage, chunks) if self.mask is not None else self._chosen(stage, chunks)
        return self._choices[key]

    def bare(self, stage: int, chunks: Chunks) -> StageChoice | None:
        """The stage without a frontier: times without options, and the least time that any options could add.

        exact when it needs none; None when even the most that its layers can free isn't enough. With given options:
        the same as `get`.
        """
        if self.mask is not None:
            return self.get(stage, chunks)
        bare = self._without_options(chunks)
        need = bare.missing_bytes[stage]
        least = 0.0
        if need.max() > 0.0:
            layers = np.array(chunks, dtype=np.float64)
            held = self.moments[stage] @ layers  # [moments, classes]
            saved = np.array([most_saved(self.problem.options, c) for c in range(layers.shape[1])])
            if (need > held @ saved * (1.0 + 1e-9)).any():
                return None
            least = float(np.max(need / np.maximum(self.moments[stage].max(axis=1), 1e-30))) * self._cheapest_ratio
        none = np.zeros((1, len(self.problem.options)), dtype=np.int64)
        forward, backward = bare.forward_s[stage], bare.backward_s[stage]
        return StageChoice(
            none,
            forward[None],
            backward[None],
            forward,
            backward,
            bare.hidden_pair_s[stage],
            max(0.0, least),
            exact=bool(need.max() <= 0.0),
        )

    def complete(self, layout: Ints) -> tuple[Ints, np.ndarray]:
        """Least-time option counts [n, pp, options] of layouts, and whether every stage fits [n]."""
        problem = self.problem
        if self.mask is not None:
            classes = [option.layer_class for option in problem.options]
            applied = layout.sum(axis=2)[..., classes] * self.mask
            return applied, fits(problem, layout, applied)
        applied = np.zeros((*layout.shape[:2], len(problem.options)), dtype=np.int64)
        tight = stage_bytes(problem, layout, applied) > problem.limit_bytes
        ok = np.ones(len(layout), dtype=np.bool_)
        for row, stage in zip(*np.nonzero(tight), strict=True):
            if self.stop is not None and self.stop():
                ok[row] = False
            if ok[row]:
                choice = self.get(int(stage), as_chunks(layout[row, stage]))
                if choice is None or not len(choice.applied):
                    ok[row] = False
                else:
                    applied[row, stage] = choice.applied[0]
        return applied, ok

    def _given(self, stage: int, chunks: Chunks) -> StageChoice | None:
        if chunks not in self._with_mask:
            layout = self._everywhere(chunks, 1)
            applied, _ = self.complete(layout)
            times = chunk_times(self.problem, layout, applied)
            self._with_mask[chunks] = (applied[0], times, _stage_fits(self.problem, layout, applied)[0])
        applied_to, times, fit = self._with_mask[chunks]
        if not fit[stage]:
            return None
        forward, backward = times.forward_s[:, stage], times.backward_s[:, stage]
        return StageChoice(
            applied_to[stage : stage + 1],
            forward,
            backward,
            forward[0],
            backward[0],
            times.hidden_pair_s[0, stage],
            0.0,
            exact=True,
        )

    def _chosen(self, stage: int, chunks: Chunks) -> StageChoice | None:
        bare = self._without_options(chunks)
        base_forward, base_backward = bare.forward_s[stage], bare.backward_s[stage]
        need = bare.missing_bytes[stage]
        if need.max() <= 0.0:
            none = np.zeros((1, len(self.problem.options)), dtype=np.int64)
            return StageChoice(
                none,
                base_forward[None],
                base_backward[None],
                base_forward,
                base_backward,
                bare.hidden_pair_s[stage],
                0.0,
                exact=True,
            )
        frontier = self._frontier(stage, chunks, need, bare)
        link = self.problem.host_link_bytes_per_s
        out = np.maximum(0.0, frontier.swap_bytes / link - base_forward.sum())
        back = np.maximum(0.0, frontier.swap_bytes / link - base_backward.sum() - frontier.extra_s)
        added = frontier.extra_s + out + back
        shown = self._worst_moments(need)[: frontier.saved.shape[1]]
        # On the host at least what the least busy chunk holds; `_points` checks the rest.
        on_host = frontier.swap_bytes * self.moments[stage].min(axis=1).max()
        enough = (frontier.saved >= need[shown] * (1.0 - 1e-9)).all(axis=1)
        rows = np.flatnonzero(enough & (on_host <= self.problem.host_bytes_per_device * (1.0 + 1e-9)))
        proposed = self.problem.vpp == 1 and not self._listed(chunks)
        bound = self.bare(stage, chunks) if proposed else None
        if bound is None and (proposed or not len(rows)):
            return None
        # A pair gives swaps a longer window than its passes have.
        shorter = frontier.extra_s if self.problem.pairs else added
        least = float(shorter[rows].min()) if bound is None else bound.extra_s
        rows = rows[np.argsort(added[rows], kind="stable")]
        if self.problem.vpp == 1:
            rows = rows[_front(out[rows], (added - out)[rows])]
        exact = self.problem.vpp == 1 and len(rows) <= MOST_POINTS and not proposed
        exact &= not (self.problem.pairs and bool(frontier.swap_bytes.any()))
        found = self._points(stage, chunks, bare, frontier.counts[rows[:MOST_POINTS]], least, exact=exact)
        if not len(found.applied):
            lean = np.argsort(-frontier.saved.sum(axis=1), kind="stable")[:MOST_POINTS]
            found = self._points(stage, chunks, bare, frontier.counts[lean], least, exact=False)
        return found

    def _worst_moments(self, need: Floats) -> Ints:
        return np.argsort(-need, kind="stable")[:2]

    def _points(
        self, stage: int, chunks: Chunks, bare: _Bare, applied: Ints, least: float, *, exact: bool
    ) -> StageChoice:
        """Keep the counts that really fit, undominated in the times of the chunks."""
        layout = self._everywhere(chunks, len(applied))
        everywhere = np.repeat(applied[:, None, :], self.problem.pp, axis=1)
        fit = _stage_fits(self.problem, layout, everywhere)[:, stage]
        times = chunk_times(self.problem, layout[fit], everywhere[fit])
        forward, backward, applied = times.forward_s[:, stage], times.backward_s[:, stage], applied[fit]
        order = np.argsort((forward + backward).sum(axis=1), kind="stable")
        both = np.concatenate([forward, backward], axis=1)[order]
        worse = (both[None, :, :] <= both[:, None, :]).all(axis=2) & np.tri(len(both), k=-1, dtype=np.bool_)
        order = order[~worse.any(axis=1)]
        return StageChoice(
            applied[order],
            forward[order],
            backward[order],
            bare.forward_s[stage],
            bare.backward_s[stage],
            bare.hidden_pair_s[stage],
            least,
            exact,
        )

    def _listed(self, chunks: Chunks) -> bool:
        """Whether all counts are compared: with one chunk a stage, unless its layers and options are too many."""
        if self.problem.vpp > 1 or chunks in self._too_many:
            return False
        return num_branches(self.problem.options, np.array(chunks, dtype=np.int64).sum(axis=0)) <= MOST_BRANCHES

    def _frontier(self, stage: int, chunks: Chunks, need: Floats, bare: _Bare) -> Frontier:
        """All counts that no other beats, or those of a few sets of options where they are too many to be listed."""
        try:
            return self._all_or_nested(stage, chunks, need, bare)
        except TooManyCounts:
            self._too_many.add(chunks)
            return self._all_or_nested(stage, chunks, need, bare)

    def _all_or_nested(self, stage: int, chunks: Chunks, need: Floats, bare: _Bare) -> Frontier:
        """With one chunk a stage the frontier is the same on all stages, but for the number in flight.

        With several moments only the worst (two, when swaps cost no time) are compared: a relaxation.
        """
        layers = np.array(chunks, dtype=np.int64)
        link = self.problem.host_link_bytes_per_s
        window = np.minimum(bare.forward_s.sum(axis=1), bare.backward_s.sum(axis=1))
        if np.isfinite(self.problem.host_bytes_per_device):
            window = np.zeros_like(window)  # host memory is short: every swapped byte counts
        listed = self._listed(chunks)
        if not listed or self.moments.shape[1] > 1:
            shown = self._worst_moments(need)
            movable = sum(o.swap_bytes * layers[:, o.layer_class].sum() for o in self.problem.options)
            if movable > link * window[stage]:
                shown = shown[:1]
            propose = stage_frontier if listed else nested_frontier
            return propose(
                self.problem.options,
                layers,
                self.moments[stage, shown],
                np.maximum(need[shown], 0.0),
                float(link * window[stage]),
            )
        if chunks not in self._frontiers:
            self._frontiers[chunks] = stage_frontier(
                self.problem.options, layers, np.ones((1, 1)), None, float(link * window.min())
            )
        one = self._frontiers[chunks]
        return Frontier(one.counts, one.saved * self.moments[stage, 0, 0], one.extra_s, one.swap_bytes)

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


def _front(first: Floats, second: Floats) -> Ints:
    """Places of the points that are undominated in both (of equals the first), in their old order."""
    order = np.lexsort((np.arange(len(first)), second, first))
    lowest = np.minimum.accumulate(np.concatenate([[np.inf], second[order][:-1]]))
    return np.sort(order[second[order] < lowest])


def as_chunks(layers: Ints) -> Chunks:
    """A stage's layers [vpp, classes] as a key."""
    return tuple(map(tuple, layers.tolist()))


def missing_bytes(problem: InnerProblem, moments: Floats, layout: Ints, applied: Ints) -> Floats:
    """Bytes above the limit at every peak moment of every stage [n, pp, moments] (negative: spare)."""
    parts = [stage_bytes(replace(problem, in_flight=moments[:, k]), layout, applied) for k in range(moments.shape[1])]
    return np.stack(parts, axis=-1) - problem.limit_bytes


def _stage_fits(problem: InnerProblem, layout: Ints, applied: Ints) -> np.ndarray:
    memory = stage_bytes(problem, layout, applied) <= problem.limit_bytes
    if np.isfinite(problem.host_bytes_per_device):
        memory &= host_bytes(problem, layout, applied) <= problem.host_bytes_per_device
    return np.asarray(memory)


def fits(problem: InnerProblem, layout: Ints, applied: Ints) -> np.ndarray:
    """Whether every stage is within the card's and the host's memory [n]."""
    return np.asarray(_stage_fits(problem, layout, applied).all(axis=1))
