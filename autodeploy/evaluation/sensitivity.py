"""How a strategy's step time follows the factors of a profile: d log(step time) / d log(factor), at a fixed layout.

Forward differences through the formulas of the estimate, all factors at once: every strategy is priced as a batch of
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
    from autodeploy.evaluation.stage_classes import StepClasses
    from autodeploy.strategies.candidates import Candidates
    from autodeploy.workload.operators import Floats
    from cost_models.collectives import Number
    from hardware_profiles.covariance import FittedFactor

# Numbers that no model without experts reads.
OF_EXPERTS = frozenset(
    {"grouped_gemm", "grouped_gemm_exposed", "expert_rate", "host_sync", "dispatch_loss", "combine_loss"}
)
STEP = 0.02  # of a log factor, as in the Jacobian of the fit


def sensitivities(
    candidates: Candidates,
    context: Context,
    layouts: Sequence[Layout],
    factors: Sequence[FittedFactor],
    at: Mapping[str, float] | None = None,
) -> Floats:
    """Slopes of the log step time of each candidate under its layout [n, factors].

    Parameters
    ----------
    context : with the profile whose numbers the factors multiply.
    at : numbers in place of the profile's, where the slopes are wanted.
    """
    slopes = np.zeros((len(candidates), len(factors)))
    moved = [number for number, factor in enumerate(factors) if _matters(factor, context)]
    if moved and len(candidates):
        times = _step_times_s(candidates, context, layouts, [factors[number] for number in moved], at or {})
        slopes[:, moved] = np.log(times[:, 1:] / times[:, :1]) / STEP
    return slopes


def _matters(factor: FittedFactor, context: Context) -> bool:
    """Whether the strategy reads any number that the factor multiplies."""
    assert context.profile is not None
    links = {f"link_{tier.name}" for tier in context.profile.tiers}
    known = context.profile.release_factors
    band, moe = context.release or "current", context.model.is_moe

    def read(name: str) -> bool:
        if name.startswith("release_experts_"):
            return moe and name == f"release_experts_{band}"
        if name.startswith("release_"):
            own = name.startswith(f"release_{band}")  # with what each doubling of the nodes costs it
            return own or (name == "release_current" and band not in known)
        if name.startswith("link_"):
            return name in links
        return moe or name not in OF_EXPERTS

    return any(read(name) for name in factor.multiplies)


def _step_times_s(
    candidates: Candidates,
    context: Context,
    layouts: Sequence[Layout],
    factors: Sequence[FittedFactor],
    at: Mapping[str, float],
) -> Floats:
    """Step times with no factor moved, then with each of them moved by STEP [n, 1 + factors]."""
    moves: list[dict[str, float]] = [{**at}, *({**at, **_moved(context, factor, at)} for factor in factors)]
    batch = candidates.take(np.repeat(np.arange(len(candidates)), len(moves)))
    priced = _context_at(context, _columns(context, moves, len(candidates)))
    classes = step_classes(unit_costs(priced, batch), batch, priced)
    # A problem reads the machine for what its own candidate sends, so each is built on its own.
    own = [_context_at(context, move) for move in moves]
    return np.array(
        [
            _of_one(
                [(batch, classes, each, number * len(moves) + row) for row, each in enumerate(own)],
                layout,
            )
            for number, layout in enumerate(layouts)
        ]
    )


def _of_one(rows: Sequence[tuple[Candidates, StepClasses, Context, int]], layout: Layout) -> Floats:
    """Step time of one candidate's rows of a batch under its layout [rows], its schedule walked through once."""
    choices = frozenset(name.partition("@")[0] for name, used in layout.applied.items() if int(np.sum(used)))
    problems = [
        build_problem(classes, batch, context, index, choices=choices, menu=False)
        for batch, classes, context, index in rows
    ]
    first, layers = problems[0], layout.layers[None]
    applied = applied_array(first, layout)
    times = [chunk_times(problem, layers, applied) for problem in problems]
    makespans = makespan_s(
        operation_order(first.schedule, first.pp, first.vpp, first.micro_batches),
        np.concatenate([t.forward_s for t in times]),
        np.concatenate([t.backward_s for t in times]),
        np.concatenate([t.hidden_pair_s for t in times]),
        _sends(times),
    )
    return np.asarray(makespans + np.concatenate([tail_s(problem, layers) for problem in problems]))


def _columns(context: Context, moves: Sequence[Mapping[str, float]], repeats: int) -> dict[str, Number]:
    """Every number that any move changes, as an array over the moves of all candidates [repeats * moves]."""
    names = {name for move in moves for name in move}
    return {name: np.tile([move.get(name, _base(context, name)) for move in moves], repeats) for name in sorted(names)}


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


def _moved(context: Context, factor: FittedFactor, at: Mapping[str, float]) -> dict[str, float]:
    step = float(np.exp(STEP))
    return {name: at.get(name, _base(context, name)) * step for name in factor.multiplies}


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
