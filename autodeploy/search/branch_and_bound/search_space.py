"""From a spec to swept candidates: enumerate, judge by rules, evaluate, drop what can't fit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autodeploy.costs.inputs.build_context import choice_context
from autodeploy.costs.layers.unit_costs import CutCosts, closed, fastest_costs, joined
from autodeploy.costs.stages.step_parts import faster_somewhere
from autodeploy.costs.sweep.sweep import FITS, TOTALS, Sweep, sweep, sweep_tree
from autodeploy.kit.errors import SearchCancelled, SpecError
from autodeploy.messages import Message
from autodeploy.search.branch_and_bound.frontier import SearchRequest
from autodeploy.search.choices.effort import LEVELS, USUAL
from autodeploy.space.candidates import Candidates, concatenate
from autodeploy.space.grid import (
    MOST_CANDIDATES,
    MOST_CANDIDATES_IN_ALL,
    MOST_CELLS,
    Grid,
    grid_cells,
    grid_of,
    judge_grid,
    most_candidates,
)
from autodeploy.space.rules import judge
from autodeploy.space.space import Space, allowed_values, default_space, restrict
from autodeploy.specs.planset import Counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.branch_and_bound.frontier import Watch
    from autodeploy.search.choices.effort import Budget
    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.space.tree import CandidateTree
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec
    from cost_models.arrays import Floats, Ints
    from hardware_profiles.profile import Profile


@dataclass(frozen=True)
class SearchSpace:
    """Candidates that are legal and may fit, with their sweep without parts.

    `variant` indexes contexts (cards, batch, features that are left to each candidate); `costs` are those it was swept
    with.
    """

    candidates: Candidates
    swept: Sweep
    variant: npt.NDArray[np.int64]
    contexts: tuple[Context, ...]
    costs: CutCosts
    counts: Counts

    def request(
        self,
        top_k: int,
        gap: float,
        budget: Budget,
        *,
        watch: Watch | None = None,
        should_cancel: Callable[[], bool] | None = None,
    ) -> SearchRequest:
        """A search over these candidates."""
        return SearchRequest(
            self.candidates, self.swept, self.context_of, top_k, gap, budget, self.costs, watch, should_cancel
        )

    def context_of(self, index: int) -> Context:
        """The cluster, the batch and the features of a candidate."""
        return self.contexts[int(self.variant[index])]

    def below(self, rows: Ints, limit_bytes: Callable[[Context], float]) -> tuple[SearchSpace, Ints, Floats]:
        """The candidates at some rows that may fit below other limits, their rows here, and the step times of all
        those asked for, with enough recomputed to stay below [rows]; inf where none does.

        limit_bytes : what a plan may take of a card, by context.
        """
        contexts = tuple(replace(each, limit_bytes=limit_bytes(each)) for each in self.contexts)
        variants = self.variant[rows]
        places = [np.flatnonzero(variants == number) for number in np.unique(variants)]
        sweeps = [
            sweep(self.candidates.take(rows[of_variant]), contexts[int(variants[of_variant[0]])], parts=False)
            for of_variant in places
        ]
        swept, order = _join(sweeps), np.concatenate(places)
        seconds = np.empty(len(rows))
        seconds[order] = swept.after_recompute_s
        fits = np.flatnonzero(np.isfinite(swept.after_recompute_s))
        kept = rows[order[fits]]
        candidates, costs = self.candidates.take(kept), self.costs.take(kept)
        space = SearchSpace(candidates, swept.take(fits), self.variant[kept], contexts, costs, self.counts)
        return space, kept, seconds


def search_space(
    spec: Spec,
    profile: Profile,
    choice: FeatureChoice,
    nominal: Context,
    should_cancel: Callable[[], bool] | None = None,
) -> SearchSpace:
    """All candidates of a spec over its cards and batches; none of a context in which it was cancelled.

    Raises SpecError if there are too many candidates.
    """
    refuse_enormous(spec, profile, choice, nominal)
    parts: list[_Part] = []
    contexts: list[Context] = []
    enumerated, too_big = 0, 0
    rejected: Counter[str] = Counter()
    for context in of_sizes(spec, profile, choice, nominal):
        legal, dead = legal_tree(spec.search, context, profile, choice)
        enumerated += len(legal) + sum(dead.values())
        rejected.update(dead)
        if not len(legal):
            parts.append(_nothing_in(legal))
            contexts += closed(context)
            continue
        try:
            tree_sweep = swept_tree(legal, context, should_cancel)
        except SearchCancelled:
            parts.append(_nothing_in(legal))
            contexts.append(context)
            break
        fits = np.flatnonzero(np.isfinite(tree_sweep.sweep.after_recompute_s))
        too_big += len(legal) - len(fits)
        variant = len(contexts) + tree_sweep.used[fits]
        parts.append((legal.take(fits), tree_sweep.sweep.take(fits), variant, tree_sweep.costs.take(fits)))
        contexts += closed(context)
    counts = Counts(enumerated=enumerated, rejected=dict(rejected.most_common()), too_big=too_big)
    candidates, swept, variants, costs = zip(*parts, strict=True)
    variant = np.concatenate(variants)
    return SearchSpace(concatenate([*candidates]), _join(swept), variant, tuple(contexts), joined(costs), counts)


def legal_of_each(
    specs: Sequence[Spec], profile: Profile, choice: FeatureChoice, nominal: Context
) -> Iterator[tuple[Context, list[Candidates]]]:
    """Over cards and batches, the legal candidates of some specs that differ in what their searches fix; of several
    specs, whose spaces are small, judged together.

    Raises SpecError if there are too many candidates.
    """
    for spec in specs:
        refuse_enormous(spec, profile, choice, nominal)
    for context in of_sizes(specs[0], profile, choice, nominal):
        if len(specs) == 1:
            yield context, [legal_candidates(specs[0].search, context, profile, choice)[0]]
            continue
        all_of = [candidate_grid(spec.search, context, profile, choice).whole().candidates() for spec in specs]
        legal = judge(concatenate(all_of), context.facts, specs[0].search.target).legal
        ends = np.cumsum([len(each) for each in all_of])
        yield context, [each.take(here) for each, here in zip(all_of, np.split(legal, ends[:-1]), strict=True)]


_Part = tuple[Candidates, Sweep, "npt.NDArray[np.int64]", CutCosts]


def _nothing_in(tree: CandidateTree) -> _Part:
    """None of a tree's candidates."""
    none = np.zeros(0, dtype=np.int64)
    columns: dict[str, npt.NDArray[Any]] = {name: np.zeros(0) for name in TOTALS}
    columns[FITS] = np.zeros(0, dtype=np.bool_)
    return tree.take(slice(0)), Sweep(**columns, parts={}), none, CutCosts((), none, none)


