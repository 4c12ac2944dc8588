"""The master problem: one column a stage so that the longest known path is shortest. Solved by CP-SAT.

Every simulated critical path is a linear cut on the columns, valid for all plans, so the optimum of the master is a
lower bound. Seconds become integers here and nowhere else; costs are rounded down, so the bound stays one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from autodeploy.solver.columns import layout_of
from autodeploy.solver.cp_sat import UNITS, Proposal, solve_model
from autodeploy.solver.layouts import parts_of
from autodeploy.solver.paths import edges_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.evaluation.inner_problem import Floats, InnerProblem, Ints
    from autodeploy.solver.columns import Column
    from cost_models.schedule import SchedulePath

weighted_sum = cp_model.LinearExpr.weighted_sum


@dataclass(frozen=True, eq=False)
class _Columns:
    """Columns of all stages one after the other: stage [n], times [n, vpp], hidden_pair_s [n, vpp, vpp], extra_s [n].

    split_s [n, vpp] : the part of a chunk's backward that sends run beside.
    """

    stage: Ints
    forward_s: Floats
    backward_s: Floats
    hidden_pair_s: Floats
    split_s: Floats
    extra_s: Floats

    @classmethod
    def of(cls, problem: InnerProblem, columns: Sequence[Column]) -> _Columns:
        stage = np.array([column.stage for column in columns])
        layers = np.array([column.chunks for column in columns], dtype=np.float64)
        pieces = np.zeros((problem.pp, problem.vpp))
        for piece in problem.pieces:
            pieces[piece.stage, piece.chunk] += piece.cost.split_s
        return cls(
            stage,
            np.stack([column.forward_s for column in columns]),
            np.stack([column.backward_s for column in columns]),
            np.stack([column.hidden_pair_s for column in columns]),
            layers @ np.array([c.split_s for c in problem.classes]) + pieces[stage],
            np.array([column.extra_s for column in columns]),
        )

    def costs_s(self, problem: InnerProblem, path: SchedulePath) -> Floats:
        """Seconds that a path spends on a stage filled by each column, at least [n]."""
        p = self.stage
        cost = (path.forward[p] * self.forward_s).sum(axis=1) + (path.backward[p] * self.backward_s).sum(axis=1)
        cost -= (path.pairs[p] * self.hidden_pair_s).sum(axis=(1, 2)) + (path.split[p] * self.split_s).sum(axis=1)
        times = path.backward.min(axis=1)
        if any(option.swap_bytes for option in problem.options):
            times = np.minimum(times, path.forward.min(axis=1))
        return np.asarray(cost + times[p] * self.extra_s)


def solve_master(
    problem: InnerProblem,
    columns: list[list[Column]],
    cuts: list[SchedulePath],
    upper_s: float,
    *,
    hint: Ints | None,
    deterministic_time: float,
    seed: int,
    should_cancel: Callable[[], bool] | None,
    workers: int = 1,
) -> Proposal:
    """Look for columns with every cut below upper_s (makespan plus the slowest stage's tail)."""
    if any(not stage for stage in columns):
        return Proposal(upper_s, None, proven=True, deterministic_time=0.0)
    scale = UNITS / upper_s  # 0 for an infinite upper bound: any columns that fit together will do
    model = cp_model.CpModel()
    picks = [[model.new_bool_var("") for _ in stage] for stage in columns]
    for stage in picks:
        model.add_exactly_one(stage)
    makespan = model.new_int_var(0, UNITS, "makespan")
    tail = model.new_int_var(0, UNITS, "tail")
    flat = [
        (column, pick)
        for stage, row in zip(columns, picks, strict=True)
        for column, pick in zip(stage, row, strict=True)
    ]
    stacked = _Columns.of(problem, [column for column, _ in flat])
    for cut in cuts:
        costs = np.floor(stacked.costs_s(problem, cut) * scale).astype(np.int64).tolist()
        edges = int(np.floor(edges_s(problem, cut) * scale))
        model.add(weighted_sum([pick for _, pick in flat], costs) + edges <= makespan)
    for stage_columns, row in zip(columns, picks, strict=True):
        model.add(weighted_sum(row, [int(np.floor(c.tail_s * scale)) for c in stage_columns]) <= tail)
    _place_layers(model, problem, flat)
    model.add(makespan + tail <= UNITS - 1)
    model.minimize(makespan + tail)
    if hint is not None:
        for stage_columns, row in zip(columns, picks, strict=True):
            for column, pick in zip(stage_columns, row, strict=True):
                model.add_hint(pick, int(np.array_equal(np.array(column.chunks), hint[column.stage])))
    result = solve_model(model, deterministic_time, seed, should_cancel, workers=workers)
    if result.infeasible:
        return Proposal(upper_s * (1.0 - 1.0 / UNITS), None, True, result.deterministic_time)
    bound = result.bound / scale if scale else 0.0
    if result.solver is None:
        return Proposal(bound, None, False, result.deterministic_time)
    solver = result.solver
    chosen = [
        next(column for column, pick in zip(stage, row, strict=True) if solver.boolean_value(pick))
        for stage, row in zip(columns, picks, strict=True)
    ]
    return Proposal(bound, layout_of(problem, chosen), result.optimal, result.deterministic_time)


def _place_layers(model: cp_model.CpModel, problem: InnerProblem, flat: list[tuple[Column, cp_model.IntVar]]) -> None:
    """Every layer is placed once, and a part holds a class only when all earlier classes end by then."""
    picks = [pick for _, pick in flat]
    for number, layers in enumerate(problem.layers):
        placed = [sum(chunk[number] for chunk in column.chunks) for column, _ in flat]
        model.add(weighted_sum(picks, placed) == layers)
    places = [spots[0] for spots in parts_of(problem)]
    for number, layers in enumerate(problem.layers[:-1]):
        if not layers:
            continue
        done: list[int] = [0] * len(flat)
        for stage, chunk in places:
            later = [0] * len(flat)
            for index, (column, _) in enumerate(flat):
                if column.stage == stage:
                    done[index] += column.chunks[chunk][number]
                    later[index] = int(any(column.chunks[chunk][number + 1 :]))
            if any(later):
                weights = [d - layers * late for d, late in zip(done, later, strict=True)]
                model.add(weighted_sum(picks, weights) >= 0)
