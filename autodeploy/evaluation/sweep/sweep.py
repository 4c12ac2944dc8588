"""The sweep: time, breakdown and worst-stage memory of every candidate under the template layout.

Times are the closed forms of the schedules; costs are the ones that estimates and the solver read. Each formula is
evaluated once for what it depends on: a cut, a placement, a run, and last the mode of the optimizer's states. A
schedule that holds the parameters twice is not swept: it is evaluated for comparison only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.errors import SearchCancelled
from autodeploy.evaluation.layers.alternatives import fastest_costs
from autodeploy.evaluation.layers.layer_cost import PHASE_PARTS
from autodeploy.evaluation.stages.stage_memory import allocator_limit_bytes, on_card_bytes
from autodeploy.evaluation.stages.step_parts import p2p_s
from autodeploy.evaluation.sweep.columns import PlacedCosts, placed_costs
from autodeploy.evaluation.sweep.runs import Runs, Shapes, Way, runs_of
from autodeploy.strategies.tree import distinct, tree_of
from cost_models.arrays import Floats, Ints
from cost_models.compiled import compiled
from cost_models.schedule import FIRST, LAST, MIDDLE, group_size, schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.unit_costs import UnitCosts
    from autodeploy.evaluation.sweep.columns import Columns
    from autodeploy.strategies.candidates import Candidates
    from autodeploy.strategies.tree import CandidateTree


UNLIKELY = 1e3  # factor on the estimate of candidates that are solved last
REPAIRED_BY = ("norm", "activation", "mla_up_proj")
"""Choices of memory from the cheapest second a byte on."""


@dataclass(frozen=True)
class Tails:
    """What follows the pipeline on the stage where it takes longest, by part [n]; and a bound for any layout."""

    total_s: Floats
    exposed_dp_s: Floats
    optimizer_s: Floats
    exposed_swap_s: Floats
    moving_s: Floats
    floor_s: Floats


def tails_of(runs: Runs, mode: Columns) -> Tails:
    """The tails of runs under a mode."""
    tail = np.ascontiguousarray(runs.tail_s.T)
    moving = np.zeros_like(tail) if runs.moving_s is None else np.ascontiguousarray(runs.moving_s.T)
    rates = [_rate(mode, name, kind, tail.shape[1]) for name in ("update_s", "swap_s") for kind in ("dense", "expert")]
    return Tails(*_longest_tails(tail, moving, *_parameters(runs), *rates), mode["tail_s", "share"])


def _parameters(runs: Runs) -> tuple[Floats, Floats]:
    """Dense and expert parameters of the classes of stages [3, n]."""
    return np.ascontiguousarray(runs.dense_params.T), np.ascontiguousarray(runs.expert_params.T)


def _rate(mode: Columns, name: str, kind: str, n: int) -> Floats:
    """What one parameter of a kind takes [n]."""
    rate = mode.get((name, kind))
    return np.zeros(n) if rate is None else rate


@compiled
def _longest_tails(
    tail: Floats,
    moving: Floats,
    dense: Floats,
    expert: Floats,
    dense_update_s: Floats,
    expert_update_s: Floats,
    dense_swap_s: Floats,
    expert_swap_s: Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Of the class of stages with the longest tail: all of it, synchronising, updating, swapping, moving [n].

    tail, moving [3, n] in seconds; dense, expert: parameters [3, n]; the others: seconds of one parameter [n].
    """
    n = tail.shape[1]
    most, synchronised, updated, swapped, moved = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for row in range(n):
        most[row] = -np.inf
        for stage in (FIRST, MIDDLE, LAST):
            update = dense[stage, row] * dense_update_s[row] + expert[stage, row] * expert_update_s[row]
            swap = dense[stage, row] * dense_swap_s[row] + expert[stage, row] * expert_swap_s[row]
            total = tail[stage, row] + moving[stage, row] + update + swap
            if total > most[row]:
                most[row], synchronised[row], moved[row] = total, tail[stage, row], moving[stage, row]
                updated[row], swapped[row] = update, swap
    return most, synchronised, updated, swapped, moved


