"""A lower bound on one candidate's step time by linear programming: layers in fractions, under paths of its schedule.

Its rows are paths of the schedule that are known (`paths`). Where the layers do not fit, a stage must add time (see
`stage_bound`), in which of its chunks is left open. The fractional layout is simulated; its longest path is
the next row, until the simulation agrees with the linear programme or the bound is high enough. Rows of memory come
the same way: those that the fractional layout breaks. A programme that lacks rows bounds from below all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from autodeploy.costs.stages.build_problem import build_problem, repriced, with_choices
from autodeploy.costs.stages.inner_problem import StartBytes
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.search.bounds.paths import PathLibrary, chunk_times_s, cut_costs_s, first_layout, pair_overlap_bounds
from autodeploy.search.bounds.problem_bound import relax_bound, surcharges
from autodeploy.search.choices.layer_choices import COSTS_OF_PARTS
from autodeploy.search.choices.layouts import most_layers_per_chunk
from autodeploy.search.choices.memory_options import memory_choices
from autodeploy.search.placement.uniform import set_problems
from autodeploy.stack.memory_choices import WHOLE
from cost_models.schedule import critical_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.unit_costs import CutCosts
    from autodeploy.costs.stages.inner_problem import InnerProblem, LayerClass, MemoryOption
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Floats, Ints
    from cost_models.schedule import SchedulePath, Sends


LEAST_GAIN: Final = 3e-4
"""A round that raises the bound by less is of little use."""
MIXTURE_SHARES: Final = (1.0, 0.5, 0.2)
"""Of the programme's layout, and the rest of the best one so far: layouts that are simulated."""
MOST_STALLED: Final = 12
INFINITE: Final = float("inf")
SIMULATION_TOLERANCE: Final = 2e-3
"""The simulation of a fractional layout may be this much longer than the bound says."""


def path_bound_s(
    problem: InnerProblem,
    library: PathLibrary,
    *,
    rounds: int,
    target_bound_s: float = np.inf,
    should_cancel: Callable[[], bool] | None = None,
) -> PathBound:
    """Lower bound on the step time, by at most so many linear programmes. Ends early once it is above target_bound_s.

    should_cancel is polled at every programme; what is known by then is returned.

    Each programme's layout is simulated, and so are mixtures of it and the best layout so far: the layouts of a
    programme with few rows jump about, and paths of such a layout say little of good ones.
    """
    if problem.kind.copies > 1 or not problem.total_layers:
        return PathBound(0.0, over=True)
    paths = library.of(problem)
    model, bound, stalled = _Model(problem, list(paths.values())), 0.0, 0
    centre = (first_layout(problem), np.zeros((problem.pp, problem.vpp)))
    best, lacking = np.inf, False
    for number in range(1, rounds + 1):
        solution = model.solve()
        if solution is None:
            return PathBound(bound, True, number)
        stalled = stalled + 1 if solution.bound_s < bound * (1.0 + LEAST_GAIN) and not lacking else 0
        bound = max(bound, solution.bound_s)
        if bound >= target_bound_s or stalled >= MOST_STALLED or (should_cancel is not None and should_cancel()):
            return PathBound(bound, True, number)
        lacking = model.add_memory(solution)
        if number == 1:
            centre = (centre[0], solution.extra_s)
        tried = [
            (share * solution.layout + (1.0 - share) * centre[0], share * solution.extra_s + (1.0 - share) * centre[1])
            for share in MIXTURE_SHARES
        ]
        layout, extra = (np.stack(values) for values in zip(*tried, strict=True))
        times = chunk_times_s(problem, layout, extra)
        longest = critical_paths(problem.order, *times)
        simulated = _simulated_s(longest, *times)
        if simulated.min() < best and not lacking:
            best, centre = float(simulated.min()), tried[int(np.argmin(simulated))]
        agrees = simulated[0] <= solution.makespan_s * (1.0 + SIMULATION_TOLERANCE)
        if not lacking and (agrees or not library.add(paths, longest)):
            return PathBound(bound, True, number)
        model.add(longest)
    return PathBound(bound, False, rounds)


