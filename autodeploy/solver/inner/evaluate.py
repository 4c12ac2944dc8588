"""The step time of layouts, from the schedule's graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autodeploy.evaluation.stages.inner_problem import ChunkTimes, Floats, InnerProblem, Ints, chunk_times, tail_s
from autodeploy.solver.bounds.paths import paced_paths
from cost_models.schedule import (
    OperationOrder,
    SchedulePath,
    closed_form_s,
    critical_paths,
    makespan_s,
    operation_order,
)


@dataclass(frozen=True, eq=False)
class Incumbent:
    """A plan that fits: layout [pp, vpp, classes], applied [pp, options]."""

    layout: Ints
    applied: Ints
    makespan_s: float
    step_s: float


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
        self.order: OperationOrder = operation_order(problem.schedule, problem.pp, problem.vpp, problem.micro_batches)

    def times(self, layout: Ints, applied: Ints) -> ChunkTimes:
        """`chunk_times` of the problem."""
        return chunk_times(self.problem, layout, applied)

    def makespan_s(self, layout: Ints, applied: Ints) -> Floats:
        """Simulated makespans [n]."""
        times = self.times(layout, applied)
        return makespan_s(self.order, times.forward_s, times.backward_s, times.hidden_pair_s, times.sends)

    def bare_s(self, layout: Ints) -> Floats:
        """Lower bound on the step time of layouts [n] under any options."""
        none = np.zeros((*layout.shape[:2], len(self.problem.options)), dtype=np.int64)
        return self.least_s(layout, none)

    def least_s(self, layout: Ints, applied: Ints) -> Floats:
        """Lower bound on the step time of plans [n], by the closed form."""
        return self.timed(layout, applied).least_s

    def timed(self, layout: Ints, applied: Ints) -> Timed:
        """Plans with what is known of them without simulation."""
        times, tail = self.times(layout, applied), tail_s(self.problem, layout)
        return Timed(layout, applied, times, tail, self._closed_form_s(times) + tail)

    def fastest(self, plans: Timed, rows: Ints, below_s: float = float("inf")) -> tuple[int, Incumbent] | None:
        """The fastest of the plans at some rows that is faster than below_s, with its row; ties go to the first."""
        rows = rows[plans.least_s[rows] < below_s]
        if not len(rows):
            return None
        makespan = self._simulated_s(plans.times, rows)
        step = plans.tail_s[rows] + makespan
        first = int(np.argmin(step))
        if not step[first] < below_s:
            return None
        row = int(rows[first])
        return row, Incumbent(plans.layout[row], plans.applied[row], float(makespan[first]), float(step[first]))

    def _closed_form_s(self, times: ChunkTimes) -> Floats:
        return closed_form_s(
            self.problem.schedule,
            times.forward_s,
            times.backward_s,
            self.problem.micro_batches,
            times.hidden_pair_s,
            times.sends,
        ).makespan_s

    def step_s(self, layout: Ints, applied: Ints, below_s: float = float("inf")) -> Floats:
        """Simulated step times [n]; inf without simulation where the closed form already reaches below_s."""
        plans = self.timed(layout, applied)
        step = np.full(len(layout), np.inf)
        rows = np.flatnonzero(plans.least_s < below_s)
        if len(rows):
            step[rows] = plans.tail_s[rows] + self._simulated_s(plans.times, rows)
        return step

    def _simulated_s(self, times: ChunkTimes, rows: Ints) -> Floats:
        return makespan_s(
            self.order,
            times.forward_s[rows],
            times.backward_s[rows],
            times.hidden_pair_s[rows],
            times.sends.take(rows),
        )

    def incumbent(self, layout: Ints, applied: Ints) -> Incumbent:
        """One plan with its simulated times."""
        makespan = float(self.makespan_s(layout[None], applied[None])[0])
        return Incumbent(layout, applied, makespan, makespan + float(tail_s(self.problem, layout[None])[0]))

    def critical_path(self, layout: Ints, applied: Ints) -> SchedulePath:
        """The longest path of one plan: a cut."""
        return self.critical_paths(layout[None], applied[None])[0]

    def critical_paths(self, layout: Ints, applied: Ints) -> list[SchedulePath]:
        """The longest path of every plan."""
        times = self.times(layout, applied)
        return critical_paths(self.order, times.forward_s, times.backward_s, times.hidden_pair_s, times.sends)

    def paced_paths(self, layout: Ints, applied: Ints) -> list[SchedulePath]:
        """The longest path of a plan with one stage slowed, for every stage."""
        times = self.times(layout[None], applied[None])
        return paced_paths(self.order, times.forward_s, times.backward_s, times.hidden_pair_s, times.sends)
