"""Plans as documents: JSON, Markdown, HTML without scripts, CSV, and the timeline as a Chrome trace."""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autodeploy.reports.plan_report import best_of, header, render_markdown, report_blocks
from autodeploy.reports.wording import memory_name, part_name
from autodeploy.specs.artefact import REVIEW, Artefact, provenance_line
from autodeploy.specs.plan_table import ROW_NAMES
from autodeploy.specs.planset import PARTS, StageMemory
from autodeploy.specs.spec import spec_of

if TYPE_CHECKING:
    from jinja2 import Template

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


def export_html(plan_set: PlanSet, plan: Plan, lang: Language = "en") -> Artefact:
    """The plan in detail and the ranking it comes from."""
    return Artefact(render_html(plan_set, lang, plan=plan), "text/html", f"{plan.plan_id}.html")


def render_html(plan_set: PlanSet, lang: Language = "en", *, plan: Plan | None = None) -> str:
    """The report of a search: the best plan in detail unless another is given, or why there is none."""
    spec = spec_of(plan_set.search)
    shown = plan or best_of(plan_set)
    title, work = header(spec, shown or plan_set.reference, lang)
    return _template().render(
        lang=lang,
        title=title,
        work=work,
        blocks=report_blocks(plan_set, lang, plan=plan),
        shown=shown,
        parts=[] if shown is None else _parts(shown, lang),
        stages=[] if shown is None else _stages(shown),
        memory_kinds=[memory_name(lang, kind) for kind in StageMemory.model_fields],
        strategy=[] if shown is None else _strategy(shown),
        search=plan_set.search,
        review=REVIEW,
    )


def _parts(plan: Plan, lang: Language) -> list[dict[str, Any]]:
    """Parts of the step that occur, with their share of it."""
    seconds = {part: getattr(plan.breakdown, part) for part in PARTS}
    total = sum(seconds.values()) or 1.0
    return [
        {"name": part_name(lang, part), "seconds": value, "percent": 100 * value / total, "colour": index}
        for index, (part, value) in enumerate(seconds.items())
        if value > 0
    ]


def _stages(plan: Plan) -> list[dict[str, Any]]:
    """Memory of each stage by kind, as a share of the card's limit."""
    top = max([plan.memory_limit_gib, *(stage.total_gib for stage in plan.stages)], default=1.0)
    rows = []
    for index, stage in enumerate(plan.stages):
        kinds = stage.memory_gib.model_dump()
        bars = [{"gib": gib, "percent": 100 * gib / top, "colour": n} for n, gib in enumerate(kinds.values())]
        rows.append({"index": index, "stage": stage, "bars": bars, "layers": " + ".join(map(str, stage.layers))})
    return rows


def _strategy(plan: Plan) -> list[tuple[str, str]]:
    """Every field of the strategy that says something."""
    document = plan.strategy.model_dump(mode="json", exclude_defaults=True)
    return [(name, _shown(value)) for name, value in document.items()]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(f"[{_shown(item)}]" if isinstance(item, list | dict) else str(item) for item in value)
    return str(value)


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    source = (files("autodeploy.reports") / "report.html.jinja").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(source)


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