@dataclass(frozen=True, slots=True)
class PathBound:
    """bound_s: no layout is faster; 0 where nothing was found.

    over: more rounds would not raise it by much. rounds: linear programmes that were solved.
    """

    bound_s: float
    over: bool
    rounds: int = 1


@dataclass(frozen=True, eq=False)
class _Found:
    """layout [pp, vpp, classes] and extra_s [pp, vpp] in fractions."""

    bound_s: float
    makespan_s: float
    layout: Floats
    extra_s: Floats


def _simulated_s(
    paths: list[SchedulePath], forward_s: Floats, backward_s: Floats, hidden_s: Floats, sends: Sends
) -> Floats:
    """Length of the path of each layout [n]."""
    rows = [slice(row, row + 1) for row in range(len(paths))]
    times = ((forward_s[row], backward_s[row], hidden_s[row], sends.take(row)) for row in rows)
    return np.concatenate([path.length_s(*of_row) for path, of_row in zip(paths, times, strict=True)])


class _Model:
    """The linear programme of one problem.

    Columns: counts [pp, vpp, classes], extra [pp, vpp], makespan, tail, then what pairs of chunks hide. Rows are loaded
    at the next solve: one by one from Python they would cost more than solving them.
    """

    def __init__(self, problem: InnerProblem, paths: list[SchedulePath]) -> None:
        from ortools.linear_solver import linear_solver_pb2  # type: ignore[import-untyped]

        self.problem = problem
        self.unit = max(c.forward_s + c.backward_s for c in problem.classes) * problem.micro_batches
        shape = (problem.pp, problem.vpp, len(problem.classes))
        self.counts = np.arange(np.prod(shape)).reshape(shape)
        self.extra = self.counts.size + np.arange(problem.pp * problem.vpp).reshape(shape[:2])
        self.makespan = self.counts.size + self.extra.size
        self.tail = self.makespan + 1
        self.hidden = np.full((problem.pp, problem.vpp, problem.vpp), -1)
        self.columns: list[tuple[float, float]] = [(0.0, most) for most in self._most().ravel().tolist()]
        self.columns += [(0.0, INFINITE)] * (self.extra.size + 2)
        self.rows: list[tuple[float, float, Ints, Floats]] = []
        self.proto: Any = linear_solver_pb2.MPModelProto()
        self.solver: Any = None
        self.parameters: Any = None
        self._places()
        self.memory, self.kept = surcharges(problem, self.unit / problem.micro_batches), set[int]()
        if self.memory is not None:
            # The rows that a template layout breaks, or comes closest to breaking; those of seconds first.
            first, memory = self.memory.broken(first_layout(problem), np.zeros(problem.pp), over=-INFINITE), self.memory
            for number in sorted(first.tolist(), key=lambda row: (memory.stage[row], not memory.seconds[row])):
                self._add_memory(number)
        self.add(paths)

    def _most(self) -> Floats:
        """Layers of a class that a chunk can hold [pp, vpp, classes]: those before it leave a layer in each part."""
        problem = self.problem
        fitting = np.minimum(float(most_layers_per_chunk(problem)), np.array(problem.layers, dtype=np.float64))
        most = np.broadcast_to(fitting, self.counts.shape).copy()
        until = np.cumsum(problem.layers)
        for part, spots in enumerate(problem.parts):
            for spot in spots:
                most[spot][part * problem.min_layers_per_chunk >= until] = 0.0
        return most

    def _row(self, low: float, high: float, columns: Ints, values: Floats) -> None:
        self.rows.append((low, high, columns, values))

    def _places(self) -> None:
        problem, (pp, vpp, classes) = self.problem, self.counts.shape
        low, high = problem.min_layers_per_chunk, most_layers_per_chunk(problem)
        for columns in self.counts.reshape(-1, classes):
            self._row(float(low), float(high), columns, np.ones(classes))
        for number, layers in enumerate(problem.layers):
            self._row(float(layers), float(layers), self.counts[..., number].ravel(), np.ones(pp * vpp))
        tails = np.array([-c.tail_s / self.unit for c in problem.classes] * vpp)
        for stage in range(pp):
            own = sum(p.cost.tail_s for p in problem.pieces if p.stage == stage)
            self._row(
                own / self.unit, INFINITE, np.append(self.counts[stage].ravel(), self.tail), np.append(tails, 1.0)
            )

    def add_memory(self, solution: _Found) -> bool:
        """Rows of memory that a solution breaks; whether there were any."""
        if self.memory is None:
            return False
        extra = solution.extra_s.sum(axis=1) * self.problem.micro_batches / self.unit
        return any([self._add_memory(row) for row in self.memory.broken(solution.layout, extra).tolist()])

    def _add_memory(self, number: int) -> bool:
        """extra >= constant + sum of layers, or of bytes 0 >= that; whether it is new."""
        if number in self.kept or self.memory is None:
            return False
        self.kept.add(number)
        memory, stage = self.memory, int(self.memory.stage[number])
        columns, values = self.counts[stage].ravel(), -memory.layer[number].ravel()
        if memory.seconds[number]:
            columns = np.concatenate([columns, self.extra[stage]])
            values = np.concatenate([values, np.ones(self.problem.vpp)])
        self._row(float(memory.constant[number]), INFINITE, columns, values)
        return True

    def add(self, paths: Sequence[SchedulePath]) -> None:
        """More paths: makespan >= the length of each."""
        m, n = self.problem.micro_batches, len(paths)
        layer_s, fixed_s = cut_costs_s(self.problem, paths)
        backward, pairs = (np.array([getattr(path, name) for path in paths]) / m for name in ("backward", "pairs"))
        values, places = (-layer_s / self.unit, -backward, pairs), (self.counts, self.extra, self.hidden)
        flat = [each.reshape(n, of.size) for each, of in zip(values, places, strict=True)]
        rows = np.concatenate([*flat, np.ones((n, 1))], axis=1)
        unknown = np.any([path.pairs != 0 for path in paths], axis=0) & (self.hidden < 0)
        if unknown.any():
            self._hide(unknown)
        columns = np.concatenate([*map(np.ravel, places), [self.makespan]])
        for row, nonzero, rest in zip(rows, rows != 0.0, (fixed_s / self.unit).tolist(), strict=True):
            self._row(rest, INFINITE, columns[nonzero], row[nonzero])

    def _hide(self, paired: np.ndarray) -> None:
        """Columns of what pairs of chunks [pp, vpp, vpp] hide, in units of `unit` / micro batches."""
        scale, shares = self.unit / self.problem.micro_batches, pair_overlap_bounds(self.problem)
        alone = [np.append(-(u + v) / scale, 1.0) for u, v in shares]
        apart = [np.append(np.concatenate([-u, -v]) / scale, 1.0) for u, v in shares]
        for stage, forward, backward in np.argwhere(paired).tolist():
            self.hidden[stage, forward, backward] = column = len(self.columns)
            self.columns.append((0.0, INFINITE if shares else 0.0))
            chunks = [forward] if forward == backward else [forward, backward]
            columns = np.append(self.counts[stage, chunks], column)
            for values in alone if forward == backward else apart:
                self._row(-INFINITE, 0.0, columns, values)

    def _load(self) -> None:
        """Hand what is new to the solver: all at once at first, then row by row to keep its basis."""
        from ortools.linear_solver import pywraplp

        if self.solver is None:
            for number, (low, high) in enumerate(self.columns):
                objective = 1.0 if number in (self.makespan, self.tail) else 0.0
                self.proto.variable.add(lower_bound=low, upper_bound=high, objective_coefficient=objective)
            for low, high, columns, values in self.rows:
                self.proto.constraint.add(
                    lower_bound=low, upper_bound=high, var_index=columns.tolist(), coefficient=values.tolist()
                )
            self.solver = pywraplp.Solver.CreateSolver("CLP")
            self.solver.LoadModelFromProto(self.proto)
            # Presolve would start anew each time: the last basis, with some rows added, is near the next one.
            self.parameters = pywraplp.MPSolverParameters()
            self.parameters.SetIntegerParam(self.parameters.PRESOLVE, self.parameters.PRESOLVE_OFF)
            self.variables = list(self.solver.variables())
        else:
            for low, high in self.columns[len(self.variables) :]:
                self.variables.append(self.solver.NumVar(low, high, ""))
            for low, high, columns, values in self.rows:
                row = self.solver.Constraint(low, high)
                for column, value in zip(columns.tolist(), values.tolist(), strict=True):
                    row.SetCoefficient(self.variables[column], value)
        self.rows.clear()

    def solve(self) -> _Found | None:
        """The best fractional layout; None when the solver finds none."""
        self._load()
        if self.solver.Solve(self.parameters) != self.solver.OPTIMAL:
            return None
        solution = np.array([variable.solution_value() for variable in self.variables])
        layout, extra = solution[self.counts], solution[self.extra]
        value = self.solver.Objective().Value() * self.unit
        # The simplex method stops at a tolerance: the bound gives up as much.
        return _Found(
            value * (1.0 - 1e-6) + self.problem.tail_s,
            float(solution[self.makespan]) * self.unit,
            np.maximum(layout, 0.0),
            np.maximum(extra, 0.0) * self.unit / self.problem.micro_batches,
        )


