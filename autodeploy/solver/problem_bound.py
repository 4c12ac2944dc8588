"""The stage bound of one inner problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.hidden_shares import hidden_shares
from autodeploy.solver.layouts import most_layers_per_chunk
from autodeploy.solver.memory_options import conflicts
from autodeploy.solver.stage_bound import Batch, Choice, Choices, Part, independent, lower_bound_s

if TYPE_CHECKING:
    from autodeploy.evaluation.inner_problem import Floats, InnerProblem, LayerClass


def batch_of(problem: InnerProblem, *, empty_classes: bool = False) -> Batch:
    """One inner problem as a batch of one, without the classes that have no layers unless asked for."""
    from autodeploy.solver.bounds import most_saved

    shares = hidden_shares(problem)
    none = np.zeros(len(problem.classes))
    forward, backward = shares[0] if shares else (none, none)
    layers = tuple(
        _part(c, float(forward[i]), float(backward[i]), _choices(problem, i, most_saved(problem.options, i)), n)
        for i, (c, n) in enumerate(zip(problem.classes, problem.layers, strict=True))
        if n or empty_classes
    )
    empty = Choices((), None, (), _one(0.0))
    return Batch(
        problem.schedule,
        problem.pp,
        problem.vpp,
        np.array([problem.micro_batches], dtype=np.int64),
        layers,
        tuple(_part(p.cost, 0.0, 0.0, empty, 1, p.stage, p.chunk) for p in problem.pieces),
        problem.limit_bytes - problem.fixed_bytes[None, :],
        _one(problem.blocking_p2p_s),
        _one(problem.p2p_s),
        problem.min_layers_per_chunk,
        most_layers_per_chunk(problem),
    )


def stage_bound_s(problem: InnerProblem, low_s: float, high_s: float) -> float:
    """Lower bound on the step time [s] between low_s and high_s; inf where it is above."""
    if problem.schedule == "dualpipe" or not problem.total_layers:
        return low_s
    found = lower_bound_s(batch_of(problem), _one(low_s - problem.tail_s), _one(high_s - problem.tail_s))
    return float(found[0]) + problem.tail_s


def _one(value: float) -> Floats:
    return np.array([value], dtype=np.float64)


def _part(
    cost: LayerClass, forward: float, backward: float, choices: Choices, count: int, stage: int = 0, chunk: int = 0
) -> Part:
    return Part(
        _one(cost.forward_s),
        _one(cost.backward_s),
        _one(cost.static_bytes),
        _one(cost.activation_bytes),
        _one(cost.tail_s),
        _one(forward),
        _one(backward),
        choices,
        count,
        stage,
        chunk,
    )


def _choices(problem: InnerProblem, layer_class: int, most: float) -> Choices:
    rival = conflicts(problem.options)
    mine = [str(i) for i, option in enumerate(problem.options) if option.layer_class == layer_class]
    groups, hub, beside = independent(mine, lambda a, b: int(b) in rival[int(a)])

    def choice(name: str) -> Choice:
        option = problem.options[int(name)]
        return Choice(_one(option.saved_bytes), _one(option.extra_backward_s))

    return Choices(
        tuple(tuple(map(choice, group)) for group in groups),
        None if hub is None else choice(hub),
        tuple(tuple(map(choice, group)) for group in beside),
        _one(most),
    )