@dataclass(frozen=True, eq=False)
class SweptTree:
    """A tree's sweep without parts, with what it was made from; one entry per candidate.

    used : the features that each candidate uses, their place in `closed(context)` [n].
    """

    sweep: Sweep
    used: npt.NDArray[np.int64]
    costs: CutCosts


def swept_tree(legal: CandidateTree, context: Context, should_cancel: Callable[[], bool] | None = None) -> SweptTree:
    """All candidates of a tree, each under its fastest features.

    Raises SearchCancelled when should_cancel says so.
    """
    costs, of_cuts = fastest_costs(context, legal.cuts, one_machine=True)
    sweep = sweep_tree(legal, context, parts=False, costs=costs, should_cancel=should_cancel)
    runs, _ = legal.run_of(np.arange(len(legal)))
    cut = legal.cut_of[legal.placed_of[runs]]
    return SweptTree(sweep, of_cuts[cut], CutCosts((costs,), np.zeros_like(cut), cut))


def legal_candidates(
    search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice
) -> tuple[Candidates, dict[str, int]]:
    """Candidates of one context that obey every rule of the target, and how many each rule rejected."""
    tree, rejected = legal_tree(search, context, profile, choice)
    return tree.candidates(), rejected


def legal_tree(
    search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice
) -> tuple[CandidateTree, dict[str, int]]:
    """`legal_candidates` by what their costs depend on."""
    grid = candidate_grid(search, context, profile, choice)
    return judge_grid(grid, context.facts, search.target, by_replicas=context.cuts_by_replicas)