ROUNDS = (4, 8, 16, 32, 64)
"""Linear programmes of one inner problem, at each visit."""
CANDIDATE_ROUNDS = 32
"""Linear programmes of one inner problem of a candidate that is bounded alone."""
PER_SECOND = 800
"""Linear programmes that are about as much work as one unit of CP-SAT's deterministic time."""
SETUP = 3
"""Linear programmes that are about as much work as making the first one of a problem."""
PROGRAMMES_OF_A_TUPLE = 4
"""Linear programmes that are about as much work as making a tuple's problems and bounding their sets of options."""
COLUMNS = 170.0
"""Columns of a linear programme that takes twice as long as a small one; larger ones take far longer."""
MOST_OPTIONS = 16
"""Of a problem whose options are on for all layers or none: more make too many sets to look at each."""


@dataclass(frozen=True, slots=True)
class Visit:
    """bound_s: no candidate of the tuple is faster; work: in linear programmes of small problems.

    finished: no bound raises it any more.
    """

    bound_s: float
    work: int
    finished: bool = False


@dataclass(eq=False)
class _Open:
    """An outer tuple's relaxed problems, what is proven of each, and how often it was bounded.

    first : no harder than any of them; others_s : bound of what none of them holds.
    """

    first: InnerProblem
    problems: tuple[InnerProblem, ...]
    proven: list[PathBound]
    others_s: float = math.inf
    visits: int = 0

    @property
    def least_s(self) -> float:
        """No candidate of the tuple is faster."""
        return min([self.others_s, *(each.bound_s for each in self.proven)])


