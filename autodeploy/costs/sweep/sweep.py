"""The sweep: time, breakdown and worst-stage memory of every candidate under the template layout.

Times are the closed forms of the schedules; costs are the ones that estimates and the solver read. Each formula is
evaluated once for what it depends on: a cut, a placement, a run, and last the mode of the optimizer's states. A
schedule that holds the parameters twice is not swept: it is evaluated for comparison only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from autodeploy.costs.layers.layer_cost import PHASE_PARTS
from autodeploy.costs.layers.unit_costs import fastest_costs
from autodeploy.costs.stages.stage_memory import allocator_limit_bytes, builds_buffers, on_card_bytes, tried_out_bytes
from autodeploy.costs.stages.step_parts import TAIL_PARTS, p2p_s
from autodeploy.costs.sweep.columns import placed_costs
from autodeploy.costs.sweep.scheduled_placements import Runs, Shapes, runs_of
from autodeploy.kit.errors import SearchCancelled
from autodeploy.space.tree import distinct, tree_of
from cost_models.arrays import Bools, Floats, Ints
from cost_models.compiled import compiled
from cost_models.hbm import building_bytes
from cost_models.schedule import FIRST, LAST, MIDDLE, group_size, schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.unit_costs import UnitCosts
    from autodeploy.costs.sweep.columns import ModeColumns, PlacedCosts, UnitColumns
    from autodeploy.space.candidates import Candidates
    from autodeploy.space.tree import CandidateTree


OVERFLOWS: Final = 1e3
"""Factor on the estimate of candidates whose template does not fit with everything recomputed: they are solved last."""


@compiled
def worst_stages(stages: tuple[Floats, ...], rates: tuple[Floats, ...]) -> Floats:
    """Of runs the class of stages with the longest tail, and the most bytes on any class of stages [7, n].

    stages : as of `Runs`. rates : as of `ModeColumns`.
    Found: the tail, and of it synchronising, updating, swapping and moving [s]; the bytes of both kinds.
    """
    synchronised, moving, updating, dense, expert, plain, lean = stages
    update_s, others_update_s, swap_s, others_swap_s, state_bytes, others_bytes = rates
    worst = np.empty((7, len(update_s)))
    for row in range(len(update_s)):
        longest, slowest, most, most_lean = -np.inf, 0, 0.0, 0.0
        for stage in (FIRST, MIDDLE, LAST):
            some, others = dense[stage, row], expert[stage, row]
            update = updating[stage, row] + some * update_s[row] + others * others_update_s[row]
            swap = some * swap_s[row] + others * others_swap_s[row]
            states = some * state_bytes[row] + others * others_bytes[row]
            total = synchronised[stage, row] + moving[stage, row] + update + swap
            if total > longest:
                longest, slowest = total, stage
                worst[2, row], worst[3, row] = update, swap
            most, most_lean = max(most, plain[stage, row] + states), max(most_lean, lean[stage, row] + states)
        worst[0, row], worst[1, row], worst[4, row] = longest, synchronised[slowest, row], moving[slowest, row]
        worst[5, row], worst[6, row] = most, most_lean
    return worst


@compiled
def after_recompute_s(
    step_s: Floats, bytes_: tuple[Floats, Floats, Floats], room: Floats, saved: Floats, cost: Floats, whole: bool
) -> Floats:
    """Step time when the first stage recomputes just enough to fit: the order in which candidates are solved [n].

    Choices are taken from the cheapest second a byte on; where they do not free enough, whole layers are recomputed. A
    template that does not fit with everything recomputed leaves little hope for other layouts: those come last.
    Infinite where no layout fits.

    bytes_ : of the fullest stage with nothing and with everything recomputed, and of any layout's at least [n].
    saved, cost : bytes and seconds of each of RECOMPUTED_MODULES [modules, n]. whole : a flag holds for every stage.
    """
    plain, lean, least = bytes_
    estimate = np.full(len(step_s), np.inf)
    for row in range(len(step_s)):
        if least[row] > room[row]:
            continue
        need = missing = max(plain[row] - room[row], 0.0)
        extra = 0.0
        for choice in range(len(saved) - 1):
            used = min(need / max(saved[choice, row], 1.0), 1.0)
            extra += (np.ceil(used) if whole else used) * cost[choice, row]
            need = max(0.0, need - saved[choice, row])
        if need > 0.0:
            extra = cost[-1, row] * min(missing / max(saved[-1, row], 1.0), 1.0)
        estimate[row] = (step_s[row] + extra) * (OVERFLOWS if lean[row] > room[row] else 1.0)
    return estimate


BLOCK: Final = 16_384
"""Runs whose columns stay in the cache together."""
FITS = "template_fits"
TOTALS = ("step_time_s", "bound_s", "memory_bytes", "least_bytes", "recomputed_bytes", "after_recompute_s", FITS)
PARTS_OF_MODES = TAIL_PARTS
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
    after_recompute_s: Floats  # step time with enough recomputed to fit, for an order; infinite where nothing fits
    template_fits: Bools  # with every layer recomputed
    parts: Mapping[str, Floats]

    def take(self, index: Any) -> Sweep:
        """The entries at an index, a slice or a mask."""
        return Sweep(
            **{name: getattr(self, name)[index] for name in TOTALS},
            parts={name: values[index] for name, values in self.parts.items()},
        )

    @property
    def fastest_s(self) -> float | None:
        """`after_recompute_s` of the fastest candidate whose template fits; None where none does."""
        seconds = self.after_recompute_s[self.template_fits]
        return float(seconds.min()) if len(seconds) else None

    def fastest(self, count: int) -> Ints:
        """The `count` candidates that look fastest once they fit, in order; of equals the first."""
        seconds = self.after_recompute_s
        if count < len(seconds):
            limit = np.partition(seconds, count - 1)[count - 1]
            index = np.flatnonzero(seconds <= limit)
        else:
            index = np.arange(len(seconds))
        return index[np.argsort(seconds[index], kind="stable")][:count]


def sweep(candidates: Candidates, context: Context, *, parts: bool = True) -> Sweep:
    """Evaluate any candidates, in any order; without `parts` where nobody reads the breakdown."""
    tree, places = tree_of(candidates, by_replicas=context.cuts_by_replicas)
    return sweep_tree(tree, context, parts=parts).take(places)


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

    Raises SearchCancelled when should_cancel, which is polled between blocks, says so.
    """
    columns: dict[str, Any] = {FITS: np.empty(len(tree), dtype=np.bool_)}
    columns |= _empty((*TOTALS[:-1], *(PARTS_OF_MODES if parts else ())), len(tree))
    of_runs = _empty(PARTS_OF_RUNS if parts else (), tree.runs)
    if len(tree):
        of_cuts = fastest_costs(context, tree.cuts, one_machine=True)[0] if costs is None else costs
        _fill(columns, of_runs, tree, context, of_cuts, should_cancel)
    totals: dict[str, Any] = {name: columns.pop(name) for name in TOTALS}
    return Sweep(**totals, parts=Parts(tree, of_runs, columns))


