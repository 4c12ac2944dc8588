"""Contexts in which uncertain numbers have moved, and how long strategies take there under a fixed layout.

A world says by how much each number is moved: the logarithm of a factor, or a shift in the number's own unit where it
is a share of a range (`SHIFTED`). Numbers of the machine and loads of experts move as arrays, one machine and one
family of loads a candidate, so that all worlds are priced at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from autodeploy.costs.inputs.expert_balance import persistent_shares
from autodeploy.costs.inputs.machine import machine_of
from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.build_problem import build_problem, costs_on, repriced
from autodeploy.costs.stages.chunk_loops import joined_costs
from autodeploy.costs.stages.inner_problem import chunk_times, tail_s
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import Placed, estimate_layout, estimate_placed, under_layout
from cost_models.schedule import makespan_s
from hardware_profiles.efficiencies import limited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.inputs.expert_balance import Loads
    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.costs.stages.step_classes import StepClasses
    from autodeploy.costs.steps.estimate import Estimate, Layout
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Floats, Ints, Number

    Scenario = Mapping[str, float]
    Batches = list[tuple["_Batch", list[int]]]  # each with the places of its worlds


EXCESS: Final = "imbalance_excess"  # of the stated imbalance, what is above 1
PERSISTENT: Final = "persistent_share"  # of the variance of experts' loads, what every micro batch has in common
OF_LOADS: Final = frozenset({EXCESS, PERSISTENT})
SHIFTED: Final = frozenset({PERSISTENT})  # moved in their own unit, all others by a factor
# Numbers that no model without experts reads.
OF_EXPERTS: Final = frozenset(
    {
        *("grouped_gemm", "grouped_gemm_exposed", "expert_rate", "host_sync", "dispatch_loss", "combine_loss"),
        "exchange_beside",
    }
)


class Perturbation(Protocol):
    """A number of the box: its name and the numbers of the profile, or of the loads, that it moves."""

    @property
    def name(self) -> str:
        """By which a world knows it."""

    @property
    def multiplies(self) -> tuple[str, ...]:
        """As `machine_of` reads them, or of OF_LOADS."""


def reads(context: Context, name: str) -> bool:
    """Whether any strategy of the context reads the number of this name, and a factor moves it."""
    assert context.profile is not None
    bands = context.profile.release_factors
    band, moe = context.release or "current", context.model.is_moe
    if name in OF_LOADS:
        uneven = context.loads.series is None and context.loads.sustained.value > 1.0
        return moe and uneven and (name != PERSISTENT or context.loads.router in persistent_shares())
    if name.startswith("release_experts_"):
        return moe and name == f"release_experts_{band}"
    if name.startswith("release_"):
        own = name.startswith(f"release_{band}")  # with what each doubling of the nodes costs it
        return own or (name == "release_current" and band not in bands)
    if name.startswith(("link_", "exchange_")) and name not in context.profile.efficiency:
        return name.partition("_")[2] in {tier.name for tier in context.profile.tiers}
    return moe or name not in OF_EXPERTS


def context_in(context: Context, numbers: Sequence[Perturbation], world: Scenario) -> Context:
    """The context in which the numbers have moved, and its alternatives with it; fractions stay at most 1.

    Its memory is that of the context: how far that may be off has a spread of its own (`calibration.spreads`).
    """
    return _context_at(
        context, _values_in(context, numbers, world, {}, limits=True), _loads_in(context, numbers, world)
    )


def step_times_in(
    candidates: Candidates,
    context: Context,
    layouts: Sequence[Layout],
    numbers: Sequence[Perturbation],
    worlds: Sequence[Scenario],
    *,
    at: Mapping[str, float] | None = None,
    limits: bool = True,
) -> Floats:
    """Step time of each candidate under its layout in each world [n, worlds], from the estimate's own formulas.

    context : with the profile whose numbers move.
    at : numbers in place of the profile's, from which the worlds depart.
    limits : fractions stay at most 1, and links within what they can carry; a slope is wanted without.
    """
    batches = _batches_in(candidates, context, numbers, worlds, at=at, limits=limits)
    times = np.empty((len(layouts), len(worlds)))
    for number, layout in enumerate(layouts):
        times[number] = _times_under(layout, number, batches)
    return times


@dataclass(frozen=True, slots=True)
class _OfHost:
    """One number of the host: `new_shape`, of issuing an operator whose shape is new, or `host_core`, of its cores."""

    name: str

    @property
    def multiplies(self) -> tuple[str, ...]:
        return (self.name,)


CORE_RANGE = 0.5, 2.0  # 80 % interval of `core_time_ratio` over its value: 1.5 to 6, assumed as it is


def times_of_host(
    candidate: Candidates, context: Context, layout: Layout, factors: Iterable[float], name: str = "new_shape"
) -> Floats:
    """Step time under each factor of a number of the host [factors]; name : as of `_OfHost`."""
    moved = _OfHost(name)
    worlds = [{name: math.log(factor)} for factor in factors]
    return np.asarray(step_times_in(candidate, context, [layout], [moved], worlds)[0])


def host_range(candidate: Candidates, context: Context, layout: Layout) -> tuple[float, float]:
    """By how much the intervals of the host's numbers shorten and lengthen a step, in log time: 80 % on each side.

    Each number moves alone, and what it moves adds up in quadrature.
    """
    moves = {"new_shape": context.host.new_shape_range, "host_core": (1.0, 1.0)}
    if context.host.updates and bool(np.any(candidate.swap_optimizer)):
        moves["host_core"] = CORE_RANGE
    down = up = 0.0
    for name, (least, most) in moves.items():
        if (least, most) != (1.0, 1.0):
            low, value, high = np.log(times_of_host(candidate, context, layout, (least, 1.0, most), name)).tolist()
            down, up = math.hypot(down, value - low), math.hypot(up, high - value)
    return down, up


def breakdowns_in(
    candidate: Candidates,
    context: Context,
    layout_among: Callable[[StepClasses], Layout],
    numbers: Sequence[Perturbation],
    worlds: Sequence[Scenario],
    *,
    limits: bool = True,
) -> list[dict[str, float]]:
    """Seconds of a step by part of one candidate under its layout in each world; parameters as of `step_times_in`.

    layout_among : the layout, which holds as many layers as the classes, the same in every world.
    """
    parts: dict[int, dict[str, float]] = {}
    for batch, places in _batches_in(candidate, context, numbers, worlds, at=None, limits=limits):
        placed = _placed(batch, layout_among(batch.classes))
        parts |= {place: each.simulated()[2] for place, each in zip(places, placed, strict=True)}
    return [parts[place] for place in range(len(worlds))]


def _batches_in(
    candidates: Candidates,
    context: Context,
    numbers: Sequence[Perturbation],
    worlds: Sequence[Scenario],
    *,
    at: Mapping[str, float] | None,
    limits: bool,
) -> Batches:
    """The candidates in all worlds, priced together: a batch of the worlds that agree on the loads of experts."""
    values = [_values_in(context, numbers, world, at or {}, limits=limits) for world in worlds]
    together: dict[Loads, list[int]] = {}
    for place, world in enumerate(worlds):
        together.setdefault(_loads_in(context, numbers, world), []).append(place)
    moves = [values[place] for places in together.values() for place in places]
    count, number = len(candidates), len(moves)
    rows = candidates.take(np.repeat(np.arange(count), number))
    family_of = np.repeat(np.arange(len(together)), [len(places) for places in together.values()])
    priced = _context_at(
        context, _columns(context, moves, count), _of_rows([*together], np.tile(family_of, count).tolist())
    )
    classes = step_classes(unit_costs(priced, rows), rows, priced)
    batches: Batches = []
    for loads_number, (loads, places) in enumerate(together.items()):
        own = np.arange(count)[:, None] * number + np.flatnonzero(family_of == loads_number)
        batch = _Batch(rows, priced, classes, _context_at(context, values[places[0]], loads), own.ravel())
        batches.append((batch, places))
    return batches


def _of_rows(each: Sequence[Loads], which: Sequence[int]) -> Loads:
    """Loads of a batch whose rows have different families, by the place of each row's."""
    if len(each) == 1:
        return each[0]
    return replace(each[0], families=tuple(loads.sustained for loads in each), family_of=tuple(which))