class TupleBounds:
    """Lower bounds of outer tuples, one at a time, each visit a stronger one."""

    def __init__(
        self,
        candidates: Candidates,
        contexts: Callable[[int], Context],
        costs: CutCosts,
        should_cancel: Callable[[], bool],
    ) -> None:
        self._candidates, self._contexts, self._costs, self._should_cancel = candidates, contexts, costs, should_cancel
        self._library = PathLibrary()
        self._known: dict[int, _Open] = {}  # by a tuple's first candidate

    def visit(self, rows: Ints, ahead: list[Ints], target_bound_s: float) -> Visit:
        """Bound the tuple of the candidates at rows once more, up to target_bound_s.

        ahead : tuples that will probably be visited next: their problems are made together.
        """
        first, opened = int(rows[0]), len(self._known)
        if first not in self._known:
            groups = [rows, *(group for group in ahead if int(group[0]) not in self._known)]
            for group, problems in zip(groups, self._relaxed(groups), strict=True):
                self._known[int(group[0])] = _opened(problems, target_bound_s)
                if self._should_cancel():
                    break
        visit = self._bounded(self._known[first], target_bound_s)
        return replace(visit, work=visit.work + PROGRAMMES_OF_A_TUPLE * (len(self._known) - opened))

    def _bounded(self, tuple_: _Open, target_bound_s: float) -> Visit:
        tuple_.visits += 1
        if tuple_.least_s >= target_bound_s:
            return Visit(tuple_.least_s, 0)
        rounds = ROUNDS[min(tuple_.visits, len(ROUNDS)) - 1]
        if tuple_.visits == 1 and len(tuple_.problems) > 1:
            # One problem that is no harder than any serves to tell whether the tuple deserves more.
            raised, spent = self._by_paths_s(tuple_.first, PathBound(0.0, over=False), target_bound_s, rounds)
            return Visit(max(tuple_.least_s, raised.bound_s), spent)
        done = 0
        for place, problem in enumerate(tuple_.problems):
            before = tuple_.proven[place]
            if self._should_cancel() or before.bound_s >= target_bound_s * (1.0 - 1e-6):
                continue
            raised, spent = self._by_paths_s(problem, before, target_bound_s, rounds)
            done += spent
            tuple_.proven[place] = replace(raised, bound_s=max(before.bound_s, raised.bound_s))
        finished = tuple_.visits >= len(ROUNDS) or all(each.over for each in tuple_.proven)
        return Visit(tuple_.least_s, done, finished)

    def of_candidate(self, problems: tuple[InnerProblem, ...], target_bound_s: float) -> Visit:
        """Bound one candidate by its own problems, without recomputing whole layers and with, up to target_bound_s."""
        alone, work = _opened(problems, target_bound_s), 0
        least_s = alone.others_s
        for problem, before in sorted(zip(alone.problems, alone.proven, strict=True), key=lambda each: each[1].bound_s):
            if before.bound_s >= least_s or self._should_cancel():
                least_s = min(least_s, before.bound_s)
                break
            raised, spent = self._by_paths_s(problem, before, min(target_bound_s, least_s), CANDIDATE_ROUNDS)
            least_s, work = min(least_s, max(before.bound_s, raised.bound_s)), work + spent
        return Visit(least_s, work)

    def _by_paths_s(
        self, problem: InnerProblem, before: PathBound, target_bound_s: float, rounds: int
    ) -> tuple[PathBound, int]:
        """One more path bound, and the work done."""
        if before.over:
            return before, 0
        raised = self._bound_s(problem, target_bound_s, rounds)
        columns = problem.pp * problem.vpp * (len(problem.classes) + (3 if problem.pairs else 1))
        return raised, math.ceil(SETUP + raised.rounds * (1.0 + (columns / COLUMNS) ** 5))

    def _bound_s(self, problem: InnerProblem, target_bound_s: float, rounds: int) -> PathBound:
        """Bound of one problem, of no interest above target_bound_s; inf when it can't fit."""
        bound = relax_bound(problem)
        if bound >= target_bound_s:
            return PathBound(bound, over=True)
        by_paths = path_bound_s(
            problem, self._library, rounds=rounds, target_bound_s=target_bound_s, should_cancel=self._should_cancel
        )
        return replace(by_paths, bound_s=max(bound, by_paths.bound_s))

    def _relaxed(self, groups: list[Ints]) -> Iterator[tuple[InnerProblem, ...]]:
        """For each group problems no harder than any of its candidates', which differ in what their states take.

        One without recomputing whole layers and, where that is allowed, one with it.
        """
        costs: dict[int, tuple[Priced, dict[int, int]]] = {}
        for rows in groups:
            context = self._contexts(int(rows[0]))
            if id(context) not in costs:
                members = np.concatenate([other for other in groups if self._contexts(int(other[0])) is context])
                candidates = self._candidates.take(members)
                batch = Priced(step_classes(self._costs.of(members), candidates, context), candidates, context)
                costs[id(context)] = batch, {int(row): place for place, row in enumerate(members)}
            batch, place_of = costs[id(context)]
            yield _easiest_of([replace(batch, index=place_of[int(row)]) for row in rows])