@dataclass(frozen=True)
class Bytes:
    """Allocator bytes of the fullest stage: nothing recomputed, everything recomputed, and of no layout less [n]."""

    plain: Floats
    lean: Floats
    least: Floats


def bytes_of(runs: Runs, mode: Columns, *, folded: bool) -> Bytes:
    """Memory of runs under a mode."""
    bare, lean = (np.ascontiguousarray(each.T) for each in (runs.bare_bytes, runs.lean_bytes))
    dense, expert = (_rate(mode, "total_bytes", kind, bare.shape[1]) for kind in ("dense", "expert"))
    share = mode["total_bytes_folded" if folded else "total_bytes", "share"]
    return Bytes(*_fullest(bare, lean, *_parameters(runs), dense, expert), share + runs.workspace_bytes)


@compiled
def _fullest(
    bare: Floats, lean: Floats, dense: Floats, expert: Floats, dense_bytes: Floats, expert_bytes: Floats
) -> tuple[Floats, Floats]:
    """The most of bare and of lean bytes [3, n], with the states of parameters, on any class of stages [n]."""
    n = bare.shape[1]
    most_bare, most_lean = np.zeros(n), np.zeros(n)
    for row in range(n):
        for stage in (FIRST, MIDDLE, LAST):
            states = dense[stage, row] * dense_bytes[row] + expert[stage, row] * expert_bytes[row]
            most_bare[row] = max(most_bare[row], bare[stage, row] + states)
            most_lean[row] = max(most_lean[row], lean[stage, row] + states)
    return most_bare, most_lean


def repaired_s(runs: Runs, step_s: Floats, memory: Bytes, room: Floats, *, whole: bool) -> Floats:
    """Step time when the first stage recomputes just enough to fit: the order in which candidates are solved [n].

    Choices are taken from the cheapest second a byte on; where they do not free enough, whole layers are recomputed. A
    template that does not fit with everything recomputed leaves little hope for other layouts: those come last.
    Infinite where no layout fits. whole: a framework's flag holds for every stage.
    """
    saved, cost = zip(*(runs.repairs[name] for name in (*REPAIRED_BY, "full")), strict=True)
    return _repaired(step_s, memory.plain, memory.lean, memory.least, room, saved, cost, whole)


@compiled
def _repaired(
    step_s: Floats,
    plain: Floats,
    lean: Floats,
    least: Floats,
    room: Floats,
    saved: tuple[Floats, ...],
    cost: tuple[Floats, ...],
    whole: bool,
) -> Floats:
    """`repaired_s`; bytes saved and seconds added by each choice [n], that of whole layers last."""
    repaired = np.empty(len(step_s))
    for row in range(len(step_s)):
        if least[row] > room[row]:
            repaired[row] = np.inf
            continue
        need = missing = max(plain[row] - room[row], 0.0)
        extra = 0.0
        for choice in range(len(saved) - 1):
            used = min(need / max(saved[choice][row], 1.0), 1.0)
            extra += (np.ceil(used) if whole else used) * cost[choice][row]
            need = max(0.0, need - saved[choice][row])
        if need > 0.0:
            extra = cost[-1][row] * min(missing / max(saved[-1][row], 1.0), 1.0)
        repaired[row] = step_s[row] + extra
        if lean[row] > room[row]:
            repaired[row] *= UNLIKELY
    return repaired


BLOCK = 16_384  # runs whose columns stay in the cache together
TOTALS = ("step_time_s", "bound_s", "memory_bytes", "least_bytes", "recomputed_bytes", "repaired_s")
PARTS_OF_MODES = ("imbalance_s", "exposed_dp_s", "optimizer_s", "exposed_swap_s")
PARTS_OF_RUNS = (
    *(name for name in PHASE_PARTS if name not in PARTS_OF_MODES),
    *("exposed_pp_s", "pipeline_bubble_s", "recompute_s"),
)