@dataclass(frozen=True)
class _Batch:
    """Candidates in some worlds with the same loads, all of which are priced together with those of other batches.

    one : the context of the first of the worlds, whose numbers are no arrays. rows : of the worlds of the first
    candidate, then of those of the second, among what is priced together.
    """

    candidates: Candidates
    context: Context
    classes: StepClasses
    one: Context
    rows: Ints

    def at(self, row: int, context: Context) -> Priced:
        """The candidate and the world of a row; context : of the batch, or `one` for numbers that are no arrays."""
        return Priced(self.classes, self.candidates, context, int(self.rows[row]))


def _times_under(layout: Layout, number: int, batches: Batches) -> Floats:
    """Step time of one candidate, by its number, under its layout in each world [worlds]."""
    problems = [_problem_under(layout, batch.at(number * len(places), batch.one)) for batch, places in batches]
    return _times_of(problems, number, batches)


def _problem_under(layout: Layout, first: Priced) -> tuple[InnerProblem, Ints, Ints]:
    """As of `under_layout`, of all that the layout names."""
    return under_layout(build_problem(first, choices=layout.chosen, menu=False), layout, first)


def _times_of(problems: Sequence[tuple[InnerProblem, Ints, Ints]], number: int, batches: Batches) -> Floats:
    """The same of a candidate's problem in the first world of each batch, as `under_layout`."""
    order, costs_of_worlds = [], []
    for (problem, _, _), (batch, places) in zip(problems, batches, strict=True):
        first = number * len(places)
        rows = batch.rows[first : first + len(places)]
        costs_of_worlds.append(costs_on(problem, batch.at(first, batch.context), rows))
        order += places
    (problem, layers, applied), costs = problems[0], joined_costs(costs_of_worlds)
    layers, applied = (np.repeat(each, len(costs.p2p_s), axis=0) for each in (layers, applied))
    times = chunk_times(problem, layers, applied, costs)
    passes = times.forward_s, times.backward_s, times.hidden_pair_s
    seconds = np.empty(len(order))
    seconds[order] = makespan_s(problem.order, *passes, times.sends) + tail_s(problem, layers, costs)
    return seconds


