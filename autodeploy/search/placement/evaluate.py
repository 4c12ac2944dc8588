"""The step time of layouts, from the schedule's graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from autodeploy.costs.stages.inner_problem import ChunkTimes, InnerProblem, chunk_times, passes_s, tail_s
from autodeploy.search.bounds.paths import paced_paths
from autodeploy.search.choices.layouts import moved, moves, to_layout, to_sizes
from cost_models.schedule import SchedulePath, closed_form_s, critical_paths, makespan_s, simulated_together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.search.placement.stage_choices import StageChoices
    from cost_models.arrays import Floats, Ints


Status = Literal["optimal", "feasible", "infeasible", "cancelled", "pruned"]
OPTIMAL_GAP = 1e-6
"""A relative gap below this counts as none: the master problem rounds seconds to integers."""


@dataclass(frozen=True, eq=False)
class InnerPlan:
    """Layers [pp, vpp, classes], option counts [pp, options], and the step time that the simulated schedule gives."""

    layout: Ints
    applied: Ints
    step_s: float


@dataclass(frozen=True, eq=False)
class InnerSolution:
    """A plan and how good it is proven to be.

    Attributes
    ----------
    status : optimal (gap <= OPTIMAL_GAP), feasible, infeasible, cancelled (then the plan is the best so far), or pruned
        (no plan found before the budget ended or the bound reached the caller's upper bound).
    bound_s : no layout and no choice of options of this problem has a smaller step_s.
    relaxation : what the bound rests on.
    deterministic_work : budget used, in CP-SAT's deterministic seconds.
    """

    status: Status
    plan: InnerPlan | None
    bound_s: float = 0.0
    relaxation: str = ""
    deterministic_work: float = 0.0

    @property
    def step_s(self) -> float:
        """Of the plan; inf when there is none."""
        return float("inf") if self.plan is None else self.plan.step_s

    @property
    def gap(self) -> float:
        """(step_s - bound_s) / step_s; 1 without a plan."""
        if self.plan is None or self.step_s <= 0.0:
            return 1.0
        return max(0.0, (self.step_s - self.bound_s) / self.step_s)


@dataclass(frozen=True, eq=False)
class Timed:
    """Plans before their simulation: layout [n, pp, vpp, classes], applied [n, pp, options], times of their chunks,
    tail_s [n] after the pipeline has drained, and least_s [n], a lower bound on the step time by the closed form.
    """

    layout: Ints
    applied: Ints
    times: ChunkTimes
    tail_s: Floats
    least_s: Floats


class Evaluator:
    """Simulates layouts of one problem."""

    def __init__(self, problem: InnerProblem) -> None:
        self.problem = problem

    def timed(self, layout: Ints, applied: Ints) -> Timed:
        """Plans with what is known of them without simulation."""
        times, tail = chunk_times(self.problem, layout, applied), tail_s(self.problem, layout)
        schedule, passes = self.problem.schedule, (times.forward_s, times.backward_s)
        hidden = times.hidden_pair_s if self.problem.pairs else None
        form = closed_form_s(schedule, *passes, self.problem.micro_batches, hidden, times.sends)
        return Timed(layout, applied, times, tail, form.makespan_s + tail)

    def bare_s(self, layout: Ints, below_s: float = float("inf")) -> Floats:
        """Lower bound on the step time of layouts [n] under any options; inf where it is not below below_s."""
        bare = np.full(len(layout), np.inf)
        rows = np.flatnonzero(self._busiest_s(layout) * (1.0 - ROUNDING) < below_s)
        none = np.zeros((len(rows), layout.shape[1], len(self.problem.options)), dtype=np.int64)
        bare[rows] = self.timed(layout[rows], none).least_s
        bare[bare >= below_s] = np.inf
        return bare

    def _busiest_s(self, layout: Ints) -> Floats:
        """Passes of the stage that works longest without options, all micro batches of them [n]; 0 where pairs hide."""
        if self.problem.pairs:
            return np.zeros(len(layout))
        return np.asarray(passes_s(self.problem, layout).max(axis=1) * self.problem.chunk_micro_batches)

    def fastest(
        self, plans: Timed, rows: Ints, below_s: float = float("inf"), cuts: Sequence[SchedulePath] = ()
    ) -> tuple[int, InnerPlan] | None:
        """The fastest of the plans at some rows that is faster than below_s, with its row; ties go to the first.

        cuts : paths of the schedule, on which plans are not simulated that take too long.
        """
        fastest, together = None, simulated_together(self.problem.order)
        rows = self._open(plans, rows, below_s, cuts)
        while len(rows):
            some, rows = rows[:together], rows[together:]
            step_s = self._simulated_s(plans.times, plans.tail_s, some)
            first = int(np.argmin(step_s))
            if step_s[first] < below_s:
                fastest, below_s = int(some[first]), float(step_s[first])
                rows = self._open(plans, rows, below_s)
        if fastest is None:
            return None
        return fastest, InnerPlan(plans.layout[fastest], plans.applied[fastest], below_s)

    def _open(self, plans: Timed, rows: Ints, below_s: float, cuts: Sequence[SchedulePath] = ()) -> Ints:
        """Of the plans at some rows those that may be faster than below_s."""
        rows = rows[plans.least_s[rows] < below_s]
        for cut in cuts:
            rows = rows[plans.tail_s[rows] + self._along_s(plans.times, cut, rows) * (1.0 - ROUNDING) < below_s]
        return rows

    def step_s(self, layout: Ints, applied: Ints, below_s: float = float("inf")) -> Floats:
        """Simulated step times [n]; inf without simulation where the closed form already reaches below_s."""
        plans = self.timed(layout, applied)
        step_s = np.full(len(layout), np.inf)
        rows = np.flatnonzero(plans.least_s < below_s)
        if len(rows):
            step_s[rows] = self._simulated_s(plans.times, plans.tail_s, rows)
        return step_s

    def _simulated_s(self, times: ChunkTimes, tail: Floats, rows: Ints) -> Floats:
        passes = times.forward_s[rows], times.backward_s[rows]
        hidden = times.hidden_pair_s[rows] if self.problem.pairs else None
        return tail[rows] + makespan_s(self.problem.order, *passes, hidden, times.sends.take(rows))

    def _along_s(self, times: ChunkTimes, path: SchedulePath, rows: Ints) -> Floats:
        """Seconds of the plans at some rows along a path."""
        hidden = times.hidden_pair_s[rows] if self.problem.pairs else None
        return path.length_s(times.forward_s[rows], times.backward_s[rows], hidden, times.sends.take(rows))

    def plan(self, layout: Ints, applied: Ints) -> InnerPlan:
        """One plan with its simulated time."""
        times, tail = chunk_times(self.problem, layout[None], applied[None]), tail_s(self.problem, layout[None])
        return InnerPlan(layout, applied, float(self._simulated_s(times, tail, np.arange(1))[0]))

    def critical_path(self, layout: Ints, applied: Ints) -> SchedulePath:
        """The longest path of one plan: a cut."""
        return self.critical_paths(layout[None], applied[None])[0]

    def critical_paths(self, layout: Ints, applied: Ints) -> list[SchedulePath]:
        """The longest path of every plan."""
        times = chunk_times(self.problem, layout, applied)
        return critical_paths(self.problem.order, times.forward_s, times.backward_s, times.hidden_pair_s, times.sends)

    def paced_paths(self, layout: Ints, applied: Ints) -> list[SchedulePath]:
        """The longest path of a plan with one stage slowed, for every stage."""
        times = chunk_times(self.problem, layout[None], applied[None])
        return paced_paths(self.problem.order, times.forward_s, times.backward_s, times.hidden_pair_s, times.sends)


SIMULATED_TOGETHER: Final = 64
ROUNDING: Final = 1e-12
"""By so much, as a share, the length of a path may differ that is added up in another order."""
MOST_SIMULATED: Final = 192
"""Layouts simulated a move: the closed form of the rest is worse."""


LAYERS_TOGETHER: Final = 4_000_000
"""Layers counted at once, over layouts, stages, chunks and classes: what they need stays below some 300 MB."""


def best_of(
    evaluator: Evaluator, choices: StageChoices, sizes: Ints, below_s: float, stop: Callable[[], bool] | None = None
) -> InnerPlan | None:
    """The fastest of some layouts [n, parts] that fits and is faster than below_s; ties go to the first.

    Layouts come in the order of their closed form without options, which no choice of options can beat; at most
    MOST_SIMULATED of them get options and a simulation. Once `stop` says so, the best of those that were looked at.
    """
    return _best_of(evaluator, choices, len(sizes), lambda rows: sizes[rows], below_s, stop or (lambda: False))


def _best_of(
    evaluator: Evaluator,
    choices: StageChoices,
    count: int,
    sizes_of: Callable[[Ints], Ints],
    below_s: float,
    stop: Callable[[], bool],
    cuts: Sequence[SchedulePath] = (),
) -> InnerPlan | None:
    """`best_of` layouts that are made when they are looked at: [rows, parts] of row numbers below count; cuts : as of
    `Evaluator.fastest`.
    """
    problem = evaluator.problem
    bare = _bare_s(evaluator, count, sizes_of, below_s, stop)
    order = np.argsort(bare, kind="stable")[:MOST_SIMULATED]
    best: InnerPlan | None = None
    for start in range(0, len(order), SIMULATED_TOGETHER):
        rows = order[start : start + SIMULATED_TOGETHER]
        rows = rows[bare[rows] < below_s]
        if not len(rows) or (start and stop()):
            break
        layout = to_layout(problem, sizes_of(rows))
        applied, ok = choices.complete(layout)
        if not ok.any():
            continue
        plans = evaluator.timed(layout[ok], applied[ok])
        faster = evaluator.fastest(plans, np.arange(len(plans.least_s)), below_s, cuts)
        if faster is not None:
            best = faster[1]
            below_s = best.step_s
    return best


def _bare_s(
    evaluator: Evaluator, count: int, sizes_of: Callable[[Ints], Ints], below_s: float, stop: Callable[[], bool]
) -> Floats:
    """Closed forms of layouts without options [count], some at a time; inf of those that are not below below_s, or that
    no time was left for.
    """
    problem = evaluator.problem
    at_once = max(
        1, LAYERS_TOGETHER // (problem.pp * problem.vpp * (problem.vpp + len(problem.classes) + len(problem.options)))
    )
    bare = np.full(count, np.inf)
    for start in range(0, count, at_once):
        if start and stop():
            break
        rows = np.arange(start, min(start + at_once, count))
        bare[rows] = evaluator.bare_s(to_layout(problem, sizes_of(rows)), below_s)
    return bare


def improve(
    evaluator: Evaluator, choices: StageChoices, start: InnerPlan, most: int, stop: Callable[[], bool]
) -> InnerPlan:
    """Steepest descent over single-layer moves, at most `most` of them.

    What does not shorten the longest path of a plan is no faster.
    """
    best, cuts = start, list[SchedulePath]()
    for _ in range(most):
        if stop():
            break
        cuts.append(evaluator.critical_path(best.layout, best.applied))
        sizes = to_sizes(evaluator.problem, best.layout)
        near = moves(evaluator.problem, sizes)
        # A tie is no improvement, whatever the last bits say.
        below_s = best.step_s * (1.0 - 1e-12)
        better = _best_of(evaluator, choices, len(near), partial(_after, sizes, near), below_s, stop, cuts)
        if better is None:
            break
        best = better
    return best


def _after(sizes: Ints, near: Ints, rows: Ints) -> Ints:
    return moved(sizes, near[rows])