def _empty(names: Sequence[str], n: int) -> dict[str, Floats]:
    """Columns to be filled, in one allocation: the system backs large ones with large pages."""
    return dict(zip(names, np.empty((len(names), n)), strict=True))


def _fill(
    columns: dict[str, Any],
    of_runs: dict[str, Floats],
    tree: CandidateTree,
    context: Context,
    of_cuts: UnitCosts,
    should_cancel: Callable[[], bool] | None,
) -> None:
    kinds = schedules()
    twice = [kinds[schedule].name for schedule, _ in tree.ways if kinds[schedule].copies > 1]
    if twice:
        raise ValueError(f"{twice[0]} is estimated, not swept")
    costs, shapes = placed_costs(of_cuts, tree, context), _shapes(tree.placed, context)
    for (schedule, vpp), rows, start in zip(tree.ways, tree.rows, tree.way_starts.tolist(), strict=False):
        if not len(rows):  # no candidate goes this way
            continue
        kind, first = kinds[schedule], start
        for here in np.array_split(rows, max(1, round(len(rows) / BLOCK))):
            if should_cancel is not None and should_cancel():
                raise SearchCancelled
            block = costs.rows(here)
            runs = runs_of(kind, vpp, shapes.take(here), block, context, parts=bool(of_runs))
            for name, values in of_runs.items():
                values[first : first + len(here)] = runs.parts[name]
            beside = block.communication_bytes + context.machine.runtime_bytes
            last = block.folded if kind.folded else block.last
            at_start = start_bytes(runs, block, last, (tree.placed.take(here), vpp), context)
            for number, mode in enumerate(block.modes):
                into, kept = _places(tree, number, first, len(here))
                if into.stop == into.start:
                    continue
                columns_of_mode = _under(mode, runs, context, (beside, at_start), folded=kind.folded)
                for name, column in columns.items():
                    values = np.asarray(columns_of_mode[name])
                    column[into] = values if kept is None or values.ndim == 0 else values[kept]
            first += len(here)


