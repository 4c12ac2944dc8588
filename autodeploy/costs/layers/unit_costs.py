"""Costs that depend on how tensors are cut, not on the pipeline: computed once per distinct cut, for all candidates."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from autodeploy.costs.inputs.context import ALL_GATHER, DEEPEP, FLAT, LEVELLING, SEQUENTIAL, ExchangeFeatures
from autodeploy.costs.inputs.expert_balance import even_balance, migrated_balance, routed_balance
from autodeploy.costs.layers.exchanges import Groups, LayerInputs
from autodeploy.costs.layers.layer_cost import LayerCost, layer_cost
from autodeploy.costs.layers.operator_time import Prices
from autodeploy.costs.layers.pair_windows import PairCost, pair_cost
from autodeploy.costs.workload.layers import embedding_table, head_table, last_kind, layer_table, mtp_table
from autodeploy.costs.workload.operators import Sharding
from autodeploy.space.rules import load_rules, scope_of, values_of
from autodeploy.space.tree import distinct_cuts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.workload.operators import LayerTable, OperatorFeatures
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Bools, Floats, Ints


T = TypeVar("T")
Array = npt.NDArray[Any]
_NAMES: dict[type, tuple[str, ...]] = {}  # of the types that were asked for
MODULE = -1  # place of the prediction module among the layers
Pairs = tuple[tuple[PairCost, ...], ...]


@dataclass(frozen=True)
class UnitCosts:
    """Costs of one layer of each kind and of the fixed pieces, one entry per candidate or per distinct cut.

    moved : the same of layers and prediction modules with migrated experts, by their place in `layers` (-1: the
        module); whether a candidate migrates is decided where its micro batches are known.
    """

    layers: tuple[LayerCost, ...]
    counts: tuple[int, ...]
    embedding: LayerCost
    head: LayerCost
    mtp: LayerCost | None
    shard: Sharding
    pairs: Pairs  # of a forward of one kind beside a backward of another
    moved: dict[int, LayerCost] = field(default_factory=dict)
    moved_pairs: Pairs = ()

    def take(self, index: Any) -> UnitCosts:
        """The costs of the candidates at an index array."""
        return at_rows(self, index)


def at_rows(value: T, rows: Any) -> T:
    """The candidates at some rows: scalars, and arrays of one entry, hold for all."""
    return each_array(value, lambda array: array if array.shape[:1] in ((), (1,)) else array[rows])


def each_array(value: T, change: Callable[[Array], Array]) -> T:
    """The value with every array inside it changed: in dataclasses, tuples and mappings, however deep."""
    if isinstance(value, np.ndarray):
        return change(value)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {k: each_array(v, change) for k, v in value.items()}  # type: ignore[return-value]
    if isinstance(value, tuple):
        return _like(value, [each_array(v, change) for v in value])  # type: ignore[return-value]
    if names := _names(value):
        return type(value)(**{name: each_array(getattr(value, name), change) for name in names})
    return value


def _like(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple of other items, named as those of `value` where these have names."""
    return type(value)._make(items) if hasattr(value, "_make") else tuple(items)


def _names(value: object) -> tuple[str, ...]:
    """Fields of a dataclass; none of other values."""
    kind = type(value)
    if kind not in _NAMES:
        _NAMES[kind] = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
    return _NAMES[kind]


def sharding_of(candidates: Candidates, context: Context) -> Sharding:
    """The cuts of a batch of candidates as float arrays; a micro batch counts its sequences."""
    return Sharding(
        tp=candidates.tp.astype(np.float64),
        cp=candidates.cp.astype(np.float64),
        ulysses=candidates.ulysses.astype(np.float64),
        ep=candidates.ep.astype(np.float64),
        etp=candidates.etp.astype(np.float64),
        micro_batch_size=candidates.micro_batch_size.astype(np.float64) * context.sequences_per_sample,
        sequence_parallel=candidates.sequence_parallel,
        gathers_tokens=candidates.moe_dispatcher == ALL_GATHER,
        paired=candidates.paired,
        sends_once=candidates.moe_dispatcher == DEEPEP,
        turns_tokens=(candidates.moe_dispatcher == SEQUENTIAL) & (candidates.etp > 1),
        seq_length=float(context.seq_length),
    )


