"""Costs that depend on how tensors are cut, not on the pipeline: computed once per distinct cut, for all candidates."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from autodeploy.evaluation.exchanges import Groups
from autodeploy.evaluation.expert_balance import even_balance, migrated_balance, routed_balance
from autodeploy.evaluation.layer_cost import LayerCost, layer_cost
from autodeploy.evaluation.options import ALL_GATHER, FLAT, SEQUENTIAL, ExchangeFeatures
from autodeploy.evaluation.pair_windows import PairCost, pair_cost
from autodeploy.workload.layers import embedding_table, head_table, layer_kinds, layer_table, mtp_table
from autodeploy.workload.operators import Sharding

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.strategies.candidates import Candidates
    from autodeploy.workload.operators import LayerTable

T = TypeVar("T")
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
        return UnitCosts(
            tuple(_take(c, index) for c in self.layers),
            self.counts,
            _take(self.embedding, index),
            _take(self.head, index),
            None if self.mtp is None else _take(self.mtp, index),
            _take(self.shard, index),
            _take_pairs(self.pairs, index),
            _take(self.moved, index),
            _take_pairs(self.moved_pairs, index),
        )


def _take_pairs(pairs: Pairs, index: Any) -> Pairs:
    return tuple(tuple(_take(pair, index) for pair in row) for row in pairs)


def _take(value: T, index: Any) -> T:
    """Index every array inside a value; scalars of one entry hold for all candidates."""
    if isinstance(value, np.ndarray):
        return value if value.shape[:1] in ((), (1,)) else value[index]
    if isinstance(value, dict):
        return {k: _take(v, index) for k, v in value.items()}  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _take(getattr(value, f.name), index) for f in fields(value)})
    return value


def sharding_of(candidates: Candidates, seq_length: float) -> Sharding:
    """The cuts of a batch of candidates as float arrays."""
    return Sharding(
        tp=candidates.tp.astype(np.float64),
        cp=candidates.cp.astype(np.float64),
        ulysses=candidates.ulysses.astype(np.float64),
        ep=candidates.ep.astype(np.float64),
        etp=candidates.etp.astype(np.float64),
        micro_batch_size=candidates.micro_batch_size.astype(np.float64),
        sequence_parallel=candidates.sequence_parallel,
        gathers_tokens=candidates.moe_dispatcher == ALL_GATHER,
        seq_length=float(seq_length),
    )


def unit_costs(context: Context, candidates: Candidates) -> UnitCosts:
    """Costs of every layer kind for every candidate given (make them distinct first)."""
    model, shard = context.model, sharding_of(candidates, context.seq_length)
    exchange, groups = context.exchange_features(candidates), Groups.of(shard, context.machine)

    def cost(table: Any, features: ExchangeFeatures = exchange, cut: Sharding = shard) -> LayerCost:
        return layer_cost(table, cut, context.machine, features, groups)

    def tables(cut: Sharding) -> dict[int, LayerTable]:
        """Of layers that may have experts."""
        found = {n: layer_table(model, cut, context.operators, kind) for n, (kind, _) in enumerate(kinds)}
        if model.num_nextn_predict_layers:
            found[MODULE] = mtp_table(model, cut, context.operators)
        return found

    kinds = layer_kinds(model)
    plain = tables(shard)
    layers = {n: cost(table) for n, table in plain.items()}
    moved: dict[int, LayerCost] = {}
    nodes = context.expert_nodes(candidates) if model.is_moe else np.ones(len(candidates))
    if "mutual_routing" in context.features and model.is_moe:
        may_copy = context.levels_experts(candidates) & _may_copy(candidates)
        balance = routed_balance(context, shard.ep, nodes, may_copy)
        routed, copied = replace(exchange, balance=balance), replace(shard, hot_experts=balance.hot_experts)
        for n, table in tables(copied).items():
            if table.choices_per_token:
                layers[n] = _faster(cost(table, routed, copied), layers[n], exchange)
    elif "expert_migration" in context.features and model.is_moe:
        balance = migrated_balance(context, shard.ep, nodes)
        levels = context.levels_experts(candidates)
        features = replace(exchange, balance=chosen(levels, balance, exchange.balance))
        moved = {n: cost(table, features) for n, table in plain.items() if table.choices_per_token}
    even = replace(exchange, balance=even_balance(len(candidates)))
    order = range(len(kinds))
    return UnitCosts(
        layers=tuple(_alone(layers[n]) for n in order),
        counts=tuple(count for _, count in kinds),
        embedding=_alone(cost(embedding_table(model, shard, context.operators), even)),
        head=_alone(cost(head_table(model, shard, context.operators), even)),
        mtp=_alone(layers[MODULE]) if MODULE in layers else None,
        shard=shard,
        pairs=_pairs([layers[n] for n in order], exchange),
        moved={n: _alone(layer) for n, layer in moved.items()},
        moved_pairs=_pairs([moved.get(n, layers[n]) for n in order], exchange) if moved else (),
    )


def _alone(cost: LayerCost) -> LayerCost:
    """A cost without its part in pairs, which is priced by pairs of kinds; no schedule pairs a piece."""
    return replace(cost, pairing=None)


def _pairs(layers: list[LayerCost], exchange: ExchangeFeatures) -> Pairs:
    return tuple(tuple(_pair(first, second, exchange) for second in layers) for first in layers)


def _pair(forward: LayerCost, backward: LayerCost, exchange: ExchangeFeatures) -> PairCost:
    if forward.pairing is None or backward.pairing is None:
        return PairCost(*(np.zeros(1) for _ in range(3)))
    return pair_cost(forward.pairing, backward.pairing, exchange.paired)


def _may_copy(candidates: Candidates) -> npt.NDArray[np.bool_]:
    """Hot experts are copied whole, and their tokens left out of a flat exchange."""
    return np.asarray((candidates.etp == 1) & np.isin(candidates.moe_dispatcher, [FLAT, SEQUENTIAL]))


def _faster(first: LayerCost, second: LayerCost, exchange: ExchangeFeatures) -> LayerCost:
    """Per candidate the first where it takes less time, alone and beside another micro batch's passes."""
    alone = second.alone_s - first.alone_s
    beside = alone - (_pair(second, second, exchange).hidden_s - _pair(first, first, exchange).hidden_s)
    saved = np.where(exchange.paired, np.minimum(alone, beside), alone)
    return chosen(saved > 0.0, first, second)


def chosen(condition: npt.NDArray[np.bool_], first: T, second: T) -> T:
    """`first` where the condition holds, array by array; both have the same structure."""
    if isinstance(first, np.ndarray):
        return np.where(condition, first, second)  # type: ignore[no-any-return, call-overload]
    if isinstance(first, dict) and isinstance(second, dict):
        return {k: chosen(condition, first[k], second[k]) for k in first if k in second}  # type: ignore[return-value]
    if isinstance(first, tuple) and isinstance(second, tuple):
        return tuple(chosen(condition, a, b) for a, b in zip(first, second, strict=True))  # type: ignore[return-value]
    if is_dataclass(first) and not isinstance(first, type):
        pairs = {f.name: (getattr(first, f.name), getattr(second, f.name)) for f in fields(first)}
        return type(first)(**{name: chosen(condition, a, b) for name, (a, b) in pairs.items()})
    return first
