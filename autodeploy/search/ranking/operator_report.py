"""Time of a plan down to the operators and exchanges of each kind of layer, as a document.

Times are those that the plan's estimate rests on: the operators of a layer add up to its `compute_s`, but for what runs
beside matrix work.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.layers.exchanges import EXPERT_KINDS, LayerInputs, OneExchange
from autodeploy.costs.layers.layer_cost import issued, issuing_s, layer_times, synchronisation_s
from autodeploy.costs.layers.pair_windows import VECTOR_LANE, beside_matrix_work_s
from autodeploy.costs.layers.unit_costs import layer_inputs, scalar_at
from autodeploy.costs.workload.layers import layer_kinds
from autodeploy.costs.workload.operators import FORWARD, MATRIX_KINDS, group_of
from autodeploy.specs.plan_details import ExchangeRow, LayerOperators, OperatorReport, OperatorRow
from cost_models.host_bound import exposed_host_s

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.operator_time import OperatorTime
    from autodeploy.costs.workload.operators import Operator
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import Plan
    from cost_models.compute import ComputeRates


# What a device's lanes do in one micro batch.
# Sorting and reordering of routed rows: the class of operators that sort instructions speed up.
SORTING = frozenset({"routing", *(name for names in VECTOR_LANE.values() for name in names)})
CLASSES = ("flash_attention", "matmul", "sorting", "vector")


@dataclass(frozen=True, slots=True)
class LaneReport:
    """All layers of the model, one micro batch on one rank.

    shares : class of operators -> share of the seconds that operators take, forward and backward.
    sorting_hidden : share of the sorting class that runs beside matrix work.
    launches : operators and exchanges that the host issues for one layer, mean over the layers.
    issue_s : host seconds to issue one layer, none of a compiled graph; forward_issue_s : its forward pass alone.
    synchronisations : of all layers.
    event_s : what one synchronisation exposes; 0 without any.
    """

    shares: dict[str, float]
    sorting_hidden: float
    launches: float
    issue_s: float
    forward_issue_s: float
    synchronisations: float
    event_s: float


def class_of(name: str, kind: str) -> str:
    """The class of an operator."""
    if name in SORTING:
        return "sorting"
    return {"attention": "flash_attention", "gemm": "matmul", "grouped_gemm": "matmul"}.get(kind, "vector")


def lane_report(candidates: Candidates, context: Context, index: int) -> LaneReport:
    """The lanes of candidate `index`, from the tables and times that its estimate rests on."""
    seconds = dict.fromkeys(CLASSES, 0.0)
    hidden = synchronisations = event = 0.0
    calls, issuing = {False: 0.0, True: 0.0}, {False: 0.0, True: 0.0}
    kinds = len(context.layer_kinds)
    priced = list(islice(layer_inputs(context, candidates.take(np.asarray([index]))), kinds))
    for layer, count in priced:
        table, features = layer.table, layer.features
        layer_s = layer_times(layer)
        times, exchanged = layer_s.busiest, layer_s.exchanged
        for op in table.operators:
            seconds[class_of(op.name, op.kind)] += count * _both_s(times[op.name])
        for back in calls:
            calls[back] += count * scalar_at(issued(layer, exchanged, backward=back), 0)
            issuing[back] += count * scalar_at(issuing_s(layer, exchanged, backward=back), 0)
        if features.vector_parallel:
            hidden += count * sum(
                scalar_at(beside_matrix_work_s(times, exchanged, backward=back), 0) for back in (False, True)
            )
        waits = scalar_at(np.asarray(table.synchronisations), 0)
        if waits and not features.sync_free:
            synchronisations += count * waits
            restart, queued = synchronisation_s(layer, layer_s)
            event = max(event, _event_s(context, waits, restart, queued) / waits)
    total, layers = sum(seconds.values()), context.model.num_hidden_layers
    return LaneReport(
        shares={name: value / total for name, value in seconds.items()},
        sorting_hidden=hidden / seconds["sorting"] if seconds["sorting"] > 0.0 else 0.0,
        launches=sum(calls.values()) / layers,
        issue_s=sum(issuing.values()) / layers,
        forward_issue_s=issuing[False] / layers,
        synchronisations=synchronisations,
        event_s=event,
    )


def _both_s(time: OperatorTime) -> float:
    return scalar_at(time.forward_s, 0) + scalar_at(time.backward_s, 0)


def _event_s(context: Context, waits: float, restart_s: np.ndarray, queued_s: np.ndarray) -> float:
    """Seconds that the synchronisations of a layer expose on a device that is otherwise busy."""
    sync = context.machine.host.sync_s
    exposed_s = exposed_host_s(waits * sync, np.inf, waits, sync, restart_s=restart_s, queued_s=queued_s)
    return scalar_at(exposed_s, 0)


def operator_report(plan: Plan, candidate: Candidates, context: Context) -> OperatorReport:
    """The operators of a plan's candidate; a step has them for all its micro batches and the layers of a stage.

    Embedding, head and prediction modules lie on one stage, which has them whole. What is recomputed is not among them.
    """
    runs, pp = int(candidate.micro_batches[0]), int(candidate.pp[0])
    rates, kinds = context.machine.rates, len(layer_kinds(context.model))
    return OperatorReport(
        plan_id=plan.plan_id,
        step_time_s=plan.step_time_s,
        micro_batches=runs,
        layers_per_stage=context.model.num_hidden_layers / pp,
        peak_flops=scalar_at(rates.peak_flops, 0),
        hbm_bytes_per_s=scalar_at(rates.hbm_bytes_per_s, 0),
        layers=tuple(
            _layer(layer, count, runs * count / (pp if number < kinds else 1))
            for number, (layer, count) in enumerate(layer_inputs(context, candidate))
        ),
    )


def _layer(layer: LayerInputs, count: float, runs: float) -> LayerOperators:
    """A kind of layer, of which the model has `count` and the stage runs `runs` in a step."""
    times = layer_times(layer)
    beside = 0.0
    if layer.features.vector_parallel:
        beside = sum(scalar_at(beside_matrix_work_s(times.even, times.exchanged, backward=b), 0) for b in (False, True))
    rows = [(op, times.even[op.name], times.busiest[op.name]) for op in layer.table.operators]
    exchanges = [_exchange(one, layer, runs) for one in times.exchanged.each]
    return LayerOperators(
        name=layer.table.name,
        layers=count,
        operators=tuple(_operator(*row, layer.machine.rates, runs) for row in rows),
        exchanges=tuple(row for row in exchanges if row.ranks > 1 and row.forward_count + row.backward_count > 0.0),
        beside_s=beside,
    )


def _operator(op: Operator, even: OperatorTime, busiest: OperatorTime, rates: ComputeRates, runs: float) -> OperatorRow:
    forward, backward = scalar_at(even.forward_s, 0), scalar_at(even.backward_s, 0)
    whole, longest = forward + backward, scalar_at(busiest.forward_s, 0) + scalar_at(busiest.backward_s, 0)
    flops, moved_bytes, roofline_s, bound_by_compute = _least_work(op, rates)
    return OperatorRow(
        name=op.name,
        kind=op.kind,
        forward_s=forward,
        backward_s=backward,
        uneven_s=longest - whole,
        flops=flops,
        moved_bytes=moved_bytes,
        roofline_s=roofline_s,
        bound="compute" if bound_by_compute else "memory",
        roofline_pct=100.0 * roofline_s / whole if whole > 0.0 else 0.0,
        step_s=runs * longest,
        beyond_s=runs * max(0.0, longest - roofline_s),
    )


def _least_work(op: Operator, rates: ComputeRates) -> tuple[float, float, float, bool]:
    """FLOPs, bytes and the least seconds of all passes and runs, and whether FLOPs set them.

    A matrix multiplication does at least 2 m n k FLOPs a pass at peak, or moves both operands and the result once.
    """
    own = rates.wide() if op.wide or op.kind == "attention" else rates
    peak, bandwidth = scalar_at(np.asarray(own.peak_flops), 0), scalar_at(np.asarray(own.hbm_bytes_per_s), 0)
    if op.kind in MATRIX_KINDS:
        m, n, k, g = (scalar_at(np.asarray(value), 0) for value in (op.rows, op.columns, op.depth, op.groups))
        flops, moved = 2.0 * m * n * k * g, own.element_bytes * (m * k + k * n + m * n) * g
        passes = op.runs * sum(scalar_at(np.asarray(often), 0) for often in op.passes)
        compute_s, memory_s = flops / peak, moved / bandwidth
        return passes * flops, passes * moved, passes * max(compute_s, memory_s), compute_s >= memory_s
    if op.kind == "attention":
        flops = op.runs * (scalar_at(np.asarray(op.flops), 0) + scalar_at(np.asarray(op.backward_flops), 0))
        return flops, 0.0, flops / peak, True
    moved = op.runs * (scalar_at(np.asarray(op.forward_bytes), 0) + scalar_at(np.asarray(op.backward_bytes), 0))
    return 0.0, moved, moved / bandwidth, False


def _exchange(one: OneExchange, layer: LayerInputs, runs: float) -> ExchangeRow:
    """An exchange with the ranks of its group and the outermost tier that it spans.

    Its message: of one, the forward pass's where they differ; of a dispatch or combine with every copy of its tokens.
    """
    exchange, groups, group = one.exchange, layer.groups, group_of(one.exchange)
    counts = scalar_at(exchange.forward_count, 0), scalar_at(exchange.backward_count, 0)
    once, exposed = (
        scalar_at(one.once_s[FORWARD], 0),
        sum(scalar_at(one.exposed_s(backward=b), 0) for b in (False, True)),
    )
    copies = layer.table.choices_of(exchange) if exchange.kind in EXPERT_KINDS else 1.0
    whole = sum(scalar_at(one.once_s[of], 0) * scalar_at(count, 0) for of, count in exchange.sent)
    message = copies * scalar_at(exchange.message_bytes, 0)
    return ExchangeRow(
        name=exchange.name,
        group=group,
        ranks=round(scalar_at(getattr(groups, group).size, 0)),
        tier=layer.machine.tiers[int(scalar_at(groups.outermost[group], 0))].name,
        message_bytes=message,
        once_s=once,
        forward_count=counts[0],
        backward_count=counts[1],
        exposed_s=exposed,
        hidden_pct=100.0 * max(0.0, 1.0 - exposed / whole) if whole > 0.0 else 0.0,
        bytes_per_s=message / once if once > 0.0 else 0.0,
        step_s=runs * exposed,
    )
