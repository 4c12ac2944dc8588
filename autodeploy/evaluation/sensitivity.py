"""How a strategy's step time follows the factors of a profile: d log(step time) / d log(factor), at a fixed layout.

Forward differences through the formulas of the estimate, all factors at once: the one strategy is priced as a batch of
candidates, each on a machine of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.build_problem import build_problem
from autodeploy.evaluation.estimate import applied_array
from autodeploy.evaluation.inner_problem import chunk_times, tail_s
from autodeploy.evaluation.machine import machine_of
from autodeploy.evaluation.stage_classes import step_classes
from autodeploy.evaluation.unit_costs import unit_costs
from cost_models.schedule import Sends, makespan_s, operation_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.estimate import Layout
    from autodeploy.evaluation.inner_problem import ChunkTimes
    from autodeploy.strategies.candidates import Candidates
    from autodeploy.workload.operators import Floats
    from cost_models.collectives import Number
    from hardware_profiles.covariance import FittedFactor

STEP = 0.02  # of a log factor, as in the Jacobian of the fit
EXPERTS_ONLY = frozenset({"grouped_gemm", "permute"})


def sensitivities(candidate: Candidates, context: Context, layout: Layout, factors: Sequence[FittedFactor]) -> Floats:
    """Slopes of the log step time of a candidate under a layout [factors].

    Parameters
    ----------
    candidate : one strategy.
    context : with the profile whose numbers the factors multiply.
    """
    slopes = np.zeros(len(factors))
    moved = [number for number, factor in enumerate(factors) if _matters(factor, context)]
    if moved:
        times = _step_times_s(candidate, context, layout, [factors[number] for number in moved])
        slopes[moved] = np.log(times[1:] / times[0]) / STEP
    return slopes


def _matters(factor: FittedFactor, context: Context) -> bool:
    """Whether the strategy reads any number that the factor multiplies."""
    assert context.profile is not None
    links = {f"link_{tier.name}" for tier in context.profile.tiers}
    release = f"release_{context.release or 'current'}"

    def read(name: str) -> bool:
        if name.startswith("release_"):
            return name == release
        if name.startswith("link_"):
            return name in links
        return context.model.is_moe or name not in EXPERTS_ONLY

    return any(read(name) for name in factor.multiplies)


def _step_times_s(candidate: Candidates, context: Context, layout: Layout, factors: Sequence[FittedFactor]) -> Floats:
    """Step time with no factor moved, then with each of them moved by STEP [1 + factors]."""
    count = 1 + len(factors)
    own = [_context_at(context, {}), *(_context_at(context, _moved(context, factor)) for factor in factors)]
    together: dict[str, Number] = {}
    for number, factor in enumerate(factors, start=1):
        for name, value in _moved(context, factor).items():
            column = np.asarray(together.get(name, np.full(count, _base(context, name)))).copy()
            column[number] = value
            together[name] = column
    batch = candidate.take(np.zeros(count, dtype=np.int64))
    context = _context_at(context, together)
    classes = step_classes(unit_costs(context, batch), batch, context)
    choices = frozenset(name.partition("@")[0] for name, used in layout.applied.items() if int(np.sum(used)))
    # A problem reads the machine for what its own candidate sends, so each is built on its own.
    problems = [build_problem(classes, batch, each, n, choices=choices, menu=False) for n, each in enumerate(own)]
    layers = layout.layers[None]
    times = [chunk_times(problem, layers, applied_array(problem, layout)) for problem in problems]
    first = problems[0]
    order = operation_order(first.schedule, first.pp, first.vpp, first.micro_batches)
    makespans = makespan_s(
        order,
        np.concatenate([t.forward_s for t in times]),
        np.concatenate([t.backward_s for t in times]),
        np.concatenate([t.hidden_pair_s for t in times]),
        _sends(times),
    )
    return np.asarray(makespans + np.concatenate([tail_s(problem, layers) for problem in problems]))


def _sends(times: Sequence[ChunkTimes]) -> Sends:
    """The sends of all candidates, which have one schedule: all or none of them run something beside."""
    sends = [t.sends for t in times]
    covering = [s.covering_s for s in sends if s.covering_s is not None]
    split = [s.split_s for s in sends if s.split_s is not None]
    return Sends(
        np.array([float(np.asarray(s.p2p_s)) for s in sends]),
        np.concatenate(covering) if covering else None,
        np.concatenate(split) if split else None,
    )


def _base(context: Context, name: str) -> float:
    """The number under this name as the profile has it; names of a factor of its own (links, host) stand at 1."""
    assert context.profile is not None
    if name.startswith("release_"):
        return context.profile.release_factors.get(name.removeprefix("release_"), 1.0)
    return context.profile.efficiency.get(name, 1.0)


def _moved(context: Context, factor: FittedFactor) -> dict[str, float]:
    return {name: _base(context, name) * float(np.exp(STEP)) for name in factor.multiplies}


def _context_at(context: Context, efficiency: Mapping[str, Number]) -> Context:
    """The context on a machine with these efficiencies."""
    profile, machine = context.profile, context.machine
    assert profile is not None
    return replace(
        context,
        machine=machine_of(
            profile,
            profile.device(machine.name),
            machine.topology,
            precision=context.precision,
            release=context.release,
            efficiency=efficiency,
            features=context.features,
        ),
    )
