"""The master problem: one column a stage so that the longest known path is shortest. Solved by CP-SAT.

Every simulated critical path is a linear cut on the columns, valid for all plans, so the optimum of the master is a
lower bound. Seconds become integers here and nowhere else; costs are rounded down, so the bound stays one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.layouts import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortools.sat.python import cp_model

    from autodeploy.evaluation.inner_problem import Floats, InnerProblem, Ints
    from autodeploy.solver.columns import Column
    from cost_models.schedule import SchedulePath

UNITS = 1 << 26
"""The incumbent's step time in integer units: rounding costs less than 16 stages / UNITS of the bound."""
POLL_S = 0.02


@dataclass(frozen=True, eq=False)
class MasterResult:
    """bound_s on the step time (without the problem's own tail); the columns chosen, None when none is faster."""

    bound_s: float
    chosen: list[Column] | None
    proven: bool
    deterministic_time: float


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


def edges_s(problem: InnerProblem, path: SchedulePath) -> float:
    """Seconds that a path spends between devices, at least: no layer covers more of a send than the best one."""
    covered = min(problem.p2p_s, max(c.covering_s for c in problem.classes))
    return float(path.edges * problem.p2p_s - path.covered.sum() * covered)


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
) -> MasterResult:
    """Look for columns with every cut below upper_s (makespan plus the slowest stage's tail)."""
    if any(not stage for stage in columns):
        return MasterResult(upper_s, None, proven=True, deterministic_time=0.0)
    from ortools.sat.python import cp_model

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
        model.add(_sum(cp_model, [pick for _, pick in flat], costs) + edges <= makespan)
    for stage_columns, row in zip(columns, picks, strict=True):
        model.add(_sum(cp_model, row, [int(np.floor(c.tail_s * scale)) for c in stage_columns]) <= tail)
    _place_layers(cp_model, model, problem, flat)
    model.add(makespan + tail <= UNITS - 1)
    model.minimize(makespan + tail)
    if hint is not None:
        for stage_columns, row in zip(columns, picks, strict=True):
            for column, pick in zip(stage_columns, row, strict=True):
                model.add_hint(pick, int(np.array_equal(np.array(column.chunks), hint[column.stage])))
    result = solve_model(model, deterministic_time, seed, should_cancel, workers=workers)
    if result.infeasible:
        return MasterResult(
            upper_s * (1.0 - 1.0 / UNITS), None, proven=True, deterministic_time=result.deterministic_time
        )
    bound = result.bound / scale if scale else 0.0
    if result.solver is None:
        return MasterResult(bound, None, proven=False, deterministic_time=result.deterministic_time)
    solver = result.solver
    chosen = [
        next(column for column, pick in zip(stage, row, strict=True) if solver.boolean_value(pick))
        for stage, row in zip(columns, picks, strict=True)
    ]
    return MasterResult(bound, chosen, proven=result.optimal, deterministic_time=result.deterministic_time)


@dataclass(frozen=True, eq=False)
class ModelResult:
    """bound in model units; solver holds the values, None when there are none."""

    bound: float
    solver: cp_model.CpSolver | None
    infeasible: bool
    optimal: bool
    deterministic_time: float


def solve_model(
    model: cp_model.CpModel,
    deterministic_time: float,
    seed: int,
    should_cancel: Callable[[], bool] | None,
    workers: int = 1,
) -> ModelResult:
    """Minimise with a fixed seed and a deterministic budget: with one worker the same model gives the same answer."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = deterministic_time
    status = _solve(solver, model, should_cancel)
    # Its own sum differs in the last bit from run to run.
    spent = round(float(solver.response_proto.deterministic_time), 9)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return ModelResult(
        max(0.0, solver.best_objective_bound),
        solver if found else None,
        infeasible=status == cp_model.INFEASIBLE,
        optimal=status == cp_model.OPTIMAL,
        deterministic_time=spent,
    )


def _sum(module: object, variables: Sequence[cp_model.IntVar], weights: list[int]) -> cp_model.LinearExpr:
    return module.LinearExpr.weighted_sum(variables, weights)  # type: ignore[attr-defined, no-any-return]


def _place_layers(
    module: object, model: cp_model.CpModel, problem: InnerProblem, flat: list[tuple[Column, cp_model.IntVar]]
) -> None:
    """Every layer is placed once, and a part holds a class only when all earlier classes end by then."""
    picks = [pick for _, pick in flat]
    for number, layers in enumerate(problem.layers):
        placed = [sum(chunk[number] for chunk in column.chunks) for column, _ in flat]
        model.add(_sum(module, picks, placed) == layers)
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
                model.add(_sum(module, picks, weights) >= 0)


def _solve(solver: cp_model.CpSolver, model: cp_model.CpModel, should_cancel: Callable[[], bool] | None) -> int:
    """Solve; another thread polls should_cancel and stops the search."""
    if should_cancel is None:
        return int(solver.solve(model))
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            if should_cancel():
                solver.stop_search()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return int(solver.solve(model))
    finally:
        over.set()
        watcher.join()
