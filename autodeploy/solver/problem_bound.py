"""The stage bound of one inner problem."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.hidden_shares import hidden_shares
from autodeploy.solver.layouts import most_layers_per_chunk
from autodeploy.solver.memory_options import conflicts
from autodeploy.solver.rivals import rivals
from autodeploy.solver.stage_bound import Batch, Choices, Part, lower_bound_s

if TYPE_CHECKING:
    from autodeploy.evaluation.inner_problem import Floats, InnerProblem, LayerClass


def batch_of(problem: InnerProblem, *, empty_classes: bool = False) -> Batch:
    """One inner problem as a batch of one, without the classes that have no layers unless asked for."""
    shares = hidden_shares(problem)
    none = np.zeros(len(problem.classes))
    forward, backward = shares[0] if shares else (none, none)
    layers = tuple(
        _part(c, float(forward[i]), float(backward[i]), _choices(problem, i), n)
        for i, (c, n) in enumerate(zip(problem.classes, problem.layers, strict=True))
        if n or empty_classes
    )
    empty = Choices.none(1)
    return Batch(
        problem.schedule,
        problem.pp,
        problem.vpp,
        np.array([problem.micro_batches], dtype=np.int64),
        layers,
        tuple(_part(p.cost, 0.0, 0.0, empty, 1, p.stage, p.chunk) for p in problem.pieces),
        problem.limit_bytes - problem.fixed_bytes[None, :],
        _one(problem.host_bytes_per_device),
        _one(problem.blocking_p2p_s),
        _one(problem.p2p_s),
        problem.min_layers_per_chunk,
        most_layers_per_chunk(problem),
    )


def stage_bound_s(problem: InnerProblem, low_s: float, high_s: float) -> float:
    """Lower bound on the step time [s] between low_s and high_s; inf where it is above."""
    if not problem.total_layers:
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


def _choices(problem: InnerProblem, layer_class: int) -> Choices:
    from autodeploy.solver.bounds import most_saved

    rival = conflicts(problem.options)
    numbers = [i for i, option in enumerate(problem.options) if option.layer_class == layer_class]
    mine = [problem.options[i] for i in numbers]
    dropped = tuple(replace(o, saved_bytes=max(0.0, o.saved_bytes - o.swap_bytes)) for o in problem.options)
    saved, extra, less = (
        np.array(values, dtype=np.float64).reshape(-1, 1)
        for values in (
            [option.saved_bytes for option in mine],
            [option.extra_backward_s for option in mine],
            [dropped[i].saved_bytes for i in numbers],
        )
    )
    groups = rivals(len(mine), lambda a, b: numbers[b] in rival[numbers[a]])
    most, most_less = (_one(most_saved(options, layer_class)) for options in (problem.options, dropped))
    return Choices(saved, extra, less, groups, most, most_less)
