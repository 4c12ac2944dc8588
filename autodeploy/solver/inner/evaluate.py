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
        return self._closed_form_s(self.times(layout, applied)) + tail_s(self.problem, layout)

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
        times = self.times(layout, applied)
        tail = tail_s(self.problem, layout)
        low = self._closed_form_s(times)
        step = np.full(len(layout), np.inf)
        rows = np.flatnonzero(low + tail < below_s)
        if len(rows):
            step[rows] = tail[rows] + makespan_s(
                self.order,
                times.forward_s[rows],
                times.backward_s[rows],
                times.hidden_pair_s[rows],
                times.sends.take(rows),
            )
        return step

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
