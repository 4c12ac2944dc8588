"""Pipeline schedules as operation graphs: orders, makespan, closed forms and micro batches in flight."""

from __future__ import annotations

from cost_models.schedule.closed_forms import ClosedForm, closed_form_s
from cost_models.schedule.critical_path import SchedulePath, critical_path, critical_paths
from cost_models.schedule.in_flight import in_flight, in_flight_closed, in_flight_moments
from cost_models.schedule.orders import OperationOrder, ScheduleKind, group_size, operation_order, warm_up_slots
from cost_models.schedule.simulation import Timeline, makespan_s, pair_counts, simulate
from cost_models.schedule.stage_classes import StageClasses, closed_form_classes_s, fused_pairs

__all__ = [
    "ClosedForm",
    "OperationOrder",
    "ScheduleKind",
    "SchedulePath",
    "StageClasses",
    "Timeline",
    "closed_form_classes_s",
    "closed_form_s",
    "critical_path",
    "critical_paths",
    "fused_pairs",
    "group_size",
    "in_flight",
    "in_flight_closed",
    "in_flight_moments",
    "makespan_s",
    "operation_order",
    "pair_counts",
    "simulate",
    "warm_up_slots",
]
