"""What a device's lanes do in one micro batch: operators by class, and the host that issues them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layers.layer_cost import issued, layer_times, synchronisation_s
from autodeploy.evaluation.layers.pair_windows import VECTOR_LANE, beside_matrix_work_s
from autodeploy.evaluation.layers.unit_costs import layer_inputs, scalar_at
from cost_models.host_bound import exposed_host_s, kernel_launch_s

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.operator_time import OperatorTime
    from autodeploy.strategies.candidates import Candidates

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
    calls = {False: 0.0, True: 0.0}
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
    compiled, launch_s = priced[0][0].features.compiled, context.machine.host.issue_s
    each = 0.0 if compiled else scalar_at(kernel_launch_s(1.0, launch_s, 0.0, 0.0), 0)
    return LaneReport(
        shares={name: value / total for name, value in seconds.items()},
        sorting_hidden=hidden / seconds["sorting"] if seconds["sorting"] > 0.0 else 0.0,
        launches=sum(calls.values()) / layers,
        issue_s=each * sum(calls.values()) / layers,
        forward_issue_s=each * calls[False] / layers,
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