def candidate_grid(search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice) -> Grid:
    """Every candidate of one context before rules."""
    space = space_of(search, context, profile, choice)
    grid = grid_of(space, world=context.world, global_batch=context.global_batch, moe=context.model.is_moe)
    keep = np.ones(len(grid.cut_of), dtype=bool)
    for axis in ("dp", "etp"):
        values = grid.column(axis)
        all_values = np.unique(values).tolist()
        left = allowed_values(search, axis, all_values)
        if len(left) < len(all_values):
            keep &= np.isin(values, left)
    keep &= _worth_their_order(grid, context)
    return grid if keep.all() else grid.only(keep)


def _worth_their_order(grid: Grid, context: Context) -> npt.NDArray[np.bool_]:
    """Placements but those in the second rank order that could be no faster than in the first.

    The orders take the same memory. They differ in sends between stages and in collectives of replicas, and whatever
    runs beside these, a step with none of them faster is no faster.
    """
    other = np.asarray(grid.column("tp_pp_dp_mapping"))
    keep = np.ones(len(other), dtype=np.bool_)
    rows = np.flatnonzero(other)
    if len(rows) and not context.facts["asked_tp_pp_dp_mapping"]:
        second = grid.placed(rows)
        first = replace(second, tp_pp_dp_mapping=np.zeros(len(rows), dtype=np.bool_))
        keep[rows] = faster_somewhere(second, first, context)
    return keep


def space_of(search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice) -> Space:
    """Values of the axes of one context, before any rule."""
    space = default_space(
        context.model,
        context.world,
        profile.ranks_per_node,
        context.seq_length,
        context.global_batch,
        choice.switches,
        deepep=context.launches_deepep,
    )
    return restrict(replace(space, tp_pp_dp_mapping=_rank_orders(space, context, profile)), search)