def _placed(batch: _Batch, layout: Layout) -> Iterator[Placed]:
    """The only candidate of a batch under its layout in each of its worlds."""
    plain = build_problem(batch.at(0, batch.one), choices=layout.chosen, menu=False)
    for row in range(len(batch.rows)):
        strategy = batch.at(row, batch.context)
        problem = repriced(plain, strategy, choices=layout.chosen)
        problem, layers, applied = under_layout(problem, layout, batch.at(row, batch.one))
        times = chunk_times(problem, layers, applied)
        yield Placed(strategy, problem, layers, applied, times, forward_only=False)


def _values_in(
    context: Context, numbers: Sequence[Perturbation], world: Scenario, at: Mapping[str, float], *, limits: bool
) -> dict[str, float]:
    """The machine's numbers that a world changes, by the name that `machine_of` reads."""
    values = dict(at)
    for number in numbers:
        factor = math.exp(world.get(number.name, 0.0))
        for name in number.multiplies:
            if factor != 1.0 and name not in OF_LOADS:
                values[name] = values.get(name, base_value(context, name)) * factor
    return _limited(context, values) if limits else values


def _limited(context: Context, values: Mapping[str, float]) -> dict[str, float]:
    """The numbers within what they can be: efficiencies that are fractions, and what a tier's links carry."""
    assert context.profile is not None
    within = {name: limited(name, value) for name, value in values.items()}
    for tier in context.profile.tiers:
        room = 1.0 / float(tier.efficiency)
        for name in (f"link_{tier.name}", f"exchange_{tier.name}"):
            if name in within:
                within[name] = min(within[name], room)
                room /= within[name]
    return within


def _loads_in(context: Context, numbers: Sequence[Perturbation], world: Scenario) -> Loads:
    """The loads of experts that a world changes: those that size time."""
    moved = {name: world.get(n.name, 0.0) for n in numbers for name in n.multiplies if name in OF_LOADS}
    family = context.loads.sustained
    if excess := moved.get(EXCESS, 0.0):
        value = min(1.0 + (family.value - 1.0) * math.exp(excess), float(family.anchor))
        family = replace(family, value=value)
    if shift := moved.get(PERSISTENT, 0.0):
        prior = persistent_shares()[context.loads.router]
        family = replace(family, persistent=min(max(family.persistent + shift, prior.low), prior.high))
    return context.loads if family is context.loads.sustained else replace(context.loads, sustained=family)


