"""Layer classes of one step: layers that a stage counts alike, with everything they add to a step.

Layers that differ only in their attention are one class: their cost is the mean over the model's layers, as every stage
holds about the same share of them. Where dense layers lie between those with experts, all layers are one class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import numpy as np

from autodeploy.costs.inputs.expert_balance import peak_over_layers
from autodeploy.costs.layers.layer_cost import PHASE_PARTS, LayerCost, over_layers
from autodeploy.costs.layers.unit_costs import MODULE, each_array, each_pair, mean_of, scalar_at
from autodeploy.costs.stages.inner_problem import NUMBERS_OF_CLASS, LayerClass, LayerPairs
from autodeploy.costs.stages.stage_memory import communication_bytes
from autodeploy.costs.stages.step_parts import (
    Owned,
    ParameterGroups,
    Static,
    Tail,
    migration_of,
    of_params,
    owned_of,
    p2p_s,
    shared_sum_s,
    state_rates,
    static_of,
    synchronised_of,
)
from autodeploy.space.candidates import of_schedules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.layer_cost import PhaseCost
    from autodeploy.costs.layers.pair_windows import PairCost
    from autodeploy.costs.layers.unit_costs import Pairs, UnitCosts
    from autodeploy.costs.stages.step_parts import Rates
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class PairShares:
    """Seconds that a layer of each class hides at most in a paired forward and in a paired backward [classes, n].

    A pair of chunks hides the sum over its pairs of layers of what each hides. Shares u (of a layer's forward) and v
    (of a layer's backward) with u_i + v_j >= hidden[i, j], all >= 0, bound that sum from above, layer by layer,
    whatever runs beside what: linear programming's dual of matching layers. Every feasible pair of shares is a bound.
    """

    forward_s: Floats
    backward_s: Floats

    @property
    def both_s(self) -> Floats:
        """Of a layer whose two passes are both in a pair."""
        return np.asarray(self.forward_s + self.backward_s)


def tight_shares(hidden_s: Floats, counts: Sequence[int]) -> PairShares:
    """Shares of hidden_s [classes, classes, n] that together bound what all layers hide (each class `counts` times in
    both passes) as low as we can.

    Tried: forwards take what they hide beside a backward of one class and backwards the rest, for every class, and
    the same with forward and backward exchanged. With one or two classes the best of them is the optimum.
    """
    tried = [_from_column(hidden_s, column) for column in range(len(hidden_s))]
    mirrored = [_from_column(hidden_s.swapaxes(0, 1), column) for column in range(len(hidden_s))]
    tried += [PairShares(shares.backward_s, shares.forward_s) for shares in mirrored]
    totals = [sum(count * both for count, both in zip(counts, each.both_s, strict=True)) for each in tried]
    best, least = tried[0], totals[0]
    for each, total in zip(tried[1:], totals[1:], strict=True):
        better, least = total < least, np.minimum(total, least)
        best = PairShares(
            np.where(better, each.forward_s, best.forward_s), np.where(better, each.backward_s, best.backward_s)
        )
    return best


def one_sided_shares(hidden_s: Floats) -> tuple[PairShares, PairShares]:
    """Everything counted for the forwards, and everything for the backwards."""
    none, most = np.zeros_like(hidden_s[0]), np.maximum(hidden_s, 0.0)
    return PairShares(most.max(axis=1), none), PairShares(none, most.max(axis=0))


def _from_column(hidden_s: Floats, column: int) -> PairShares:
    forward = np.maximum(hidden_s[:, column], 0.0)
    return PairShares(forward, np.maximum((hidden_s - forward[:, None]).max(axis=0), 0.0))


def pair_table(pairs: Pairs, name: str) -> Floats:
    """A number of `PairCost` for every pair of classes [classes, classes, n]."""
    each = np.broadcast_arrays(*(getattr(pair, name) for row in pairs for pair in row))
    return np.reshape(each, (len(pairs), len(pairs), -1))


T = TypeVar("T")
PassName = Literal["forward", "backward"]
PASSES: Final[tuple[PassName, ...]] = ("forward", "backward")


@dataclass(frozen=True)
class StepClass:
    """One class of layers, or a fixed piece: cost of a micro batch, and what its parameters add to a step [n].

    exposed_dp_s, migration_s : seconds after the pipeline, of reducing and gathering parameters and of moving experts.
    rates : what a parameter costs in the mode that optimizer states are kept in; None where that is still open. owned :
    beyond these rates.
    """

    name: str
    count: int
    cost: LayerCost
    exposed_dp_s: Floats
    migration_s: Floats
    rates: Rates | None
    slower: float  # of the slowest device's time, what is above the nominal device's, relative
    owned: Owned

    def pass_s(self, name: PassName) -> Floats:
        """Seconds of a pass on the slowest device."""
        phase: PhaseCost = getattr(self.cost, name)
        return np.asarray(phase.total_s + self.slower * phase.compute_s)

    def parts(self, passes: Sequence[PassName] = PASSES) -> dict[str, Floats]:
        """The same by part, of all these passes together; what a slow device takes longer is imbalance."""
        phases: list[PhaseCost] = [getattr(self.cost, name) for name in passes]
        parts = {name: np.asarray(sum(getattr(phase, name) for phase in phases)) for name in PHASE_PARTS}
        parts["imbalance_s"] = parts["imbalance_s"] + self.slower * parts["compute_s"]
        return parts

    @cached_property
    def static(self) -> Static:
        """Bytes of states."""
        assert self.rates is not None
        return static_of(self.cost, self.rates, self.owned)

    @cached_property
    def tail(self) -> Tail:
        """Seconds after the pipeline."""
        assert self.rates is not None
        params = self.cost.dense_params, self.cost.expert_params
        update, swap = (of_params(name, *params, self.rates) for name in ("update_s", "swap_s"))
        return Tail(self.exposed_dp_s, np.asarray(update + self.owned.update_s), swap, self.migration_s)

    @property
    def numbers(self) -> dict[str, Floats]:
        """The numbers of its `LayerClass` by name [n or 1]."""
        return {
            **{f"{name}_s": self.pass_s(name) for name in PASSES},
            "static_bytes": self.static.total,
            "activation_bytes": self.cost.activation_bytes,
            "tail_s": self.tail.total_s,
            "covering_s": self.cost.covering_s,
            "split_s": self.cost.split_s,
        }

    @property
    def unsharded_bytes(self) -> Floats:
        """Of frozen weights, and of states beyond what the rates say."""
        return np.asarray(self.cost.frozen_bytes + self.owned.state_bytes)


@dataclass(frozen=True)
class StepClasses:
    """All classes in model order, and the pieces."""

    layers: tuple[StepClass, ...]
    pieces: tuple[StepClass, ...]  # embedding, head and, where there are any, multi-token prediction modules
    groups: ParameterGroups
    pairs: Pairs  # of a forward of one class beside a backward of another
    communication_bytes: Floats  # of all communicators' buffers [n]
    send_s: Floats | None = None  # to the same rank of the next stage [n]; the sweep has its own

    @property
    def embedding(self) -> StepClass:
        """On the first stage."""
        return self.pieces[0]

    @property
    def head(self) -> StepClass:
        """On the last stage, or where the model's end is."""
        return self.pieces[1]

    @cached_property
    def numbers(self) -> dict[str, Floats]:
        """Numbers of the `LayerClass` of all classes, then of the pieces, by name [n, layers + pieces]."""
        n, steps = len(self.groups.dense_shards), [step.numbers for step in (*self.layers, *self.pieces)]
        tables = {name: np.empty((n, len(steps))) for name in NUMBERS_OF_CLASS}
        for name, table in tables.items():
            for number, step in enumerate(steps):
                table[:, number] = step[name]
        return tables

    def at(self, index: int) -> tuple[list[LayerClass], list[LayerClass], LayerPairs]:
        """Costs of one candidate's layers, of its pieces, and of pairs of its layers, as inner problems read them."""
        rows = np.stack([table[index] for table in self.numbers.values()], axis=-1).tolist()
        steps = [LayerClass(step.name, *row) for step, row in zip((*self.layers, *self.pieces), rows, strict=True)]
        pairs = (table[index if len(table) > 1 else 0] for table in vars(self.pair_tables).values())
        return steps[: len(self.layers)], steps[len(self.layers) :], LayerPairs(*pairs)

    @property
    def most_hidden_s(self) -> PairShares:
        """Most seconds that a layer of every class hides in its passes [classes, n]."""
        return tight_shares(pair_table(self.pairs, "hidden_s"), [layer.count for layer in self.layers])

    @cached_property
    def pair_tables(self) -> LayerPairs:
        """Seconds that pairs of classes hide [n, class, class], or [1, class, class] where all candidates are alike."""
        tables = (pair_table(self.pairs, name) for name in ("hidden_s", "hidden_exchange_s", "first_s"))
        return LayerPairs(*(np.ascontiguousarray(np.moveaxis(table, -1, 0)) for table in tables))


@dataclass(frozen=True)
class Priced:
    """One candidate, by its index in a batch whose layers are priced; context : the candidate's, with its features."""

    classes: StepClasses
    candidates: Candidates
    context: Context
    index: int = 0

    @cached_property
    def candidate(self) -> Candidates:
        """It alone."""
        return self.candidates.take(np.array([self.index]))

    def at(self, values: object) -> float:
        """Its entry of an array of the batch."""
        return scalar_at(values, self.index)


def step_classes(costs: UnitCosts, candidates: Candidates, context: Context) -> StepClasses:
    """Classes of a batch of candidates; `costs` holds one entry per candidate."""
    groups = ParameterGroups.of(candidates, context)
    seconds = {n: migration_of(moved.moved_params, candidates, context, groups) for n, moved in costs.moved.items()}
    placing = Placing(
        candidates,
        context,
        groups,
        peak_over_layers(context.loads, context.expert_ranks(candidates), expert_layers(context, candidates)),
        migrations(costs, candidates, seconds),
        state_rates(candidates, context, groups),
    )
    together = of_schedules("ends_meet", candidates.schedule)
    copied = np.where(together, 0.0, embedding_copy_params(candidates, context))
    classes = placing.classes(of_candidates(costs, placing.moves), copied)
    return replace(classes, send_s=p2p_s(candidates, context))


@dataclass(frozen=True)
class Placing:
    """Candidates, and what their place in the cluster and the pipeline makes of the costs of their layers.

    peak : of what the worst moment adds to a layer, the share that it adds to each of a stage's [n]. moves : where
    experts migrate, by place of the layer. rates : of the candidates' modes, None where they are open.
    """

    candidates: Candidates
    context: Context
    groups: ParameterGroups
    peak: Floats
    moves: Mapping[int, MigrationChoice]
    rates: Rates | None = None

    def classes(self, costs: UnitCosts, copied: Floats) -> StepClasses:
        """Of costs of every candidate, with migrated experts where they migrate; `copied` as of `head`."""
        candidates, context = self.candidates, self.context
        shares = merged_kinds(costs, interleaved=bool(context.model.mlp_only_layers))
        layers = tuple(self._layers(costs, members) for members in shares)
        pairs = tuple(tuple(_mean_pair(costs, forward, backward) for backward in shares) for forward in shares)
        return StepClasses(
            layers,
            (
                self._step_class(costs.embedding, "embedding", ends=costs.embedding.dense_params),
                self.head(costs, copied),
                *self.modules(costs, copied),
            ),
            self.groups,
            pairs,
            communication_bytes(candidates, context),
        )

    def head(self, costs: UnitCosts, copied: Floats) -> StepClass:
        """The head; tied to the embedding it holds `copied` parameters [n] of it.

        A pipeline keeps them on stage 0; schedules under which the model's ends meet keep the two together.
        """
        tied = self.context.model.tie_word_embeddings
        if not tied:
            return self._step_class(costs.head, "head", ends=costs.head.dense_params)
        head = _with_copy(costs.head, copied, self.context)
        return self._step_class(head, "head", ends=head.dense_params, shared=copied)

    def modules(self, costs: UnitCosts, copied: Floats) -> Iterator[StepClass]:
        """Prediction modules together, where there are any, with their copy of the embedding."""
        number = self.context.model.num_nextn_predict_layers
        if costs.mtp is not None:
            module = _with_copy(mean_of([(costs.mtp, float(number))]), copied, self.context)
            shared = 0.0 if self.context.model.tie_word_embeddings else copied  # else the head's
            move = self.moves.get(MODULE) if number == 1 else None
            yield self._step_class(module, "mtp", move=move, ends=copied, shared=shared)

    def _layers(self, costs: UnitCosts, members: list[tuple[int, float]]) -> StepClass:
        """The class of some kinds of layers, each with its share of them."""
        number = members[-1][0]
        cost = mean_of([(with_every_choice(costs, n, members), share) for n, share in members])
        return self._step_class(
            over_layers(cost, self.peak),
            costs.layers[number].layer_class,
            sum(costs.counts[n] for n, _ in members),
            move=self.moves.get(number) if len(members) == 1 else None,
        )

    def _step_class(
        self,
        cost: LayerCost,
        name: str,
        count: int = 1,
        move: MigrationChoice | None = None,
        ends: Floats | float = 0.0,
        shared: Floats | float = 0.0,
    ) -> StepClass:
        """A class, of which `move` is known where it is of one kind that may migrate; `ends` as of `owned_of`.

        shared : parameters that the first stage holds too [n].
        """
        candidates, context, groups = self.candidates, self.context, self.groups
        per_stage = np.maximum(1.0, context.model.num_hidden_layers / candidates.pp)
        moving = migration_of(cost.moved_params, candidates, context, groups) if move is None else move.seconds
        exposed = synchronised_of(cost, candidates, context, groups, per_stage)
        exposed = exposed + shared_sum_s(np.asarray(shared), candidates, context)
        owned = owned_of(cost, np.asarray(ends), candidates, context, groups)
        return StepClass(name, count, cost, exposed, moving, self.rates, context.slowest_device_factor - 1.0, owned)


def expert_layers(context: Context, candidates: Candidates) -> Floats:
    """Mixture-of-experts layers of a stage [n], in the mean."""
    return np.asarray(context.model.num_moe_layers / candidates.pp)


def _mean_pair(costs: UnitCosts, forward: list[tuple[int, float]], backward: list[tuple[int, float]]) -> PairCost:
    """Of two classes: the mean over the kinds of layers that they hold."""
    return mean_of([(costs.pairs[i][j], a * b) for i, a in forward for j, b in backward])


def with_every_choice(costs: UnitCosts, number: int, members: list[tuple[int, float]]) -> LayerCost:
    """A kind's cost with the memory choices of all kinds of its class: those that it lacks free and cost nothing."""
    cost = costs.layers[number]
    others = {name: choice for n, _ in members for name, choice in costs.layers[n].choices.items()}
    if others.keys() == cost.choices.keys():
        return cost
    none = {name: each_array(choice, np.zeros_like) for name, choice in others.items() if name not in cost.choices}
    return replace(cost, choices=cost.choices | none)


def merged_kinds(costs: UnitCosts, *, interleaved: bool) -> list[list[tuple[int, float]]]:
    """Kinds of layers that are one class, each with its share of the class's layers."""
    merged: dict[str, list[int]] = {}
    for number, cost in enumerate(costs.layers):
        merged.setdefault("" if interleaved else cost.layer_class, []).append(number)
    totals = [sum(costs.counts[n] for n in members) for members in merged.values()]
    return [
        [(n, costs.counts[n] / total) for n in members] for members, total in zip(merged.values(), totals, strict=True)
    ]


@dataclass(frozen=True)
class MigrationChoice:
    """Places to which the experts of a layer migrate, and the seconds a step that it takes there, 0 elsewhere [n]."""

    where: Bools
    seconds: Floats


def migrations(
    costs: UnitCosts, candidates: Candidates, seconds: Mapping[int, Floats], cut_of: Ints | None = None
) -> dict[int, MigrationChoice]:
    """MigrationChoice by place of the layer: where what it saves a step is more than what it costs.

    seconds : a step that migration costs, by place [n]. cut_of : row of `costs` of each candidate; None: its own.
    """
    paired = candidates.paired
    choices = {}

    def of_cut(values: Floats) -> Floats:
        return values if cut_of is None or values.shape[:1] == (1,) else values[cut_of]

    for place, moved in costs.moved.items():
        plain = costs.mtp if place == MODULE else costs.layers[place]
        assert plain is not None
        saved = of_cut(plain.alone_s - moved.alone_s)
        if place != MODULE:
            hidden = of_cut(costs.pairs[place][place].hidden_s - costs.moved_pairs[place][place].hidden_s)
            saved = np.where(paired, np.minimum(saved, saved - hidden), saved)
        better = candidates.micro_batches * saved > seconds[place]
        choices[place] = MigrationChoice(better, np.where(better, seconds[place], 0.0))
    return choices


def of_candidates(costs: UnitCosts, moves: Mapping[int, MigrationChoice], cut_of: Ints | None = None) -> UnitCosts:
    """Costs of candidates, with migrated experts where they migrate.

    cut_of : row of `costs` of each candidate; None: its own.
    """
    if not costs.moved:
        return costs if cut_of is None else costs.take(cut_of)
    n = len(costs.shard.tp)
    rows = np.arange(n) if cut_of is None else cut_of

    def looked_up(plain: T, moved: T, *places: int) -> T:
        """In a table whose second half is with migrated experts, where those of all `places` that can migrate do."""
        both = each_pair(plain, moved, lambda *each: np.concatenate([np.broadcast_to(a, (n,)) for a in each]))
        chosen = [moves[place].where for place in places if place in moves]
        index = rows + n * np.logical_and.reduce(chosen) if chosen else rows
        return each_array(both, lambda a: a if a.shape in ((), (1,)) else a.take(index if len(a) == 2 * n else rows))

    kinds, module, pairs, moved_pairs = range(len(costs.layers)), costs.mtp, costs.pairs, costs.moved_pairs
    return replace(
        costs,
        layers=tuple(looked_up(costs.layers[n], costs.moved.get(n, costs.layers[n]), n) for n in kinds),
        embedding=looked_up(costs.embedding, costs.embedding),
        head=looked_up(costs.head, costs.head),
        mtp=None if module is None else looked_up(module, costs.moved.get(MODULE, module), MODULE),
        # A pair of a layer that migrates with one that does not is priced as neither does.
        pairs=tuple(tuple(looked_up(pairs[i][j], moved_pairs[i][j], i, j) for j in kinds) for i in kinds),
    )


def _with_copy(cost: LayerCost, copied: Floats, context: Context) -> LayerCost:
    """With `copied` parameters of the embedding: trained, or frozen beside adapters; a reference model has its own."""
    on = context.operators
    trained, models = 0.0 if on.frozen else 1.0, 2.0 if on.reference else 1.0
    return replace(
        cost,
        dense_params=np.asarray(cost.dense_params + trained * copied),
        frozen_bytes=np.asarray(cost.frozen_bytes + (models - trained) * copied * on.element_bytes),
    )


def embedding_copy_params(candidates: Candidates, context: Context) -> Floats:
    """Parameters of a copy of the embedding on another stage than the first [n]; 0 without a pipeline."""
    cut = 1 if context.operators.whole_vocabulary else candidates.tp
    return np.where(candidates.pp > 1, context.model.vocab_size * context.model.hidden_size / cut, 0.0)