@dataclass(frozen=True)
class _Batch:
    """Candidates whose layers are priced together."""

    context: Context
    candidates: Candidates
    shard: Sharding
    exchange: ExchangeFeatures
    groups: Groups
    prices: Prices

    @classmethod
    def of(cls, context: Context, candidates: Candidates) -> _Batch:
        shard = sharding_of(candidates, context)
        groups = Groups.of(shard, context.machine)
        return cls(context, candidates, shard, context.exchange_features(candidates), groups, Prices())

    def inputs(
        self, table: LayerTable, features: ExchangeFeatures | None = None, cut: Sharding | None = None
    ) -> LayerInputs:
        features, shard = features or self.exchange, cut or self.shard
        return LayerInputs(table, shard, self.context.machine, features, self.groups, self.prices)

    def piece(self, table: Callable[[ModelSpec, Sharding, OperatorFeatures], LayerTable]) -> LayerInputs:
        """Of a piece without experts, which no schedule pairs."""
        even = replace(self.exchange, balance=even_balance(len(self.candidates)))
        return self.inputs(table(self.context.model, self.shard, self.context.operators), even)

    def tables(self, *, experts: bool, cut: Sharding | None = None) -> dict[int, LayerTable]:
        """Of kinds of layers with or without experts, and of the prediction module, by their place."""
        model, on, shard = self.context.model, self.context.operators, cut or self.shard
        kinds = [kind for kind, _ in self.context.layer_kinds]
        tables = {
            place: layer_table(model, shard, on, kind)
            for place, kind in enumerate(kinds)
            if (kind[0] == "moe") == experts
        }
        last = last_kind(model)
        if model.num_nextn_predict_layers and (last.mlp == "moe") == experts:
            tables[MODULE] = mtp_table(model, shard, on, tables[kinds.index(last)] if last in kinds else None)
        return tables


def unit_costs(context: Context, candidates: Candidates, *, one_machine: bool = False) -> UnitCosts:
    """Costs of every layer kind for every candidate given (make them distinct first).

    one_machine : the context's machine has no number that differs from candidate to candidate. What has no experts is
        then priced once for all ways to cut experts.
    """
    return _levelled(_unlevelled(context, candidates, one_machine), context)


def layer_inputs(context: Context, candidates: Candidates) -> Iterator[tuple[LayerInputs, float]]:
    """Inputs of formulas for every kind of layer, then of embedding, head and prediction modules, and how many of each
    the model has.
    """
    batch, model = _Batch.of(context, candidates), context.model
    tables = batch.tables(experts=False) | batch.tables(experts=True)
    for place, (_, count) in enumerate(context.layer_kinds):
        yield batch.inputs(tables[place]), float(count)
    for table in (embedding_table, head_table):
        yield batch.piece(table), 1.0
    if MODULE in tables:
        yield batch.inputs(tables[MODULE]), float(model.num_nextn_predict_layers)


def tensor_bytes(context: Context, candidates: Candidates) -> dict[str, dict[str, Floats]]:
    """Bytes that a layer of each class keeps of each tensor, of a micro batch at the worst moment [n], by class."""
    batch = _Batch.of(context, candidates)
    peak = batch.exchange.balance.peak
    by_class: dict[str, dict[str, Floats]] = {}
    for place, table in {**batch.tables(experts=False), **batch.tables(experts=True)}.items():
        if place != MODULE:
            tensors = {t.name: np.asarray(t.kept_bytes * (peak if t.per_expert else 1.0)) for t in table.tensors}
            by_class.setdefault(table.layer_class, tensors)
    return by_class


def costs_under(
    contexts: Sequence[Context], candidates: Candidates, *, one_machine: bool = False
) -> Iterator[UnitCosts]:
    """`unit_costs` in each of some contexts; what they share with the first, where they differ in LEVELLING, once."""
    first, *others = contexts
    shared = _unlevelled(first, candidates, one_machine)
    yield _levelled(shared, first)
    for other in others:
        if other.mechanisms ^ first.mechanisms <= LEVELLING and other.operators == first.operators:
            yield _levelled(shared, other)
        else:
            yield unit_costs(other, candidates, one_machine=one_machine)


