"""The master problem with several chunks a stage: integer layer counts under schedule cuts, options relaxed.

Times are those without options and memory that with everything saved, so the optimum bounds every plan from below. What
a pair of chunks hides is a variable of its own, at most what its forward's layers hide and at most what its backward's
do. Seconds and bytes become integers here, rounded in favour of the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from ortools.sat.python import cp_model

from autodeploy.solver.bounds.paths import cut_costs_s, hidden_shares
from autodeploy.solver.cp_sat.model import UNITS, Proposal, solve_model
from autodeploy.solver.inner.layer_choices import most_saved
from autodeploy.solver.inner.layouts import most_layers_per_chunk, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.stages.inner_problem import InnerProblem, Ints
    from cost_models.schedule import SchedulePath

FINE: Final = 64
"""Layer costs keep this many fractions of a unit: a path passes a layer hundreds of times."""

weighted_sum = cp_model.LinearExpr.weighted_sum


def solve_counts(
    problem: InnerProblem,
    cuts: list[SchedulePath],
    upper_s: float,
    *,
    hint: Ints,
    deterministic_time: float,
    seed: int,
    should_cancel: Callable[[], bool] | None,
    workers: int = 1,
) -> Proposal:
    """A layout whose makespan and slowest tail are below upper_s, if any."""
    model = cp_model.CpModel()
    shape = (problem.pp, problem.vpp, len(problem.classes))
    most = most_layers_per_chunk(problem)
    counts = np.empty(shape, dtype=object)
    for place in np.ndindex(shape):
        counts[place] = model.new_int_var(0, min(most, problem.layers[place[2]]), "")
    flat: list[cp_model.IntVar] = list(counts.ravel())
    for variable, value in zip(flat, hint.ravel().tolist(), strict=True):
        model.add_hint(variable, value)
    scale = UNITS / upper_s
    makespan, tail = model.new_int_var(0, UNITS, ""), model.new_int_var(0, UNITS, "")
    used = np.logical_or.reduce([cut.pairs > 0 for cut in cuts]) if cuts else np.zeros((problem.pp, 1, 1), np.bool_)
    hidden = _hidden_in_pairs(model, problem, counts, used, scale * FINE)
    for cut in cuts:
        layer_s, fixed_s = cut_costs_s(problem, cut)
        costs = np.floor(layer_s.ravel() * scale * FINE).astype(np.int64).tolist()
        less = [-int(cut.pairs[place]) for place in hidden]
        path = weighted_sum([*flat, *hidden.values()], [*costs, *less])
        model.add(path + int(np.floor(fixed_s * scale * FINE)) <= FINE * makespan)
    tails = np.floor(np.array([c.tail_s for c in problem.classes]) * scale * FINE).astype(np.int64).tolist()
    for stage in range(problem.pp):
        own = sum(p.cost.tail_s for p in problem.pieces if p.stage == stage)
        model.add(
            weighted_sum(list(counts[stage].ravel()), tails * problem.vpp) + int(own * scale * FINE) <= FINE * tail
        )
    _add_memory(model, problem, counts)
    _add_places(model, problem, counts)
    model.add(makespan + tail <= UNITS - 1)
    model.minimize(makespan + tail)
    result = solve_model(model, deterministic_time, seed, should_cancel, workers)
    if result.infeasible:
        return Proposal(upper_s * (1.0 - 3.0 / UNITS), None, True, result.deterministic_time)
    layout = None
    if result.solver is not None:
        solver = result.solver
        layout = np.array([solver.value(v) for v in flat], dtype=np.int64).reshape(shape)
    # Makespan and tail are whole units: each may be rounded up by one.
    return Proposal(max(0.0, result.bound - 2.0) / scale, layout, result.optimal, result.deterministic_time)


def _hidden_in_pairs(
    model: cp_model.CpModel, problem: InnerProblem, counts: np.ndarray, used: np.ndarray, scale: float
) -> dict[tuple[int, ...], cp_model.IntVar]:
    """What each pair of chunks [stage, forward, backward] that some cut passes hides, at most, in 1 / scale seconds."""
    shares = hidden_shares(problem)
    if not shares:
        return {}
    found: dict[tuple[int, ...], cp_model.IntVar] = {}
    most = most_layers_per_chunk(problem)
    for place in zip(*np.nonzero(used), strict=True):
        stage, forward, backward = map(int, place)
        ceilings = [(np.ceil(u * scale).astype(np.int64), np.ceil(v * scale).astype(np.int64)) for u, v in shares]
        top = min(int(most * (u.max() + v.max())) for u, v in ceilings)
        variable = model.new_int_var(0, top, "")
        for u, v in ceilings:
            layers = [*counts[stage, forward], *counts[stage, backward]]
            model.add(variable <= weighted_sum(layers, [*u.tolist(), *v.tolist()]))
        found[stage, forward, backward] = variable
    return found


def _add_memory(model: cp_model.CpModel, problem: InnerProblem, counts: np.ndarray) -> None:
    lean = [c.activation_bytes - most_saved(problem.options, i) for i, c in enumerate(problem.classes)]
    for stage in range(problem.pp):
        pieces = [p for p in problem.pieces if p.stage == stage]
        static = float(problem.fixed_bytes[stage]) + sum(p.cost.static_bytes for p in pieces)
        for held in problem.moments[stage]:
            room = problem.limit_bytes - static - sum(p.cost.activation_bytes * float(held[p.chunk]) for p in pieces)
            used = [
                int(np.floor((c.static_bytes + lean[i] * float(held[chunk])) * UNITS / max(problem.limit_bytes, 1.0)))
                for chunk in range(problem.vpp)
                for i, c in enumerate(problem.classes)
            ]
            limit = int(np.ceil(room * UNITS / max(problem.limit_bytes, 1.0)))
            model.add(weighted_sum(list(counts[stage].ravel()), used) <= limit)


def _add_places(model: cp_model.CpModel, problem: InnerProblem, counts: np.ndarray) -> None:
    """Every layer has a place, chunks keep their limits, and a class starts only when the one before has ended."""
    parts = [spots[0] for spots in parts_of(problem)]
    for number, layers in enumerate(problem.layers):
        model.add(sum(counts[(*place, number)] for place in parts) == layers)
    for place in parts:
        model.add_linear_constraint(sum(counts[place]), problem.min_layers_per_chunk, most_layers_per_chunk(problem))
    for number, layers in enumerate(problem.layers[:-1]):
        for index, place in enumerate(parts):
            ended = model.new_bool_var("")
            model.add(sum(counts[(*p, number)] for p in parts[: index + 1]) >= layers * ended)
            model.add(sum(counts[place][number + 1 :]) <= problem.total_layers * ended)
