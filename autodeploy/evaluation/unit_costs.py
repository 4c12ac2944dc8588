"""Costs that depend on how tensors are cut, not on the pipeline: computed once per distinct cut, for all candidates."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from autodeploy.evaluation.layer_cost import LayerCost, layer_cost
from autodeploy.evaluation.options import ALL_GATHER, ExchangeFeatures
from autodeploy.evaluation.pair_windows import PairCost, pair_cost
from autodeploy.strategies.candidates import PAIRED, Candidates
from autodeploy.workload.layers import embedding_table, head_table, layer_kinds, layer_table, mtp_table
from autodeploy.workload.operators import Sharding

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context

T = TypeVar("T")


@dataclass(frozen=True)
class UnitCosts:
    """Costs of one layer of each kind and of the fixed pieces, one entry per candidate or per distinct cut."""

    layers: tuple[LayerCost, ...]
    counts: tuple[int, ...]
    embedding: LayerCost
    head: LayerCost
    mtp: LayerCost | None
    shard: Sharding
    pairs: tuple[tuple[PairCost, ...], ...]  # of a forward of one kind beside a backward of another

    def take(self, index: Any) -> UnitCosts:
        """The costs of the candidates at an index array."""
        return UnitCosts(
            tuple(_take(c, index) for c in self.layers),
            self.counts,
            _take(self.embedding, index),
            _take(self.head, index),
            None if self.mtp is None else _take(self.mtp, index),
            _take(self.shard, index),
            tuple(tuple(_take(pair, index) for pair in row) for row in self.pairs),
        )


def _take(value: T, index: Any) -> T:
    """Index every array inside a value; scalars of one entry hold for all candidates."""
    if isinstance(value, np.ndarray):
        return value if value.shape[:1] in ((), (1,)) else value[index]
    if isinstance(value, dict):
        return {k: _take(v, index) for k, v in value.items()}  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _take(getattr(value, f.name), index) for f in fields(value)})
    return value


def distinct_cuts(candidates: Candidates) -> tuple[Candidates, npt.NDArray[np.int64]]:
    """One candidate for each distinct cut of tensors, and which of them each candidate has."""
    paired = np.isin(candidates.schedule, PAIRED)
    key = np.zeros(len(candidates), dtype=np.int64)
    for column, radix in (
        (candidates.tp, 4096),
        (candidates.cp, 4096),
        (candidates.ulysses, 64),
        (candidates.ep, 4096),
        (candidates.etp == candidates.tp, 2),
        (candidates.micro_batch_size, 4096),
        (candidates.moe_dispatcher, 4),
        (candidates.sequence_parallel, 2),
        (paired, 2),
    ):
        key = key * radix + column.astype(np.int64) % radix
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return candidates.take(first), inverse.astype(np.int64)


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
    exchange = context.exchange_features(candidates)
    peak = context.peak_imbalance

    def cost(table: Any, features: ExchangeFeatures = exchange) -> LayerCost:
        return layer_cost(table, shard, context.machine, features, peak_imbalance=peak)

    def alone(table: Any) -> LayerCost:
        """A piece: no schedule pairs it."""
        return replace(cost(table), pairing=None)

    kinds = layer_kinds(model)
    layers = tuple(cost(layer_table(model, shard, context.operators, kind)) for kind, _ in kinds)
    return UnitCosts(
        layers=tuple(replace(layer, pairing=None) for layer in layers),
        counts=tuple(count for _, count in kinds),
        embedding=alone(embedding_table(model, shard)),
        head=alone(head_table(model, shard, context.operators)),
        mtp=alone(mtp_table(model, shard, context.operators)) if model.num_nextn_predict_layers else None,
        shard=shard,
        pairs=tuple(tuple(_pair(first, second, exchange) for second in layers) for first in layers),
    )


def _pair(forward: LayerCost, backward: LayerCost, exchange: ExchangeFeatures) -> PairCost:
    if forward.pairing is None or backward.pairing is None:
        return PairCost(*(np.zeros(1) for _ in range(3)))
    return pair_cost(forward.pairing, backward.pairing, exchange.paired)
