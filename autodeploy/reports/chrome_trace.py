"""The simulated pipeline of a plan in Chrome's trace format, which Perfetto and chrome://tracing open.

One process a pipeline stage with two threads: computation and what follows the pipeline. Events of one thread never
overlap, as Perfetto wants it. Times are microseconds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from autodeploy.specs.artefact import Artefact, provenance_line

if TYPE_CHECKING:
    from autodeploy.specs.plan_details import PipelineTimeline, Slot
    from autodeploy.specs.planset import Plan, PlanSet

MICROSECONDS = 1e6
PIPELINE, AFTER = 0, 1
COLOURS = {"forward": "thread_state_running", "backward": "rail_response", "pair": "rail_animation"}


def export(plan_set: PlanSet, plan: Plan, timeline: PipelineTimeline) -> Artefact:
    """The trace as JSON in the object form, whose `otherData` names the plan."""
    events = [*_names(plan), *(_event(slot) for slot in timeline.slots), *_after(timeline)]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "generator": provenance_line(plan_set, plan),
            "plan_id": plan.plan_id,
            "engine_version": plan_set.search.engine_version,
            "step_time_s": timeline.step_time_s,
            "slots_left_out": timeline.slots_left_out,
        },
        "traceEvents": events,
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
    left_out = timeline.slots_left_out
    notes = (f"{left_out:,} slots in the middle of the step are left out",) if left_out else ()
    return Artefact(text, "application/json", f"trace_{plan.plan_id}.json", notes)


def _names(plan: Plan) -> list[dict[str, Any]]:
    """Stages and their threads by name, in order."""
    events: list[dict[str, Any]] = []
    for stage in range(plan.strategy.pp):
        layers = sum(plan.stages[stage].layers) if stage < len(plan.stages) else None
        name = f"stage {stage}" + (f" ({layers} layers)" if layers is not None else "")
        events.append(_metadata("process_name", stage, {"name": name}))
        events.append(_metadata("process_sort_index", stage, {"sort_index": stage}))
        for thread, title in ((PIPELINE, "pipeline"), (AFTER, "after the pipeline")):
            events.append(_metadata("thread_name", stage, {"name": title}, thread))
    return events


def _metadata(name: str, stage: int, arguments: dict[str, Any], thread: int = PIPELINE) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": stage, "tid": thread, "args": arguments}


def _event(slot: Slot) -> dict[str, Any]:
    parts = []
    if slot.forward_micro_batch is not None:
        parts.append(f"F{slot.forward_micro_batch}.{slot.forward_chunk}")
    if slot.backward_micro_batch is not None:
        parts.append(f"B{slot.backward_micro_batch}.{slot.backward_chunk}")
    return {
        "name": "+".join(parts),
        "cat": slot.kind,
        "ph": "X",
        "pid": slot.stage,
        "tid": PIPELINE,
        "ts": slot.start_s * MICROSECONDS,
        "dur": (slot.end_s - slot.start_s) * MICROSECONDS,
        "cname": COLOURS[slot.kind],
        "args": {"compute_s": slot.compute_s, "communication_s": slot.communication_s, "host_s": slot.host_s},
    }


def _after(timeline: PipelineTimeline) -> list[dict[str, Any]]:
    """Gradient reduction and optimizer, of the stage where they take longest, on every stage."""
    length = timeline.step_time_s - timeline.makespan_s
    if length <= 0:
        return []
    event = {"name": "gradients and optimizer", "cat": "optimizer", "ph": "X", "tid": AFTER}
    span = {"ts": timeline.makespan_s * MICROSECONDS, "dur": length * MICROSECONDS}
    return [event | {"pid": stage} | span for stage in range(timeline.pp)]