@dataclass(frozen=True)
class _Unlevelled:
    """Costs with experts where the framework places them: layers and prediction modules by place, and the pieces.

    tables : of what has experts, by place.
    """

    one_machine: bool
    whole: _Batch
    tables: dict[int, LayerTable]
    layers: dict[int, LayerCost]
    embedding: LayerCost
    head: LayerCost


def _unlevelled(context: Context, candidates: Candidates, one_machine: bool) -> _Unlevelled:
    whole = few = _Batch.of(context, candidates)
    if one_machine:
        # Groups that gather sharded parameters depend on how experts are cut.
        first, which = distinct_cuts(candidates, by_replicas=context.cuts_by_replicas, experts=context.fsdp)
        if len(first) < len(candidates):
            few = _Batch.of(context, candidates.take(first))

    def of_all(cost: LayerCost) -> LayerCost:
        return cost if few is whole else each_array(cost, lambda a: a[which] if a.shape == first.shape else a)

    tables = whole.tables(experts=True)
    return _Unlevelled(
        one_machine,
        whole,
        tables,
        {n: of_all(layer_cost(few.inputs(table))) for n, table in few.tables(experts=False).items()}
        | {n: layer_cost(whole.inputs(table)) for n, table in tables.items()},
        of_all(layer_cost(few.piece(embedding_table), pairs=False)),
        of_all(layer_cost(few.piece(head_table), pairs=False)),
    )


def _levelled(plain: _Unlevelled, context: Context) -> UnitCosts:
    """With experts where the context's features place them."""
    kinds, exchange = context.layer_kinds, plain.whole.exchange
    routed, moved = _with_experts(plain, context)
    layers, order = plain.layers | routed, range(len(kinds))
    return UnitCosts(
        layers=tuple(_alone(layers[n]) for n in order),
        counts=tuple(count for _, count in kinds),
        embedding=plain.embedding,
        head=plain.head,
        mtp=_alone(layers[MODULE]) if MODULE in layers else None,
        shard=plain.whole.shard,
        pairs=_pairs([layers[n] for n in order], exchange),
        moved={n: _alone(layer) for n, layer in moved.items()},
        moved_pairs=_pairs([moved.get(n, layers[n]) for n in order], exchange) if moved else (),
    )


def _with_experts(plain: _Unlevelled, context: Context) -> tuple[dict[int, LayerCost], dict[int, LayerCost]]:
    """Costs of what routes tokens to copies of experts by its place in the model, and of what migrates experts."""
    batch, candidates = plain.whole, plain.whole.candidates
    exchange = batch.exchange
    if "mutual_routing" in context.mechanisms and plain.tables:
        # Hot experts are copied whole, and their tokens left out of a flat exchange.
        flat = np.isin(candidates.moe_dispatcher, [FLAT, SEQUENTIAL])
        may_copy = np.asarray(context.levels_experts(candidates) & (candidates.etp == 1) & flat)
        if not plain.one_machine:
            return _with_copies(batch, plain.layers, may_copy, context), {}
        # Most candidates can't copy: only those that can are priced.
        rows = np.flatnonzero(may_copy)
        copying = _Batch.of(batch.context, candidates.take(rows))
        before = {n: at_rows(plain.layers[n], rows) for n in plain.tables}
        copied = _with_copies(copying, before, may_copy[rows], context)
        return {n: _put(cost, plain.layers[n], rows, len(candidates)) for n, cost in copied.items()}, {}
    if "expert_migration" in context.mechanisms and plain.tables:
        balance = migrated_balance(context.loads, context.expert_ranks(candidates))
        features = replace(exchange, balance=where_each(context.levels_experts(candidates), balance, exchange.balance))
        return {}, {n: layer_cost(batch.inputs(table, features)) for n, table in plain.tables.items()}
    return {}, {}


def _with_copies(
    batch: _Batch, plain: Mapping[int, LayerCost], may_copy: npt.NDArray[np.bool_], context: Context
) -> dict[int, LayerCost]:
    """Costs with copies of the hot experts where that is allowed and faster than without, by place."""
    shard, exchange = batch.shard, batch.exchange
    balance = routed_balance(context.loads, context.expert_ranks(batch.candidates), may_copy)
    routed, copied = replace(exchange, balance=balance), replace(shard, hot_experts=balance.hot_experts)
    tables = batch.tables(experts=True, cut=copied)
    costs = {n: layer_cost(batch.inputs(table, routed, copied)) for n, table in tables.items()}
    return {n: _faster(cost, plain[n], exchange) for n, cost in costs.items()}


