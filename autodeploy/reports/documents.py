"""Plans as documents: JSON, Markdown, CSV, and the timeline as a Chrome trace."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from autodeploy.reports.plan_report import render_markdown
from autodeploy.specs.artefact import Artefact, provenance_line
from autodeploy.specs.plan_table import ROW_NAMES

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.plan_details import PipelineTimeline, Slot
    from autodeploy.specs.planset import Plan, PlanSet


# The plan and its search as a PlanSet with this one plan.
def export_json(plan_set: PlanSet, plan: Plan) -> Artefact:
    """Canonical JSON of a PlanSet that holds the plan alone."""
    alone = plan_set.model_copy(update={"plans": (plan,)})
    return Artefact(alone.model_dump_json(indent=2) + "\n", "application/json", f"{plan.plan_id}.json")


# The plan report as Markdown, also the text of a pull-request comment.
def export_markdown(plan_set: PlanSet, plan: Plan, lang: Language = "en") -> Artefact:
    """The plan in detail, then the ranking it comes from."""
    return Artefact(render_markdown(plan_set, lang, plan=plan), "text/markdown", f"{plan.plan_id}.md")


def export_csv(plan_set: PlanSet, plan: Plan) -> Artefact:
    """All plans of the plan's search; the file is named after the plan."""
    return Artefact(plans_csv(plan_set), "text/csv", f"{plan.plan_id}.csv")


def plans_csv(plan_set: PlanSet) -> str:
    """Comma-separated values with a header line; the reference plan has no rank."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ROW_NAMES, lineterminator="\n")
    writer.writeheader()
    for row in plan_set.to_rows():
        writer.writerow({name: _harmless(value) for name, value in row.items()})
    return stream.getvalue()


def _harmless(value: Any) -> Any:
    """Nothing that a spreadsheet would run as a formula."""
    return "'" + value if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


MICROSECONDS = 1e6
PIPELINE, AFTER = 0, 1
COLOURS = {"forward": "thread_state_running", "backward": "rail_response", "pair": "rail_animation"}


def export_trace(plan_set: PlanSet, plan: Plan, timeline: PipelineTimeline) -> Artefact:
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
