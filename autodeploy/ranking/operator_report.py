"""Where the time of a plan goes, down to operators, as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.evaluation.entries import at
from autodeploy.evaluation.layers.operator_report import layer_uses
from autodeploy.specs.operators import ExchangeRow, LayerOperators, OperatorReport, OperatorRow
from autodeploy.workload.layers import layer_kinds

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.operator_report import ExchangeUse, LayerUse, OperatorUse
    from autodeploy.specs.planset import Plan
    from autodeploy.strategies.candidates import Candidates


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
        peak_flops=at(rates.peak_flops, 0),
        hbm_bytes_per_s=at(rates.hbm_bytes_per_s, 0),
        layers=tuple(
            _layer(use, runs * use.count / (pp if number < kinds else 1))
            for number, use in enumerate(layer_uses(candidate, context, 0))
        ),
    )


def _layer(use: LayerUse, runs: float) -> LayerOperators:
    return LayerOperators(
        name=use.name,
        layers=use.count,
        operators=tuple(_operator(each, runs) for each in use.operators),
        exchanges=tuple(_exchange(each, runs) for each in use.exchanges),
        beside_s=use.beside_s,
    )


def _operator(use: OperatorUse, runs: float) -> OperatorRow:
    forward, backward = at(use.even.forward_s, 0), at(use.even.backward_s, 0)
    whole = forward + backward
    busiest = at(use.busiest.forward_s, 0) + at(use.busiest.backward_s, 0)
    return OperatorRow(
        name=use.op.name,
        kind=use.op.kind,
        forward_s=forward,
        backward_s=backward,
        uneven_s=busiest - whole,
        flops=use.flops,
        moved_bytes=use.moved_bytes,
        roofline_s=use.roofline_s,
        roofline_pct=100.0 * use.roofline_s / whole if whole > 0.0 else 0.0,
        step_s=runs * busiest,
    )


def _exchange(use: ExchangeUse, runs: float) -> ExchangeRow:
    exchange, once = use.one.exchange, at(use.one.once_s, 0)
    counts = at(exchange.forward_count, 0), at(exchange.backward_count, 0)
    exposed = at(use.one.exposed_forward_s, 0) + at(use.one.exposed_backward_s, 0)
    whole, message = once * sum(counts), use.message_bytes
    return ExchangeRow(
        name=exchange.name,
        group=use.group,
        ranks=use.ranks,
        tier=use.tier,
        message_bytes=message,
        once_s=once,
        forward_count=counts[0],
        backward_count=counts[1],
        exposed_s=exposed,
        hidden_pct=100.0 * max(0.0, 1.0 - exposed / whole) if whole > 0.0 else 0.0,
        bytes_per_s=message / once if once > 0.0 else 0.0,
        step_s=runs * exposed,
    )
