"""Pipeline schedules as operation graphs: orders, makespan, closed forms and micro batches in flight.

Parameters
----------
kind : name of a registered schedule: 1f1b, interleaved, dualpipev, dualpipe, adaptive_pipe, one's own.
how : a `Schedule`: what a schedule is.
pp : pipeline parallel size [stages].
vpp : virtual stages on a device [chunks].
micro_batches : of a step on one data-parallel rank [count].
size : micro batches that run through one chunk before the next has its turn, where it is known already [micro batches].
order : an `OperationOrder`, the slots of every device.
stage : pipeline stage: the device that runs it.
forward_s, backward_s : one chunk's pass for one micro batch [n, P, v].
hidden_pair_s : forward and backward less their fused pair: what they hide of each other [n, P, f, b].
p2p_s : an edge between two stages.
split_s : dW after the output of a split backward has left.
makespan_s : first forward to last backward.
"""

from __future__ import annotations

from cost_models.schedule.closed_forms import (
    FIRST,
    LAST,
    MIDDLE,
    StageClasses,
    closed_form_classes_s,
    closed_form_s,
    in_step_s,
)
from cost_models.schedule.critical_path import SchedulePath, critical_path, critical_paths
from cost_models.schedule.graph_counts import fused_pairs
from cost_models.schedule.in_flight import in_flight, in_flight_closed, in_flight_moments
from cost_models.schedule.kinds import SCHEDULES, Schedule, plain, registered, schedule, schedules, searched
from cost_models.schedule.orders import (
    OperationOrder,
    chunks_in_words,
    group_size,
    operation_order,
    schedule_problem,
    warm_up_slots,
)
from cost_models.schedule.placement import chunk_micro_batches, model_parts, parameter_copies, sizes_from
from cost_models.schedule.sends import Sends
from cost_models.schedule.simulation import makespan_s, pair_counts, simulate, simulated_together
from cost_models.schedule.windows import BackwardHalf, ExpertExchange, ForwardHalf, Lanes, pair_s, pair_time

__all__ = [
    "FIRST",
    "LAST",
    "MIDDLE",
    "SCHEDULES",
    "BackwardHalf",
    "ExpertExchange",
    "ForwardHalf",
    "Lanes",
    "OperationOrder",
    "Schedule",
    "SchedulePath",
    "Sends",
    "StageClasses",
    "chunk_micro_batches",
    "chunks_in_words",
    "closed_form_classes_s",
    "closed_form_s",
    "critical_path",
    "critical_paths",
    "fused_pairs",
    "group_size",
    "in_flight",
    "in_flight_closed",
    "in_flight_moments",
    "in_step_s",
    "makespan_s",
    "model_parts",
    "operation_order",
    "pair_counts",
    "pair_s",
    "pair_time",
    "parameter_copies",
    "plain",
    "registered",
    "schedule",
    "schedule_problem",
    "schedules",
    "searched",
    "simulate",
    "simulated_together",
    "sizes_from",
    "warm_up_slots",
]
