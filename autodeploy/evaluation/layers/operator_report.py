"""The operators and exchanges of each kind of layer: their times, and what peak and bandwidth would allow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.entries import at
from autodeploy.evaluation.inputs.expert_balance import even_balance
from autodeploy.evaluation.layers.exchanges import Groups, LayerInputs, OneExchange, group_name
from autodeploy.evaluation.layers.lanes import beside_matrix_work_s
from autodeploy.evaluation.layers.layer_cost import layer_times
from autodeploy.evaluation.layers.unit_costs import sharding_of
from autodeploy.workload.layers import embedding_table, head_table, last_kind, layer_kinds, layer_table, mtp_table
from autodeploy.workload.operators import MATRIX_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.operator_time import OperatorTime
    from autodeploy.strategies.candidates import Candidates
    from autodeploy.workload.operators import LayerTable, Operator
    from cost_models.compute import ComputeRates


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """One operator for one micro batch: seconds under even load and on the busiest rank, and its least work."""

    op: Operator
    even: OperatorTime
    busiest: OperatorTime
    flops: float
    moved_bytes: float
    roofline_s: float


@dataclass(frozen=True, slots=True)
class ExchangeUse:
    """One exchange for one micro batch, with the ranks of its group and the outermost tier that it spans.

    message_bytes : of one; of a dispatch or combine with every copy of its tokens.
    """

    one: OneExchange
    group: str
    ranks: int
    tier: str
    message_bytes: float

    @property
    def runs(self) -> float:
        """How often both passes have it."""
        return at(self.one.exchange.forward_count, 0) + at(self.one.exchange.backward_count, 0)


@dataclass(frozen=True, slots=True)
class LayerUse:
    """A kind of layer, of which the model has `count`. beside_s : vector work beside matrix work, both passes."""

    name: str
    count: float
    operators: tuple[OperatorUse, ...]
    exchanges: tuple[ExchangeUse, ...]
    beside_s: float


def layer_uses(candidates: Candidates, context: Context, index: int) -> tuple[LayerUse, ...]:
    """Every kind of layer of candidate `index`, then embedding, head and prediction modules.

    Times are those that its estimate rests on: the operators of a layer add up to its `compute_s`, but for what runs
    beside matrix work.
    """
    one = candidates.take(np.asarray([index]))
    shard, features = sharding_of(one, context.seq_length), context.exchange_features(one)
    groups = Groups.of(shard, context.machine)
    even = replace(features, balance=even_balance(1))
    found = []
    for table, count, plain in _tables(context, one):
        layer = LayerInputs(table, shard, context.machine, even if plain else features, groups)
        times = layer_times(layer)
        beside = 0.0
        if layer.features.vector_parallel:
            beside = sum(at(beside_matrix_work_s(times.even, times.exchanged, backward=b), 0) for b in (False, True))
        operators = tuple(
            OperatorUse(op, times.even[op.name], times.busiest[op.name], *_least_work(op, context.machine.rates))
            for op in table.operators
        )
        exchanges = [_exchange_use(each, table, groups, context) for each in times.exchanged.each]
        used = tuple(each for each in exchanges if each.ranks > 1 and each.runs > 0.0)
        found.append(LayerUse(table.name, count, operators, used, beside))
    return tuple(found)


def _tables(context: Context, one: Candidates) -> Iterator[tuple[LayerTable, float, bool]]:
    """Tables with the layers that the model has of each, and whether they are pieces without experts."""
    model, on, shard = context.model, context.operators, sharding_of(one, context.seq_length)
    tables = {kind: layer_table(model, shard, on, kind) for kind, _ in layer_kinds(model)}
    for kind, count in layer_kinds(model):
        yield tables[kind], float(count), False
    yield embedding_table(model, shard, on), 1.0, True
    yield head_table(model, shard, on), 1.0, True
    if model.num_nextn_predict_layers:
        yield mtp_table(model, shard, on, tables[last_kind(model)]), float(model.num_nextn_predict_layers), False


def _least_work(op: Operator, rates: ComputeRates) -> tuple[float, float, float]:
    """FLOPs, bytes and the least seconds of all passes.

    A matrix multiplication does at least 2 m n k FLOPs a pass at peak, or moves both operands and the result once.
    """
    own = rates.wide() if op.wide or op.kind == "attention" else rates
    peak, bandwidth = at(np.asarray(own.peak_flops), 0), at(np.asarray(own.hbm_bytes_per_s), 0)
    if op.kind in MATRIX_KINDS:
        m, n, k, g = (at(np.asarray(value), 0) for value in (op.rows, op.columns, op.depth, op.groups))
        flops, moved = 2.0 * m * n * k * g, own.element_bytes * (m * k + k * n + m * n) * g
        passes = sum(at(np.asarray(often), 0) for often in op.passes)
        return passes * flops, passes * moved, passes * max(flops / peak, moved / bandwidth)
    if op.kind == "attention":
        flops = at(np.asarray(op.flops), 0) + at(np.asarray(op.backward_flops), 0)
        return flops, 0.0, flops / peak
    moved = at(np.asarray(op.forward_bytes), 0) + at(np.asarray(op.backward_bytes), 0)
    return 0.0, moved, moved / bandwidth


def _exchange_use(one: OneExchange, table: LayerTable, groups: Groups, context: Context) -> ExchangeUse:
    name = group_name(one.exchange)
    copies = table.choices_per_token if one.exchange.kind in {"dispatch", "combine"} else 1.0
    return ExchangeUse(
        one=one,
        group=name,
        ranks=round(at(getattr(groups, name).size, 0)),
        tier=context.machine.tiers[int(at(groups.outermost[name], 0))].name,
        message_bytes=copies * at(one.exchange.message_bytes, 0),
    )