def _easiest_of(members: list[Priced]) -> tuple[InnerProblem, ...]:
    """Of candidates of one outer tuple with the memory choices that each may use: without whole layers, and with."""
    allowed = [memory_choices(priced.candidate, priced.context) for priced in members]
    lean = list(range(len(members)))
    heavy = [member for member, choices in enumerate(allowed) if WHOLE in choices]
    relaxed = []
    for extremes, whole in ((lean, frozenset[str]()), (heavy, frozenset({WHOLE}))):
        if extremes:
            first, *others = ((members[member], allowed[member] - ({WHOLE} - whole)) for member in extremes)
            one = build_problem(first[0], choices=first[1], menu=False)
            problems = (repriced(one, other, choices=frozenset()) for other, _ in others)
            leaving = (with_choices(each, *other) for each, other in zip(problems, others, strict=True))
            relaxed.append(easiest([one, *leaving]))
    return tuple(relaxed)


def _opened(problems: tuple[InnerProblem, ...], target_bound_s: float) -> _Open:
    """A tuple that nothing is proven of; where options are on for all layers or none, one problem for each set."""
    free = tuple(replace(problem, uniform_options=False) for problem in problems)
    # They differ in their options and in what stages hold besides.
    first = easiest(sorted(free, key=lambda problem: -len(problem.options)))
    if not problems[0].uniform_options or max(len(problem.options) for problem in problems) > MOST_OPTIONS:
        return _Open(first, free, [PathBound(0.0, over=False)] * len(problems))
    of_sets, others_s = set_problems(problems, target_bound_s)
    proven = [PathBound(bound_s, over=False) for bound_s, _ in of_sets]
    return _Open(first, tuple(problem for _, problem in of_sets), proven, others_s)