def _alone(cost: LayerCost) -> LayerCost:
    """A cost without its part in pairs, which is priced by pairs of kinds."""
    return cost if cost.pairing is None else replace(cost, pairing=None)


def _pairs(layers: list[LayerCost], exchange: ExchangeFeatures) -> Pairs:
    return tuple(tuple(_pair(first, second, exchange) for second in layers) for first in layers)


def _pair(forward: LayerCost, backward: LayerCost, exchange: ExchangeFeatures) -> PairCost:
    if forward.pairing is None or backward.pairing is None:
        return PairCost(*(np.zeros(1) for _ in range(3)))
    return pair_cost(forward.pairing, backward.pairing, exchange.paired)


def _faster(first: LayerCost, second: LayerCost, exchange: ExchangeFeatures) -> LayerCost:
    """Per candidate the first where it takes less time, alone and beside another micro batch's passes."""
    alone = second.alone_s - first.alone_s
    beside = alone - (_pair(second, second, exchange).hidden_s - _pair(first, first, exchange).hidden_s)
    saved = np.where(exchange.paired, np.minimum(alone, beside), alone)
    return where_each(saved > 0.0, first, second)


def where_each(condition: npt.NDArray[np.bool_], first: T, second: T) -> T:
    """`first` where the condition holds, array by array; both have the same structure."""
    return each_pair(first, second, lambda one, other: np.where(condition, one, other))


def mean_of(weighted: Sequence[tuple[T, float]]) -> T:
    """Sum of costs times their weights, array by array; memory choices that one of them lacks are left out."""

    def scaled(cost: T, weight: float) -> T:
        return cost if weight == 1.0 else each_array(cost, lambda array: np.asarray(array * weight))

    total, *others = (scaled(*each) for each in weighted)
    for other in others:
        total = each_pair(total, other, np.add)
    return total


def _put(few: T, many: T, rows: Ints, length: int) -> T:
    """`many`, of some length, with `few` at some rows."""

    def put(new: Array, old: Array) -> Array:
        if old.shape[:1] in ((), (1,)) and np.array_equal(new, old):
            return old
        whole = np.array(np.broadcast_to(old, (length, *old.shape[1:])))
        whole[rows] = new
        return whole

    return each_pair(few, many, put)


def each_pair(first: T, second: T, change: Callable[[Array, Array], Array]) -> T:
    """Every array of one value with its counterpart in another of the same structure, however deep."""
    if first is second:
        return first
    if isinstance(first, np.ndarray):
        return change(first, second)  # type: ignore[arg-type, return-value]
    if isinstance(first, dict) and isinstance(second, dict):
        return {k: each_pair(first[k], second[k], change) for k in first if k in second}  # type: ignore[return-value]
    if isinstance(first, tuple) and isinstance(second, tuple):
        pairs = zip(first, second, strict=True)
        return _like(first, [each_pair(a, b, change) for a, b in pairs])  # type: ignore[return-value]
    if names := _names(first):
        return type(first)(**{n: each_pair(getattr(first, n), getattr(second, n), change) for n in names})
    return first


KEPT_SHARDINGS = 256
"""Cuts whose costs are kept alone: candidates that are planned share a few."""


@dataclass(frozen=True, eq=False)
class CutCosts:
    """Costs of candidates, under the features that each of them uses.

    tables : costs of cuts. table, cut [n] : the table of each candidate, and its row there.
    """

    tables: tuple[UnitCosts, ...]
    table: Ints
    cut: Ints

    def of(self, rows: Ints | slice) -> UnitCosts:
        """Of the candidates at some rows, which share a context."""
        table = self.table[rows]
        return self.tables[int(table[0])].take(self.cut[rows])

    def at(self, index: int) -> UnitCosts:
        """Of one candidate."""
        return self._alone(int(self.table[index]), int(self.cut[index]))

    @cached_property
    def _alone(self) -> Callable[[int, int], UnitCosts]:
        tables = self.tables

        @lru_cache(maxsize=KEPT_SHARDINGS)
        def alone(table: int, cut: int) -> UnitCosts:
            return tables[table].take(np.array([cut]))

        return alone

    def take(self, rows: Ints) -> CutCosts:
        """Of the candidates at some rows alone."""
        return CutCosts(self.tables, self.table[rows], self.cut[rows])


