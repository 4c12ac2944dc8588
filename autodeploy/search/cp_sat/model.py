"""CP-SAT with a fixed seed and a deterministic budget. Importing this module loads ortools: import it when solving."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ortools.sat.python import cp_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from cost_models.arrays import Ints

UNITS: Final = 1 << 26
"""The incumbent's step time in integer units: rounding costs less than 16 stages / UNITS of the bound."""
POLL_S: Final = 0.02


@dataclass(frozen=True, eq=False)
class Proposal:
    """Answer of a master problem: a layout [pp, vpp, classes]; None where none is faster, or none was found.

    bound_s : on makespan and slowest tail, without the problem's own; proven : nothing is better.
    """

    bound_s: float
    layout: Ints | None
    proven: bool
    deterministic_time: float


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
    solver = new_solver(seed, workers)
    solver.parameters.max_deterministic_time = deterministic_time
    status = _solve(solver, model, should_cancel)
    # Its own sum differs in the last bit from run to run.
    spent = round(float(solver.response_proto.deterministic_time), 9)
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return ModelResult(
        max(0.0, solver.best_objective_bound),
        solver if solved else None,
        infeasible=status == cp_model.INFEASIBLE,
        optimal=status == cp_model.OPTIMAL,
        deterministic_time=spent,
    )


def new_solver(seed: int = 0, workers: int = 1) -> cp_model.CpSolver:
    """With one worker and a fixed seed equal questions have equal answers."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    return solver


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
