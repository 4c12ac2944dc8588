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


DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro_batch_size", "schedule", "moe_dispatcher")
RUN = ("days", "npu_hours", "goodput", "cost", "energy_mwh")
FIGURES = (
    "step_time_s",
    "expected_step_time_s",
    "regret_p80_pct",
    "tokens_per_s",
    "tokens_per_s_per_npu",
    "mfu",
    "mfu_convention",
    "peak_memory_gib",
    "allocator_peak_gib",
    "memory_limit_gib",
    "p_fits",
    "oom_imbalance",
    "num_npus_used",
    "micro_batches",
    "days",
    "npu_hours",
    "tie_with",
    "provenance",
)


def export_csv(plan_set: PlanSet, plan: Plan) -> Artefact:
    """All plans of the plan's search; the file is named after the plan."""
    return Artefact(plans_csv(plan_set), "text/csv", f"{plan.plan_id}.csv")


def plans_csv(plan_set: PlanSet) -> str:
    """Comma-separated values with a header line; the reference plan has no rank."""
    stream = io.StringIO()
    rows = [_row(plan_set, plan) for plan in plan_set.plans]
    if plan_set.reference is not None:
        rows.append(_row(plan_set, plan_set.reference) | {"rank": None})
    names = list(_row_names())
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _row_names() -> tuple[str, ...]:
    from autodeploy.specs.planset import PARTS

    interval = ("low_s", "high_s", "nearest_record", "memory_low_gib", "memory_high_gib", "unproven")
    choices = ("recompute", "swap", "features", "layers_per_stage")
    head = ("rank", "plan_id", "label", "engine_version", "spec_hash")
    return (*head, *DEGREES, *choices, *FIGURES, *(f"run_{name}" for name in RUN), *interval, *PARTS)


def _row(plan_set: PlanSet, plan: Plan) -> dict[str, Any]:
    """Numbers in full precision, lists joined by `+` or blanks; nothing a spreadsheet would run as a formula."""
    from autodeploy.specs.planset import PARTS

    strategy = plan.strategy
    recompute = strategy.recompute
    values: dict[str, Any] = {
        "rank": plan.rank,
        "plan_id": plan.plan_id,
        "label": plan.label,
        "engine_version": plan_set.search.engine_version,
        "spec_hash": plan_set.search.spec_hash,
        "recompute": "+".join([recompute.granularity, *recompute.modules]),
        "swap": "+".join([*strategy.swap, *(["optimizer"] if strategy.swap_optimizer else [])]),
        "features": "+".join(strategy.features),
        "layers_per_stage": " ".join("/".join(map(str, stage.layers)) for stage in plan.stages),
        "low_s": plan.uncertainty.low_s,
        "high_s": plan.uncertainty.high_s,
        "nearest_record": plan.uncertainty.nearest_record,
        "memory_low_gib": plan.memory_interval.low_gib if plan.memory_interval else None,
        "memory_high_gib": plan.memory_interval.high_gib if plan.memory_interval else None,
        "unproven": "+".join(f"{each.axis}={each.value}" for each in plan.evidence if each.runs == 0),
    }
    values |= {name: getattr(strategy, name) for name in DEGREES}
    values |= {name: getattr(plan, name) for name in FIGURES}
    values |= {f"run_{name}": getattr(plan.run, name) if plan.run else None for name in RUN}
    values |= {part: getattr(plan.breakdown, part) for part in PARTS}
    return {name: _harmless(value) for name, value in values.items()}


def _harmless(value: Any) -> Any:
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