def base_value(context: Context, name: str) -> float:
    """The number under this name as context and profile have it; factors of their own (links, host) stand at 1."""
    assert context.profile is not None
    if name == EXCESS:
        return context.loads.sustained.value - 1.0
    if name == PERSISTENT:
        return context.loads.sustained.persistent
    if name.startswith("release_"):
        return context.profile.release_factors.get(name.removeprefix("release_"), 1.0)
    return context.profile.efficiency.get(name, 1.0)


def _columns(context: Context, moves: Sequence[Mapping[str, float]], repeats: int) -> dict[str, Number]:
    """Every number that any move changes, as an array over the moves of all candidates [repeats * moves]."""
    names = {name for move in moves for name in move}
    return {
        name: np.tile([move.get(name, base_value(context, name)) for move in moves], repeats) for name in sorted(names)
    }


def _context_at(context: Context, values: Mapping[str, Number], loads: Loads) -> Context:
    """The context on a machine with these numbers, under these loads."""
    profile, machine = context.profile, context.machine
    assert profile is not None
    moved = machine_of(
        profile,
        profile.device(machine.name),
        machine.topology,
        precision=context.precision,
        release=context.release,
        efficiency=values,
        features=context.mechanisms,
        software=context.host,
    )
    others = tuple(
        replace(other, machine=moved, loads=replace(loads, levelling=other.loads.levelling))
        for other in context.alternatives
    )
    return replace(context, machine=moved, loads=loads, alternatives=others)


STEP = 0.02  # of a log factor, as in the Jacobian of the fit


def sensitivities(
    candidates: Candidates,
    context: Context,
    layouts: Sequence[Layout],
    factors: Sequence[Perturbation],
    at: Mapping[str, float] | None = None,
) -> Floats:
    """Slopes of the log step time of each candidate under its layout [n, factors]: d log(step time) / d log(factor).

    Forward differences: a world for each factor, in which it alone has moved.

    context : with the profile whose numbers the factors multiply.
    at : numbers in place of the profile's, where the slopes are wanted.
    """
    slopes = np.zeros((len(candidates), len(factors)))
    moved, worlds = _steps(context, factors)
    if moved and len(candidates):
        times = step_times_in(candidates, context, layouts, factors, worlds, at=at, limits=False)
        slopes[:, moved] = _slopes(times)
    return slopes


@dataclass(frozen=True)
class Sloped:
    """An estimate and its slopes [factors]; classes : of a batch, whose first the candidate is."""

    classes: StepClasses
    layout: Layout
    estimate: Estimate
    slopes: Floats


def estimate_and_slopes(
    candidate: Candidates,
    context: Context,
    layout_among: Callable[[StepClasses], Layout],
    factors: Sequence[Perturbation],
    at: Mapping[str, float] | None = None,
) -> Sloped:
    """`estimate_layout` of one candidate and its `sensitivities`, whose worlds begin with the estimate's own.

    Layers are priced once for both, to the bit as one by one.

    layout_among : the layout, which holds as many layers as the classes.
    at : numbers in place of the profile's, which the context has too.
    """
    slopes = np.zeros(len(factors))
    moved, worlds = _steps(context, factors)
    if not moved:
        classes = step_classes(unit_costs(context, candidate), candidate, context)
        layout = layout_among(classes)
        return Sloped(classes, layout, estimate_layout(Priced(classes, candidate, context), layout), slopes)
    batches = _batches_in(candidate, context, factors, worlds, at=at, limits=False)
    (first, _), *others = batches
    layout = layout_among(first.classes)
    placed = Placed.of(first.at(0, context), layout)
    problems = [(placed.problem, placed.layers, placed.applied)]
    problems += [_problem_under(layout, each.at(0, each.one)) for each, _ in others]
    slopes[moved] = _slopes(_times_of(problems, 0, batches))
    return Sloped(first.classes, layout, estimate_placed(placed, layout), slopes)


def _steps(context: Context, factors: Sequence[Perturbation]) -> tuple[list[int], list[Scenario]]:
    """Numbers of the factors that a strategy of the context reads; worlds: as it is, then each of them a step on."""
    moved = [number for number, f in enumerate(factors) if any(reads(context, name) for name in f.multiplies)]
    return moved, [{}, *({factors[number].name: STEP} for number in moved)]


def _slopes(times: Floats) -> Floats:
    """Of step times in the worlds of `_steps`, the last axis."""
    return np.asarray(np.log(times[..., 1:] / times[..., :1]) / STEP)