def start_bytes(
    runs: Runs, costs: PlacedCosts, last: UnitColumns, shape: tuple[Candidates, int], context: Context
) -> tuple[Floats, Floats]:
    """Bytes of the allocator before the first step [n]: most on any class of the template's stages, and at least on the
    fullest stage of any layout, which holds no less than the mean.

    last : pieces of the model's end. shape : the placements, and chunks of a stage.
    """
    placed, chunks = shape
    most = least = tried_out_bytes(placed, context)
    if builds_buffers(context):
        held = float(context.optimizer.weights), float(context.gradient_bytes)
        _, _, _, dense, expert, _, _ = runs.stages
        most = np.maximum(most, building_bytes(dense, expert, held, chunks).max(axis=0))
        units = [*zip(costs.counts, costs.layers, strict=True), (1, costs.first), (1, last)]
        mean_dense = sum(count * unit.dense_params for count, unit in units) / placed.pp
        mean_expert = sum(count * unit.expert_params for count, unit in units) / placed.pp
        least = np.maximum(least, building_bytes(mean_dense, mean_expert, held, chunks))
    return most, least


def _under(
    mode: ModeColumns, runs: Runs, context: Context, of_any_mode: tuple[Floats, tuple[Floats, Floats]], *, folded: bool
) -> dict[str, Floats | Bools]:
    """Every column of a batch of runs under one mode.

    of_any_mode : bytes of a card that the allocator does not hold, and `start_bytes` [n].
    """
    beside, (at_start, least_at_start) = of_any_mode
    fragmentation = context.machine.fragmentation
    room = allocator_limit_bytes(context.limit_bytes, beside, fragmentation)
    tail, *tails, plain, lean = worst_stages(runs.stages, mode.rates)
    lean = np.maximum(lean, at_start)
    least = np.maximum((mode.folded_bytes if folded else mode.total_bytes) + runs.workspace_bytes, least_at_start)
    step = runs.makespan_s + tail
    return {
        "step_time_s": step,
        "bound_s": runs.floor_s + mode.tail_s,
        "memory_bytes": plain,
        "least_bytes": least,
        "recomputed_bytes": on_card_bytes(lean, beside, fragmentation),
        "after_recompute_s": after_recompute_s(
            step, (plain, lean, least), room, runs.saved_bytes, runs.recompute_s, context.framework.uniform_options
        ),
        FITS: lean <= room,
        **{
            name: runs.parts[name] + seconds if name in runs.parts else seconds
            for name, seconds in zip(TAIL_PARTS if runs.parts else (), tails, strict=False)
        },
    }


def _places(tree: CandidateTree, mode: int, first: int, n: int) -> tuple[slice, Ints | None]:
    """Destinations of candidates of a mode, whose runs are n from `first` on, and its own runs (None: all)."""
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
