"""The plan report as one HTML file: no script, no other file, readable without a network and by a screen reader."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autodeploy.reports.plan_report import best_of, header, render_markdown, report_blocks
from autodeploy.reports.wording import memory_name, part_name
from autodeploy.specs.artefact import REVIEW, Artefact
from autodeploy.specs.planset import PARTS, StageMemory
from autodeploy.specs.stored_spec import spec_of

if TYPE_CHECKING:
    from jinja2 import Template

    from autodeploy.messages import Language
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
