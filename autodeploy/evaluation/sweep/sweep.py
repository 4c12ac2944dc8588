"""The sweep: time, breakdown and worst-stage memory of every candidate under the template layout.

Times are the closed forms of the schedules; costs are the ones that estimates and the solver read. Each formula is
evaluated once for what it depends on: a cut, a placement, a run, and last the mode of the optimizer's states. A
schedule that holds the parameters twice is not swept: it is evaluated for comparison only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.errors import SearchCancelled
from autodeploy.evaluation.layers.alternatives import fastest_costs
from autodeploy.evaluation.stages.sends import p2p_s
from autodeploy.evaluation.stages.stage_memory import allocator_limit_bytes, on_card_bytes
from autodeploy.evaluation.sweep.columns import WORK_PARTS, PlacedCosts, placed_costs
from autodeploy.evaluation.sweep.modes import Tails, bytes_of, repaired_s, tails_of
from autodeploy.evaluation.sweep.runs import Runs, Shapes, Way, runs_of
from autodeploy.strategies.tree import distinct, tree_of
from cost_models.arrays import Floats, Ints
from cost_models.schedule import group_size, schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.unit_costs import UnitCosts
    from autodeploy.strategies.candidates import Candidates
    from autodeploy.strategies.tree import CandidateTree

BLOCK = 16_384  # runs whose columns stay in the cache together
TOTALS = ("step_time_s", "bound_s", "memory_bytes", "least_bytes", "recomputed_bytes", "repaired_s")
PARTS_OF_MODES = ("imbalance_s", "exposed_dp_s", "optimizer_s", "exposed_swap_s")
PARTS_OF_RUNS = (
    *(name for name in WORK_PARTS if name not in PARTS_OF_MODES),
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
        way = Way(schedule, vpp)
        for block in _even_blocks(len(rows)):
            if should_cancel is not None and should_cancel():
                raise SearchCancelled("cancelled while strategies were looked at")
            here = rows[block]
            first = start + block.start
            pairs = costs.pairs.rows(here) if way.paired else costs.pairs
            runs = runs_of(way, shapes.take(here), costs.base.rows(here), pairs, costs.counts, context)
            for name, values in of_runs.items():
                values[first : first + len(here)] = runs.parts[name]
            _fill_modes(columns, tree, context, costs, way, here, first, runs, beside[here])


def _even_blocks(n: int) -> Iterator[slice]:
    """Even parts of about BLOCK of n rows."""
    number = max(1, round(n / BLOCK)) if n else 0
    edges = [n * i // number for i in range(number + 1)] if number else []
    for start, end in pairwise(edges):
        yield slice(start, end)


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