class Parts(Mapping[str, Floats]):
    """Parts of the step time by name, one entry per candidate of a tree.

    What no mode changes is kept once a run, and spread over the modes where it is read.
    """

    def __init__(self, tree: CandidateTree, of_runs: dict[str, Floats], of_modes: dict[str, Floats]) -> None:
        self._tree, self._of_runs, self._of_modes = tree, of_runs, of_modes

    def __getitem__(self, name: str) -> Floats:
        if name in self._of_modes:
            return self._of_modes[name]
        spread: Floats = self._tree.spread(self._of_runs[name])
        return spread

    def __iter__(self) -> Iterator[str]:
        return iter((*self._of_runs, *self._of_modes))

    def __len__(self) -> int:
        return len(self._of_runs) + len(self._of_modes)


@dataclass(frozen=True)
class Sweep:
    """One entry per candidate. `parts` adds up to step_time_s; `bound_s` holds for every layout of the candidate."""

    step_time_s: Floats
    bound_s: Floats
    memory_bytes: Floats  # worst stage of the template, nothing recomputed or swapped
    least_bytes: Floats  # no layout and no choice brings the fullest stage below this
    recomputed_bytes: Floats  # on the card of the template's fullest stage when every layer is recomputed
    repaired_s: Floats  # step time with enough recomputed to fit; infinite where nothing fits
    parts: Mapping[str, Floats]

    def take(self, index: Any) -> Sweep:
        """The entries at an index, a slice or a mask."""
        return Sweep(
            **{name: getattr(self, name)[index] for name in TOTALS},
            parts={name: values[index] for name, values in self.parts.items()},
        )

    def fastest(self, count: int) -> Ints:
        """The `count` candidates that look fastest once they fit, in order; of equals the first."""
        seconds = self.repaired_s
        if count < len(seconds):
            limit = np.partition(seconds, count - 1)[count - 1]
            index = np.flatnonzero(seconds <= limit)
        else:
            index = np.arange(len(seconds))
        return index[np.argsort(seconds[index], kind="stable")][:count]


def sweep(candidates: Candidates, context: Context) -> Sweep:
    """Evaluate any candidates, in any order."""
    tree, places = tree_of(candidates, by_replicas=context.cuts_by_replicas)
    return sweep_tree(tree, context).take(places)


def sweep_tree(
    tree: CandidateTree,
    context: Context,
    *,
    parts: bool = True,
    costs: UnitCosts | None = None,
    should_cancel: Callable[[], bool] | None = None,
) -> Sweep:
    """Evaluate all candidates of a tree, in its order; without `parts` where nobody reads the breakdown.

    costs : of the tree's cuts, where they are known.

    Raises
    ------
    SearchCancelled
        when should_cancel, which is polled between blocks, says so.
    """
    columns = _empty((*TOTALS, *(PARTS_OF_MODES if parts else ())), len(tree))
    of_runs = _empty(PARTS_OF_RUNS if parts else (), tree.runs)
    if len(tree):
        of_cuts = fastest_costs(context, tree.cuts, one_machine=True)[0] if costs is None else costs
        _fill(columns, of_runs, tree, context, of_cuts, should_cancel)
    of_modes = {name: values for name, values in columns.items() if name not in TOTALS}
    return Sweep(**{name: columns[name] for name in TOTALS}, parts=Parts(tree, of_runs, of_modes))


def _empty(names: Sequence[str], n: int) -> dict[str, Floats]:
    """Columns to be filled, in one allocation: the system backs large ones with large pages."""
    return dict(zip(names, np.empty((len(names), n)), strict=True))


