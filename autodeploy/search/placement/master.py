"""The master problem: one column a stage so that the longest known path is shortest. Solved by CP-SAT.

Columns are the layer counts that a stage may hold in a plan faster than the incumbent. Every simulated path is a
linear cut on them, valid for all plans, so the optimum of the master is a lower bound. Seconds become integers in this
room and nowhere else; costs are rounded down, so the bound stays one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from ortools.sat.python import cp_model

from autodeploy.search.bounds.paths import cut_costs_s, edges_s, pair_overlap_bounds
from autodeploy.search.bounds.problem_bound import batch_of, lean_bytes, over_limit_bytes, room_for_layers, start_rows
from autodeploy.search.bounds.stage_bound import steady_s, whole_s
from autodeploy.search.choices.layouts import most_layers_per_chunk
from autodeploy.search.cp_sat.model import UNITS, ModelResult, Proposal
from cost_models.arrays import product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.search.placement.stage_choices import Chunks, StageChoices, StageTimes
    from cost_models.arrays import Floats, Ints
    from cost_models.schedule import SchedulePath


FILLINGS_PER_COLUMN = 20
"""Fillings looked at for each column that may be kept."""


@dataclass(frozen=True, eq=False)
class Column:
    """One way to fill one stage: its layers, what its passes take at least, and its tail."""

    stage: int
    chunks: Chunks
    times: StageTimes
    tail_s: float


def columns(problem: InnerProblem, choices: StageChoices, upper_s: float, most: int) -> list[list[Column]] | None:
    """Columns [stage][...] that may be in a plan with a makespan below upper_s; None when there are more than most.

    None too where far more fillings than that had to be looked at. What a stage alone needs is that of `stage_bound`.
    """
    caps: list[int] = room_for_layers(problem, upper_s).tolist()
    spare = sum(caps) - problem.total_layers
    if spare < 0:
        return [[] for _ in range(problem.pp)]
    by_stage: list[list[Column]] = []
    whole = float(whole_s(batch_of(problem))[0])
    for stage in range(problem.pp):
        kept: list[Column] = []
        fillings = _fillings(problem, stage, max(0, caps[stage] - spare), caps[stage])
        for looked, chunks in enumerate(fillings):
            if len(kept) > most or looked > FILLINGS_PER_COLUMN * max(most, 50):
                return None
            column = _of(problem, stage, chunks, choices.bare(stage, chunks))
            if column is not None and _lower_s(problem, column, whole) < upper_s:
                kept.append(column)
        by_stage.append(kept)
    by_stage = _in_company(problem, by_stage)
    if problem.vpp == 1:
        tight = [[_of(problem, c.stage, c.chunks, choices.least(c.stage, c.chunks)) for c in kept] for kept in by_stage]
        by_stage = [[c for c in kept if c is not None and _lower_s(problem, c, whole) < upper_s] for kept in tight]
        by_stage = _in_company(problem, by_stage)
    return by_stage if sum(map(len, by_stage)) <= most else None


def _in_company(problem: InnerProblem, by_stage: list[list[Column]]) -> list[list[Column]]:
    """Columns that leave the other stages no more layers than those can hold, and no fewer than they must.

    With one chunk a stage also: of layers that follow each other from where the stages before can end.
    """
    if not all(by_stage):
        return [[] for _ in by_stage]
    layers = [[sum(map(sum, column.chunks)) for column in own] for own in by_stage]
    most, least = [max(sizes) for sizes in layers], [min(sizes) for sizes in layers]
    until = _layers_until(problem)
    kept: list[list[Column]] = []
    for stage, (own, sizes) in enumerate(zip(by_stage, layers, strict=True)):
        fitting: list[Column] = []
        for column, size in zip(own, sizes, strict=True):
            # Where its layers start and end, were the other stages a block before and one after it.
            first = max(sum(least[:stage]), problem.total_layers - size - sum(most[stage + 1 :]))
            last = min(sum(most[:stage]), problem.total_layers - size - sum(least[stage + 1 :]))
            between = until[first + size : last + size + 1] - until[first : last + 1] if first <= last else until[:0]
            if len(between) and (problem.vpp > 1 or (between == column.chunks[0]).all(axis=1).any()):
                fitting.append(column)
        kept.append(fitting)
    return kept


def _layers_until(problem: InnerProblem) -> Ints:
    """Layers of each class among the first 0, 1, 2, ... layers of the model [layers + 1, classes]."""
    each = np.eye(len(problem.layers), dtype=np.int64)
    return np.cumsum(np.concatenate([0 * each[:1], each.repeat(problem.layers, axis=0)]), axis=0)


def _lower_s(problem: InnerProblem, column: Column, whole: float) -> float:
    m, times = problem.micro_batches, column.times
    forward_s = float(times.forward_s.sum())
    work = float(times.forward_s.sum() + times.backward_s.sum()) + times.extra_s
    if problem.kind.alternates and m > problem.pp:
        deeper = problem.pp - 1 - column.stage
        # What its options add to either pass lowers this most in the forward pass.
        return max(m * work, whole + float(steady_s(work, forward_s + times.extra_s, deeper, m)))
    return m * (work - float(np.diagonal(times.hidden_pair_s).sum()) if times.hidden_pair_s.any() else work)


def _fillings(problem: InnerProblem, stage: int, least: int, most: int) -> Iterator[Chunks]:
    """Layers of each class in each chunk of a stage, between least and most in all."""
    low, high = problem.min_layers_per_chunk, most_layers_per_chunk(problem)
    place = {spot: part for part, spots in enumerate(problem.parts) for spot in spots}
    per_chunk = []
    for chunk in range(problem.vpp):
        before = place[stage, chunk] * low
        per_chunk.append([mix for mix in _mixes(problem.layers, min(high, most), before) if sum(mix) >= low])
    sizes = [[sum(mix) for mix in mixes] for mixes in per_chunk]
    if not all(sizes):
        return
    fewest, largest = [0], [0]  # layers that the chunks from one on hold, from the last backwards
    for counts in reversed(sizes):
        fewest.append(fewest[-1] + min(counts))
        largest.append(largest[-1] + max(counts))

    def fill(chunk: int, placed: int) -> Iterator[Chunks]:
        if chunk == problem.vpp:
            yield ()
            return
        after = problem.vpp - chunk - 1
        for mix, size in zip(per_chunk[chunk], sizes[chunk], strict=True):
            if placed + size + fewest[after] <= most and placed + size + largest[after] >= least:
                for rest in fill(chunk + 1, placed + size):
                    yield (mix, *rest)

    yield from fill(0, 0)


def _mixes(layers: tuple[int, ...], most: int, before: int) -> Iterator[tuple[int, ...]]:
    """Consecutive layers of a chunk by class: a class between two others is there whole.

    before: layers that the parts ahead hold at least; a class that ends sooner can't be here.
    """
    ends = np.cumsum(layers)
    for mix in itertools.product(*(range(min(n, most) + 1) for n in layers)):
        used = [c for c, n in enumerate(mix) if n]
        between = range(used[0] + 1, used[-1]) if used else ()
        gapless = all(mix[c] == layers[c] for c in between)
        if sum(mix) <= most and gapless and (not used or ends[used[0]] > before):
            yield mix


def _of(problem: InnerProblem, stage: int, chunks: Chunks, times: StageTimes | None) -> Column | None:
    """The column of a filling that takes `times`; None when no options make it fit."""
    if times is None:
        return None
    tail = sum(n * c.tail_s for chunk in chunks for n, c in zip(chunk, problem.classes, strict=True))
    tail += sum(p.cost.tail_s for p in problem.pieces if p.stage == stage)
    return Column(stage, chunks, times, tail)


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
            np.stack([column.times.forward_s for column in columns]),
            np.stack([column.times.backward_s for column in columns]),
            np.stack([column.times.hidden_pair_s for column in columns]),
            product(layers, [c.split_s for c in problem.classes]) + pieces[stage],
            np.array([column.times.extra_s for column in columns]),
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


class _Master:
    """A model in units of which upper_s has UNITS: makespan and slowest tail, together below it and least.

    An infinite upper_s has none: anything that fits together will do.
    """

    def __init__(self, model: cp_model.CpModel, upper_s: float) -> None:
        self.model, self.upper_s, self.scale = model, upper_s, UNITS / upper_s
        self.makespan, self.tail = (model.new_int_var(0, UNITS, name) for name in ("makespan", "tail"))

    def solved(
        self,
        solve: Callable[[cp_model.CpModel], ModelResult],
        layout_of: Callable[[cp_model.CpSolver], Ints],
        rounded_up: int,
    ) -> Proposal:
        """The answer; rounded_up : units by which makespan and tail together may be too large."""
        self.model.add(self.makespan + self.tail <= UNITS - 1)
        self.model.minimize(self.makespan + self.tail)
        result = solve(self.model)
        if result.infeasible:
            bound_s = self.upper_s * (1.0 - (1.0 + rounded_up) / UNITS)
            return Proposal(bound_s, None, True, result.deterministic_time)
        bound_s = max(0.0, result.bound - rounded_up) / self.scale if self.scale else 0.0
        layout = None if result.solver is None else layout_of(result.solver)
        return Proposal(bound_s, layout, result.optimal, result.deterministic_time)


def solve_master(
    problem: InnerProblem,
    columns: list[list[Column]],
    cuts: list[SchedulePath],
    upper_s: float,
    hint: Ints | None,
    solve: Callable[[cp_model.CpModel], ModelResult],
) -> Proposal:
    """Look for columns with every cut below upper_s (makespan plus the slowest stage's tail)."""
    if any(not stage for stage in columns):
        return Proposal(upper_s, None, proven=True, deterministic_time=0.0)
    model = cp_model.CpModel()
    flat = [(column, model.new_bool_var("")) for stage in columns for column in stage]
    picks = [pick for _, pick in flat]
    by_stage = [[(column, pick) for column, pick in flat if column.stage == stage] for stage in range(problem.pp)]
    for of_stage in by_stage:
        model.add_exactly_one(pick for _, pick in of_stage)
    master = _Master(model, upper_s)
    scale = master.scale
    stacked = _Columns.of(problem, [column for column, _ in flat])
    for cut in cuts:
        costs = np.floor(stacked.costs_s(problem, cut) * scale).astype(np.int64).tolist()
        model.add(weighted_sum(picks, costs) + int(np.floor(edges_s(problem, cut) * scale)) <= master.makespan)
    for of_stage in by_stage:
        tails = [int(np.floor(column.tail_s * scale)) for column, _ in of_stage]
        model.add(weighted_sum([pick for _, pick in of_stage], tails) <= master.tail)
    _place_layers(model, problem, flat)
    sizes = [weighted_sum([pick for _, pick in own], [sum(map(sum, c.chunks)) for c, _ in own]) for own in by_stage]
    _begin_chunks(model, problem, sizes)
    if hint is not None:
        for column, pick in flat:
            model.add_hint(pick, int(np.array_equal(np.array(column.chunks), hint[column.stage])))

    def layout_of(solver: cp_model.CpSolver) -> Ints:
        return np.array([column.chunks for column, pick in flat if solver.boolean_value(pick)], dtype=np.int64)

    return master.solved(solve, layout_of, rounded_up=0)


def _place_layers(model: cp_model.CpModel, problem: InnerProblem, flat: list[tuple[Column, cp_model.IntVar]]) -> None:
    """Every layer is placed once, and a part holds a class only when all earlier classes end by then."""
    picks = [pick for _, pick in flat]
    for number, layers in enumerate(problem.layers):
        placed = [sum(chunk[number] for chunk in column.chunks) for column, _ in flat]
        model.add(weighted_sum(picks, placed) == layers)
    places = [spots[0] for spots in problem.parts]
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


def _begin_chunks(model: cp_model.CpModel, problem: InnerProblem, sizes: Sequence[cp_model.LinearExprT]) -> None:
    """Every part, of so many layers, begins with a layer that one may begin with."""
    if problem.chunk_starts:
        allowed = cp_model.Domain.from_values(list(problem.chunk_starts))
        for begin in itertools.accumulate(sizes[:-1]):
            model.add_linear_expression_in_domain(begin, allowed)


FRACTIONS: Final = 64
"""Layer costs keep this many fractions of a unit: a path passes a layer hundreds of times."""


def solve_counts(
    problem: InnerProblem,
    cuts: list[SchedulePath],
    upper_s: float,
    hint: Ints,
    solve: Callable[[cp_model.CpModel], ModelResult],
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
    master = _Master(model, upper_s)
    fine = master.scale * FRACTIONS
    used = np.logical_or.reduce([cut.pairs > 0 for cut in cuts]) if cuts else np.zeros((problem.pp, 1, 1), np.bool_)
    hidden = _hidden_in_pairs(model, problem, counts, used, fine)
    layer_s, fixed_s = (np.floor(each * fine).astype(np.int64) for each in cut_costs_s(problem, cuts))
    for cut, costs, rest in zip(cuts, layer_s.reshape(len(cuts), len(flat)).tolist(), fixed_s.tolist(), strict=True):
        less = [-int(cut.pairs[place]) for place in hidden]
        path = weighted_sum([*flat, *hidden.values()], [*costs, *less])
        model.add(path + rest <= FRACTIONS * master.makespan)
    tails = np.floor(np.array([c.tail_s for c in problem.classes]) * fine).astype(np.int64).tolist()
    for stage in range(problem.pp):
        own = sum(p.cost.tail_s for p in problem.pieces if p.stage == stage)
        tail = weighted_sum(list(counts[stage].ravel()), tails * problem.vpp)
        model.add(tail + int(own * fine) <= FRACTIONS * master.tail)
    _add_memory(model, problem, counts)
    _add_places(model, problem, counts)

    def layout_of(solver: cp_model.CpSolver) -> Ints:
        return np.array([solver.value(count) for count in flat], dtype=np.int64).reshape(shape)

    # Makespan and tail are whole units: each may be rounded up by one.
    return master.solved(solve, layout_of, rounded_up=2)


def _hidden_in_pairs(
    model: cp_model.CpModel, problem: InnerProblem, counts: np.ndarray, used: np.ndarray, scale: float
) -> dict[tuple[int, ...], cp_model.IntVar]:
    """Most time that each pair of chunks [stage, forward, backward] passed by a cut hides, in 1 / scale seconds."""
    shares = pair_overlap_bounds(problem)
    if not shares:
        return {}
    hidden: dict[tuple[int, ...], cp_model.IntVar] = {}
    most = most_layers_per_chunk(problem)
    for place in zip(*np.nonzero(used), strict=True):
        stage, forward, backward = map(int, place)
        ceilings = [(np.ceil(u * scale).astype(np.int64), np.ceil(v * scale).astype(np.int64)) for u, v in shares]
        top = min(int(most * (u.max() + v.max())) for u, v in ceilings)
        variable = model.new_int_var(0, top, "")
        for u, v in ceilings:
            layers = [*counts[stage, forward], *counts[stage, backward]]
            model.add(variable <= weighted_sum(layers, [*u.tolist(), *v.tolist()]))
        hidden[stage, forward, backward] = variable
    return hidden


def _add_memory(model: cp_model.CpModel, problem: InnerProblem, counts: np.ndarray) -> None:
    limit = max(problem.limit_bytes, 1.0)
    for stage, in_flight in enumerate(problem.moments):
        over = over_limit_bytes(problem, np.full(len(in_flight), stage), in_flight)
        rows = np.floor(lean_bytes(problem, in_flight) * UNITS / limit).astype(np.int64).reshape(len(in_flight), -1)
        for used, room in zip(rows.tolist(), np.ceil(-over * UNITS / limit).tolist(), strict=True):
            model.add(weighted_sum(list(counts[stage].ravel()), used) <= int(room))
    stages, over, of_layers = start_rows(problem)
    rows = np.floor(of_layers * UNITS / limit).astype(np.int64).reshape(len(stages), problem.vpp * len(problem.classes))
    for stage, used, room in zip(stages.tolist(), rows.tolist(), np.ceil(-over * UNITS / limit).tolist(), strict=True):
        model.add(weighted_sum(list(counts[stage].ravel()), used) <= int(room))


def _add_places(model: cp_model.CpModel, problem: InnerProblem, counts: np.ndarray) -> None:
    """Every layer has a place, chunks keep their limits, and a class starts only when the one before has ended."""
    parts = [spots[0] for spots in problem.parts]
    for number, layers in enumerate(problem.layers):
        model.add(sum(counts[(*place, number)] for place in parts) == layers)
    _begin_chunks(model, problem, [sum(counts[place]) for place in parts])
    for place in parts:
        model.add_linear_constraint(sum(counts[place]), problem.min_layers_per_chunk, most_layers_per_chunk(problem))
    for number, layers in enumerate(problem.layers[:-1]):
        for index, place in enumerate(parts):
            ended = model.new_bool_var("")
            model.add(sum(counts[(*p, number)] for p in parts[: index + 1]) >= layers * ended)
            model.add(sum(counts[place][number + 1 :]) <= problem.total_layers * ended)
