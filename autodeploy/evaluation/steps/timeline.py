"""The simulated schedule of one strategy, slot by slot: the same simulation that an estimate is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.evaluation.stages.build_problem import build_problem
from autodeploy.evaluation.stages.inner_problem import chunk_times, tail_s
from autodeploy.evaluation.steps.estimate import Layout, applied_array
from autodeploy.evaluation.steps.overlapping_choices import without_overlaps
from autodeploy.evaluation.steps.slot_lanes import slot_lanes
from autodeploy.specs.timeline import PipelineTimeline, Slot, StageTime
from cost_models.schedule import operation_order, simulate

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.step_classes import StepClasses
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Floats
    from cost_models.schedule import OperationOrder

MAX_SLOTS = 50_000


def pipeline_timeline(
    classes: StepClasses, candidates: Candidates, context: Context, index: int, layout: Layout
) -> PipelineTimeline:
    """Every slot of candidate `index` under a layout.

    Of more than 50,000 slots the first and the last are kept: between them the pipeline repeats itself.
    """
    problem = build_problem(classes, candidates, context, index, choices=layout.chosen, menu=False)
    layers, applied = layout.layers[None], applied_array(problem, layout)
    problem = without_overlaps(problem, layers, applied, candidates, context, index)
    times = chunk_times(problem, layers, applied)
    order = operation_order(problem.schedule, problem.pp, problem.vpp, problem.micro_batches)
    found = simulate(order, times.forward_s, times.backward_s, times.hidden_pair_s, times.sends, keep_times=True)
    assert found.start_s is not None
    assert found.end_s is not None
    lanes = slot_lanes(problem, classes, context, index, layers, applied, times).along(order)
    kept, left_out = _kept(order)
    slots = tuple(
        _slot(order, lanes, stage, place, (float(found.start_s[stage, place]), float(found.end_s[stage, place])))
        for stage, places in enumerate(kept)
        for place in places
    )
    makespan = float(found.makespan_s[0])
    return PipelineTimeline(
        pp=problem.pp,
        vpp=problem.vpp,
        micro_batches=problem.micro_batches,
        makespan_s=makespan,
        step_time_s=makespan + float(tail_s(problem, layers)[0]),
        slots=slots,
        slots_left_out=left_out,
        stages=tuple(
            StageTime(compute_s=compute_s, communication_s=communication_s, host_s=host_s, idle_s=max(0.0, idle_s))
            for (compute_s, communication_s, host_s), idle_s in zip(
                lanes.sum(axis=2).T.tolist(), found.idle_s[0].tolist(), strict=True
            )
        ),
    )


def _kept(order: OperationOrder) -> tuple[list[list[int]], int]:
    """Places of each stage's slots that are shown, and how many of all stages are not."""
    share = MAX_SLOTS // order.pp
    kept, left_out = [], 0
    for count in order.slots:
        places = list(range(int(count)))
        if len(places) > share:
            left_out += len(places) - 2 * (share // 2)
            places = places[: share // 2] + places[len(places) - share // 2 :]
        kept.append(places)
    return kept, left_out


def _slot(order: OperationOrder, lanes: Floats, stage: int, place: int, between_s: tuple[float, float]) -> Slot:
    forward, backward = int(order.forward_micro_batch[stage, place]), int(order.backward_micro_batch[stage, place])
    has_forward, has_backward = forward >= 0, backward >= 0
    compute_s, communication_s, host_s = lanes[:, stage, place].tolist()
    return Slot(
        stage=stage,
        kind="pair" if has_forward and has_backward else "forward" if has_forward else "backward",
        start_s=max(0.0, between_s[0]),
        end_s=between_s[1],
        forward_micro_batch=forward if has_forward else None,
        forward_chunk=int(order.forward_chunk[stage, place]) if has_forward else None,
        backward_micro_batch=backward if has_backward else None,
        backward_chunk=int(order.backward_chunk[stage, place]) if has_backward else None,
        compute_s=compute_s,
        communication_s=communication_s,
        host_s=host_s,
    )
