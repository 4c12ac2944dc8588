"""Figures that a plan does not carry, read off the formulas that made it: operators by class, the host, bubbles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layers.operator_time import operator_time
from autodeploy.evaluation.layers.unit_costs import sharding_of
from autodeploy.ranking.lane_report import lane_report
from autodeploy.workload.layers import layer_kinds, layer_table
from cost_models.schedule import operation_order, simulate

if TYPE_CHECKING:
    from autodeploy.planner import Predicted

# Operators that the articles' three rewrites touch: attention, matrix products, and the permute and sort class.
REWRITTEN_KINDS = frozenset({"attention", "gemm", "grouped_gemm", "movement"})


def operator_seconds(predicted: Predicted) -> dict[str, float]:
    """Seconds of one micro batch through all layers, forward and backward, by kind of operator; experts balanced."""
    context, candidate = predicted.context, predicted.candidate
    shard = sharding_of(candidate, context)
    seconds: dict[str, float] = {}
    for kind, count in layer_kinds(context.model):
        for op in layer_table(context.model, shard, context.operators, kind).operators:
            time = operator_time(op, context.machine, 1.0)
            once = float(np.asarray(time.forward_s).flat[0] + np.asarray(time.backward_s).flat[0])
            seconds[op.kind] = seconds.get(op.kind, 0.0) + count * once
    return seconds


def rewritten_share(predicted: Predicted) -> float:
    """Share of the layers' computation in operators that RECT-FA, AscendP-MM and VectorSort rewrite."""
    seconds = operator_seconds(predicted)
    return sum(s for kind, s in seconds.items() if kind in REWRITTEN_KINDS) / sum(seconds.values())


def host_event_s(predicted: Predicted) -> float:
    """Host seconds for the forward pass of one layer: issuing its operators, and every round trip of its waits.

    Whether the device waits for them or not. Source of the reading: a host-bound event of the articles is what the host
    does between two points at which it is ahead of the device, once a layer with experts; it synchronises there more
    than once (`host_operators.synchronisations`).
    """
    report = lane_report(predicted.candidate, predicted.context, 0)
    model = predicted.context.model
    layers = sum(model.is_moe_layer(layer) for layer in range(model.num_hidden_layers))
    waits = report.synchronisations / layers if layers else 0.0
    return report.forward_issue_s + waits * float(np.asarray(predicted.context.machine.host.sync_s))


def ideal_bubble(predicted: Predicted) -> float:
    """Idle share of the pipeline when all chunks take the same time and sends take none, from the schedule's graph.

    For 1F1B and its interleaved form that is (P - 1) / (P - 1 + M V): arXiv 2104.04473, section 2.2.
    """
    strategy, micro_batches = predicted.plan.strategy, predicted.plan.micro_batches
    shape = (1, strategy.pp, strategy.vpp)
    order = operation_order(strategy.schedule, strategy.pp, strategy.vpp, micro_batches)
    nothing_hidden = np.zeros((*shape, strategy.vpp))
    timeline = simulate(order, np.full(shape, 1.0), np.full(shape, 2.0), nothing_hidden)
    return float(timeline.idle_s[0, 0] / timeline.makespan_s[0])