def _cheapest(alike: Sequence[MemoryOption]) -> MemoryOption:
    """One option of several problems, that frees most of all and adds least."""
    added = {name: min(getattr(each, name) for each in alike) for name in ("extra_backward_s", "swap_bytes", "host_s")}
    return alike[0]._replace(saved_bytes=max(each.saved_bytes for each in alike), **added)


def easiest(problems: Sequence[InnerProblem]) -> InnerProblem:
    """The first problem with the least seconds and bytes of all, the options of all and the largest limit."""

    def least(costs: list[LayerClass]) -> LayerClass:
        return costs[0]._replace(**{name: min(getattr(c, name) for c in costs) for name in COSTS_OF_PARTS})

    one = problems[0]
    options: dict[tuple[str, int], list[MemoryOption]] = {}
    for option in chain.from_iterable(problem.options for problem in problems):
        options.setdefault((option.name, option.layer_class), []).append(option)
    return replace(
        one,
        options=tuple(_cheapest(alike) for alike in options.values()),
        classes=tuple(least(list(costs)) for costs in zip(*(p.classes for p in problems), strict=True)),
        pieces=tuple(
            pieces[0]._replace(cost=least([p.cost for p in pieces]))
            for pieces in zip(*(p.pieces for p in problems), strict=True)
        ),
        limit_bytes=max(p.limit_bytes for p in problems),
        fixed_bytes=np.min([p.fixed_bytes for p in problems], axis=0),
        tail_s=min(p.tail_s for p in problems),
        start=_easiest_start([p.start for p in problems]),
    )


def _easiest_start(starts: Sequence[StartBytes | None]) -> StartBytes | None:
    """The least bytes of all; None where one takes nothing."""
    known = [start for start in starts if start is not None]
    if len(known) < len(starts) or len({start.layers.shape for start in known}) > 1:
        return None
    layers, pieces = (np.min([getattr(start, name) for start in known], axis=0) for name in ("layers", "pieces"))
    return StartBytes(layers, pieces, min(start.tried_out for start in known))