def joined(parts: Sequence[CutCosts]) -> CutCosts:
    """Of the candidates of all parts, in order."""
    first = np.cumsum([0, *(len(part.tables) for part in parts)])
    return CutCosts(
        tuple(table for part in parts for table in part.tables),
        np.concatenate([part.table + start for part, start in zip(parts, first, strict=False)]),
        np.concatenate([part.cut for part in parts]),
    )


def scalar_at(values: object, index: int) -> float:
    """Entry `index` of an array [n], or the one value that holds for all candidates."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        return float(array)
    return float(array[0] if array.shape[0] == 1 else array[index])


# Which of the features that `auto` leaves open each candidate uses.
def fastest_costs(context: Context, candidates: Candidates, *, one_machine: bool = False) -> tuple[UnitCosts, Ints]:
    """Costs of every candidate under its fastest features, and their place: 0 the context, then its alternatives.

    Time is that of one micro batch through all layers and back, in a pair where the schedule pairs. Of equals the first
    is used, and no alternative where a rule of the target asks for a feature that it lacks. What experts that migrate
    cost is left out of their time: they give way to copies only where those are faster all the same.

    one_machine : as of `unit_costs`.
    """
    costs_of = costs_under((context, *context.alternatives), candidates, one_machine=one_machine)
    costs = next(costs_of)
    which = np.zeros(len(candidates), dtype=np.int64)
    least = _seconds(costs, candidates)
    for place, (other, other_costs) in enumerate(zip(context.alternatives, costs_of, strict=True), start=1):
        seconds = _seconds(other_costs, candidates)
        better = (seconds < least) & _allowed(other, context, candidates)
        if better.any():
            costs = where_each(better, _alike(other_costs, costs), _alike(costs, other_costs))
            which, least = np.where(better, place, which), np.where(better, seconds, least)
    return costs, which


def resolved(context: Context, candidate: Candidates) -> Context:
    """The context of one candidate: the features that it uses are on, and nothing is open."""
    if not context.alternatives:
        return context
    place = int(fastest_costs(context, candidate)[1][0])
    return closed(context)[place]


def closed(context: Context) -> tuple[Context, ...]:
    """The context and its alternatives, by place, with nothing open."""
    return (replace(context, alternatives=()), *context.alternatives)


def _seconds(costs: UnitCosts, candidates: Candidates) -> Floats:
    """Of a micro batch through all layers, with experts where they migrate to [n]."""
    total = np.zeros(len(candidates))
    for place, (layer, count) in enumerate(zip(costs.layers, costs.counts, strict=True)):
        pairs = costs.moved_pairs or costs.pairs
        hidden = np.where(candidates.paired, pairs[place][place].hidden_s, 0.0)
        total = total + count * (costs.moved.get(place, layer).alone_s - hidden)
    module = costs.moved.get(MODULE, costs.mtp)
    return total if module is None else np.asarray(total + module.alone_s)


def _allowed(other: Context, context: Context, candidates: Candidates) -> Bools:
    """Candidates for which the target's rules on features leave the alternative [n]."""
    changed = {f"on_{name}" for name in other.features ^ context.features}
    values, legal = values_of(candidates, other.facts), np.ones(len(candidates), dtype=np.bool_)
    scope = scope_of(other.facts, other.target)
    for rule in load_rules():
        if rule.binds(scope) and rule.names() & changed:
            legal &= rule.mask(values)
    return legal


def _alike(costs: UnitCosts, other: UnitCosts) -> UnitCosts:
    """The costs with a place for migrated experts where the other has one: theirs do not move."""
    if len(costs.moved) >= len(other.moved):
        return costs
    layers = dict(enumerate(costs.layers)) | ({MODULE: costs.mtp} if costs.mtp is not None else {})
    return replace(costs, moved={place: layers[place] for place in other.moved}, moved_pairs=costs.pairs)