def _fill(
    columns: dict[str, Floats],
    of_runs: dict[str, Floats],
    tree: CandidateTree,
    context: Context,
    of_cuts: UnitCosts,
    should_cancel: Callable[[], bool] | None,
) -> None:
    twice = [schedules()[schedule].name for schedule, _ in tree.ways if schedules()[schedule].copies > 1]
    if twice:
        raise ValueError(f"{twice[0]} is estimated, not swept")
    costs = placed_costs(of_cuts, tree, context)
    shapes = _shapes(tree.placed, context)
    beside = costs.communication_bytes + context.machine.runtime_bytes
    for (schedule, vpp), rows, start in zip(tree.ways, tree.rows, tree.way_starts.tolist(), strict=False):
        if not len(rows):  # no candidate goes this way
            continue
        way, first = Way(schedule, vpp), start
        for here in np.array_split(rows, max(1, round(len(rows) / BLOCK))):
            if should_cancel is not None and should_cancel():
                raise SearchCancelled("cancelled while strategies were looked at")
            pairs = costs.pairs.rows(here) if way.paired else costs.pairs
            runs = runs_of(way, shapes.take(here), costs.base.rows(here), pairs, costs.counts, context)
            for name, values in of_runs.items():
                values[first : first + len(here)] = runs.parts[name]
            _fill_modes(columns, tree, context, costs, way, here, first, runs, beside[here])
            first += len(here)


def _fill_modes(
    columns: dict[str, Floats],
    tree: CandidateTree,
    context: Context,
    costs: PlacedCosts,
    way: Way,
    rows: Ints,
    first: int,
    runs: Runs,
    beside: Floats,
) -> None:
    """Every mode of a batch of runs, the first of them number `first`."""
    n = len(rows)
    room = allocator_limit_bytes(context.limit_bytes, beside, context.machine.fragmentation)
    tails: dict[tuple[bool, bool], Tails] = {}
    for number, (_, swap, virtual) in enumerate(tree.modes):
        into, kept = _places(tree, number, first, n)
        if into.stop == into.start:
            continue
        mode = costs.modes[number].rows(rows)
        if (swap, virtual) not in tails:
            tails[swap, virtual] = tails_of(runs, mode)
        tail = tails[swap, virtual]
        memory = bytes_of(runs, mode, folded=way.folded)
        step = runs.makespan_s + tail.total_s
        found = {
            "step_time_s": step,
            "bound_s": runs.floor_s + tail.floor_s,
            "memory_bytes": memory.plain,
            "least_bytes": memory.least,
            "recomputed_bytes": on_card_bytes(memory.lean, beside, context.machine.fragmentation),
            "repaired_s": repaired_s(runs, step, memory, room, whole=context.framework.uniform_options),
            "imbalance_s": runs.parts["imbalance_s"] + tail.moving_s,
            "exposed_dp_s": runs.parts["exposed_dp_s"] + tail.exposed_dp_s,
            "optimizer_s": tail.optimizer_s,
            "exposed_swap_s": tail.exposed_swap_s,
        }
        for name, column in columns.items():
            values = np.asarray(found[name])
            column[into] = values if kept is None or values.ndim == 0 else values[kept]


def _places(tree: CandidateTree, mode: int, first: int, n: int) -> tuple[slice, Ints | None]:
    """Where candidates of a mode go whose runs are n from `first` on, and which of the runs it has (None: all)."""
    start, kept = int(tree.mode_starts[mode]), tree.kept[mode]
    if kept is None:
        return slice(start + first, start + first + n), None
    low, high = np.searchsorted(kept, (first, first + n)).tolist()
    return slice(start + low, start + high), kept[low:high] - first


def _shapes(placed: Candidates, context: Context) -> Shapes:
    """Pipelines of placements, with the seconds that sending a micro batch to the next stage takes."""
    rows, inverse = distinct([placed.pp, placed.micro_batches])
    pp, micro_batches = placed.pp[rows], placed.micro_batches[rows]
    each = pp, micro_batches, group_size(pp, micro_batches)
    stages, batches, sizes = (np.asarray(values, dtype=np.float64) for values in each)
    return Shapes(
        pp=stages[inverse],
        micro_batches=batches[inverse],
        group_size=sizes[inverse],
        send_s=p2p_s(placed, context),
        distinct=(stages, batches, sizes),
        which=inverse,
    )