def _rank_orders(space: Space, context: Context, profile: Profile) -> tuple[bool, ...]:
    """The rank orders that the release launches and that are worth a look.

    The second one is for clusters with a boundary, of nodes, supernodes or leaf switches: beyond it links are slow for
    all that crosses. Within a node it is searched where it is asked for.
    """
    facts, nodes = context.facts, -(-context.machine.topology.num_ranks // profile.ranks_per_node)
    if not (facts["launches_tp_pp_dp_mapping"] and True in space.tp_pp_dp_mapping):
        return (False,)
    return (False, True) if nodes > 1 or facts["asked_tp_pp_dp_mapping"] else (False,)


def refuse_enormous(spec: Spec, profile: Profile, choice: FeatureChoice, nominal: Context) -> None:
    """Raises before a space is enumerated that memory and patience would not hold.

    Raises SpecError with the size.
    """
    total = 0
    for context in of_sizes(spec, profile, choice, nominal):
        space = space_of(spec.search, context, profile, choice)
        cells, most = grid_cells(space), most_candidates(space, context.world)
        total += most
        if cells > MOST_CELLS or most > MOST_CANDIDATES or total > MOST_CANDIDATES_IN_ALL:
            raise SpecError(
                Message("solver.too_many_strategies", count=max(cells, most, total), most=MOST_CANDIDATES),
                path="/search/allow" if spec.search.allow else "/search/fix",
                hint=Message("solver.restrict_axes"),
            )


def of_sizes(spec: Spec, profile: Profile, choice: FeatureChoice, nominal: Context) -> list[Context]:
    """The nominal context and, where cards may stay idle, those of fewer cards."""
    if spec.cluster.use != "at_most":
        return [nominal]
    counts = card_counts(nominal.num_npus, profile.npus_per_node)
    fewer = [variant(spec, profile, choice, n, nominal.global_batch) for n in counts if n != nominal.num_npus]
    return [nominal, *fewer]


def variant(spec: Spec, profile: Profile, choice: FeatureChoice, num_npus: int, batch: int) -> Context:
    """The context of the same spec on another number of cards or with another batch; no card is spare then."""
    if spec.cluster.blocks is None:
        cluster = spec.cluster.model_copy(update={"num_npus": num_npus, "spare_npus": 0})
        spec = spec.model_copy(update={"cluster": cluster})
    return choice_context(spec, profile, choice, num_npus=num_npus, global_batch=batch)


def card_counts(most: int, per_node: int) -> list[int]:
    """Card counts worth a look under `at_most`, all of them first.

    Of one node every smaller count, of two the upper half; beyond them parts of the last node and fewer whole nodes,
    down to 85 %, of each the three with most divisors.
    """
    if most <= 2 * per_node:
        return list(range(most, 0 if most <= per_node else most // 2, -1))
    nodes = most // per_node
    parts = divisible_first(range(nodes * per_node + 1, most))
    whole = divisible_first(range(max(1, int(nodes * 0.85)), nodes + 1))
    return sorted({most, *parts[:3], *(n * per_node for n in whole[:3])}, reverse=True)


def divisible_first(counts: Iterable[int]) -> list[int]:
    """Counts, those with many divisors first, of equals the largest."""
    return sorted(counts, key=lambda n: (-_smoothness(n), -n))


def _smoothness(number: int) -> int:
    """Powers of 2 in a number, threes counting less: the more, the more layouts divide it."""
    score = 0
    while number % 2 == 0 and number:
        number //= 2
        score += 2
    while number % 3 == 0 and number:
        number //= 3
        score += 1
    return score


def _join(tables: Sequence[Sweep]) -> Sweep:
    if len(tables) == 1:
        return tables[0]
    return Sweep(**{name: np.concatenate([getattr(t, name) for t in tables]) for name in TOTALS}, parts={})


# Grids beyond this are not judged but guessed: a submission waits for the answer.
MOST_JUDGED = 250_000
LEGAL_SHARE = 0.2
"""Of the most candidates that a large space can have, so many are legal: 0.09 to 0.31 on eight specs."""
DEEP_WORK = 5.0
"""Work of `effort: deep` in that of the default: 1 to 13 on five specs, by when the gap is closed."""


@dataclass(frozen=True, slots=True)
class SearchSize:
    """Sizes that the time of a search depends on.

    candidates : legal ones, before it is known which fit; layers : of the model; effort : work in that of the default;
    phases : searches of their own that the run's phases add.
    """

    candidates: int
    layers: int
    effort: float
    phases: int = 0


def search_size(spec: Spec, profile: Profile, choice: FeatureChoice, nominal: Context) -> SearchSize:
    """The size of the search of a spec: a tenth of a second at most."""
    candidates = 0.0
    for context in of_sizes(spec, profile, choice, nominal):
        space = space_of(spec.search, context, profile, choice)
        if grid_cells(space) > MOST_JUDGED:
            candidates += LEGAL_SHARE * most_candidates(space, context.world)
        else:
            candidates += len(legal_tree(spec.search, context, profile, choice)[0])
    return SearchSize(round(candidates), nominal.model.num_hidden_layers, _effort(spec), _phases(spec))


def _effort(spec: Spec) -> float:
    """Of `deep` and of numbers; where more plans are asked for than are looked at, that many are."""
    effort = spec.search.effort
    scale = DEEP_WORK if effort == "deep" else LEVELS[effort].quick / USUAL.quick if isinstance(effort, str) else effort
    return max(scale, 2.0 * spec.search.top_k / USUAL.quick)


def _phases(spec: Spec) -> int:
    """Other sequence lengths and batches of the run, each of which is searched where layouts may change."""
    if spec.run is None or spec.run.layout_changes != "allowed":
        return 0
    usual = (spec.training.seq_length, spec.training.global_batch_size.value)
    batches = {(phase.seq_length or usual[0], phase.global_batch_size or usual[1]) for phase in spec.run.phases}
    return len(batches - {usual})
