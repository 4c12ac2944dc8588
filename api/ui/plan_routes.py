"""The pages of one plan and of several side by side, and the small forms of searches."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from api.http.dependencies import slowly
from api.http.languages import language_of, texts
from api.ui.clusters import choices as cluster_choices
from api.ui.clusters import clusters_context, form_rows
from api.ui.formats import count, seconds
from api.ui.page_inputs import OwnForm, PlanOfPage, ViewsOfApp, not_found, see, unknown
from api.ui.plan_page import (
    ask_ahead,
    changed_by,
    changed_strategy,
    changes_of,
    other_values,
    plan_context,
    searched_from,
    stated_strategy,
    strategy_words,
)
from api.ui.rendering import data, render
from api.ui.routes import form_page
from api.ui.run_page import run_page
from api.ui.search_page import picture, spec_text, step_shares
from autodeploy.kit.errors import FieldError, NotFoundError, SpecError
from autodeploy.messages import Message, in_language
from autodeploy.reports.commissioning import commissioning_blocks
from autodeploy.reports.comparison import answer_lines, checkpoint_lines, row_title, rows_in_words
from autodeploy.reports.figures.layout import LANE_COLOURS, SLOT_COLOURS
from autodeploy.reports.operator_table import beyond_line, exchange_table, head, layer_title, operator_table
from autodeploy.reports.plan_report import rule_lines
from autodeploy.reports.wording import part_names
from autodeploy.service.store.search_list import NEWEST, SearchFilter
from autodeploy.specs.plan_details import Group
from autodeploy.specs.planset import PARTS as PART_FIELDS
from autodeploy.specs.questions import MAX_COMPARED
from autodeploy.specs.spec import spec_of
from autodeploy.stack.frameworks import DEFAULT
from hardware_profiles import ProfileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from api.ui.views import Views
    from autodeploy.messages import Language
    from autodeploy.service.searches.views import PlanView
    from autodeploy.specs.answers import ClusterComparison
    from autodeploy.specs.artefact import Artefact
    from autodeploy.specs.plan_details import PipelineTimeline, Slot
    from autodeploy.specs.resources import SearchItem


def kept_from(view: PlanView, given: Mapping[str, str], views: Views) -> str:
    """Stores the strategy as it was changed as a plan of its own; its id.

    Errors as `changed_by`, and SpecError where it does not fit.
    """
    spec, strategy = changed_by(view, given)
    plan = views.services.changed(view, spec, strategy)
    if not plan.fits:
        raise SpecError(Message("api.unfit_plan_not_kept"), path="/strategy")
    return views.keep(view, spec.model_copy(update={"strategy": None}), plan)


def script_from(view: PlanView, given: Mapping[str, str], views: Views) -> Artefact:
    """The launch file of the strategy as it was changed, for the framework that the search was for.

    Raises SpecError with every bad field, with the rules of the framework that the strategy breaks, or with why none
    launches it.
    """
    spec, strategy = changed_by(view, given)
    plan = views.services.changed(view, spec, strategy)
    (broken,) = views.services.rules_broken(spec, [plan.strategy])
    if broken:
        raise SpecError(errors=tuple(FieldError("/strategy", rule) for rule in broken))
    # Where none launches it, the export to the usual one says why.
    return views.services.script(view, spec, plan, views.launch_format(plan, spec.model_dump(mode="json")) or DEFAULT)


# In which lines the launch files of plans differ, comments left out.
CONTEXT_LINES = 1  # lines that are equal, shown around one that differs
_KINDS: dict[str, Literal["added", "removed", "skipped"]] = {"+": "added", "-": "removed", "@": "skipped"}


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a difference, as it stands in the files; `skipped` stands for equal lines that are left out."""

    kind: Literal["same", "added", "removed", "skipped"]
    text: str


@dataclass(frozen=True, slots=True)
class ScriptDiff:
    """The launch file of a plan against that of the first one.

    lines : none where the files are equal. refused : why there is no file of one of them.
    """

    plan_id: str
    to: str
    lines: tuple[DiffLine, ...] = ()
    refused: str = ""


def script_diffs(compared: Sequence[PlanView], views: Views) -> list[ScriptDiff]:
    """Every plan but the first against it, as files of the framework that offers itself for the first."""
    first = compared[0]
    to = views.launch_format(first.plan, first.plan_set.search.spec)
    if to is None:
        return []
    (before, first_refused), *files = (_script_of(view, to, views) for view in compared)
    return [
        ScriptDiff(view.plan.plan_id, to, refused=first_refused or refused)
        if first_refused or refused
        else ScriptDiff(view.plan.plan_id, to, tuple(difference(before, after)))
        for view, (after, refused) in zip(compared[1:], files, strict=True)
    ]


def difference(before: str, after: str) -> list[DiffLine]:
    """Lines that one of two files has, with a line around them; comments say what a plan promises and are left out."""
    ours, theirs = (
        [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        for text in (before, after)
    )
    marked = [*difflib.unified_diff(ours, theirs, n=CONTEXT_LINES, lineterm="")]
    of_lines = marked[2:]  # without the names of the files
    lines = [DiffLine(_KINDS.get(line[:1], "same"), line[1:]) for line in of_lines]
    return [DiffLine("skipped", "") if line.kind == "skipped" else line for line in lines]


def _script_of(view: PlanView, to: str, views: Views) -> tuple[str, str]:
    """The launch file of a plan; else why the framework can't launch it."""
    try:
        return views.services.script(view, spec_of(view.plan_set.search), view.plan, to).text, ""
    except SpecError as error:
        return "", "; ".join(each.message for each in error.errors)


# The simulated pipeline of a step as the page's canvas draws it, and stage by stage for a table.
WORDS = "timeline."
SHARED_WORDS = {
    "stage": "stage",
    "compute": "part.compute_s",
    "communication": "label.profiler_communication",
    "bubble": "part.pipeline_bubble_s",
    "named": "common.text_and_numbers",
}
TICKS_PER_S = 100_000
"""Instants are sent as whole ticks of 10 us: finer than a pixel of a second that fills a screen."""


@dataclass(frozen=True, slots=True)
class StageRow:
    """A line of the table: seconds of a stage between the step's first forward and its last backward, and shares."""

    stage: int
    compute_s: float
    communication_s: float
    host_s: float
    idle_s: float
    idle: float


def stage_rows(timeline: PipelineTimeline) -> tuple[StageRow, ...]:
    """One for each stage; `idle` is the share of its bubble."""
    return tuple(
        StageRow(number, s.compute_s, s.communication_s, s.host_s, s.idle_s, s.idle_s / timeline.makespan_s)
        for number, s in enumerate(timeline.stages)
    )


def timeline_lead(timeline: PipelineTimeline, lang: Language) -> str:
    """Size of the pipeline and its end."""
    return texts(lang)["plan.timeline_lead"].format(
        stages=timeline.pp,
        micro_batches=count(timeline.micro_batches),
        makespan=seconds(timeline.makespan_s),
        step=seconds(timeline.step_time_s),
    )


def timeline_picture(timeline: PipelineTimeline, lang: Language) -> dict[str, Any]:
    """Slots of each stage in the order of time, and what they are drawn with.

    `slots[stage]`: start, length, micro batch and chunk of the forward, of the backward (-1 where it has none), and the
    number of its lanes in `lanes[stage]`, which are compute, communication and host. Start, length and lanes are ticks.
    """
    stages: list[list[tuple[int, ...]]] = [[] for _ in range(timeline.pp)]
    lanes: list[dict[tuple[int, ...], int]] = [{} for _ in range(timeline.pp)]
    for slot in timeline.slots:
        own = tuple(_ticks(lane_s) for lane_s in (slot.compute_s, slot.communication_s, slot.host_s))
        number = lanes[slot.stage].setdefault(own, len(lanes[slot.stage]))
        start = _ticks(slot.start_s)
        stages[slot.stage].append((start, _ticks(slot.end_s) - start, *_passes(slot), number))
    page_words = texts(lang)
    words = {name.removeprefix(WORDS): text for name, text in page_words.items() if name.startswith(WORDS)}
    words |= {name: page_words[key] for name, key in SHARED_WORDS.items()}
    return {
        "words": words,
        "lead": timeline_lead(timeline, lang),
        "colours": SLOT_COLOURS | LANE_COLOURS,
        "ticks_per_s": TICKS_PER_S,
        "makespan": _ticks(timeline.makespan_s),
        "step": _ticks(timeline.step_time_s),
        "vpp": timeline.vpp,
        "left_out": timeline.slots_left_out,
        "slots": stages,
        "lanes": [list(each) for each in lanes],
    }


def _ticks(instant_s: float) -> int:
    return round(TICKS_PER_S * instant_s)


def _passes(slot: Slot) -> tuple[int, int, int, int]:
    """Micro batch and chunk of the forward and of the backward."""
    values = (slot.forward_micro_batch, slot.forward_chunk, slot.backward_micro_batch, slot.backward_chunk)
    forward_batch, forward_chunk, backward_batch, backward_chunk = (-1 if v is None else v for v in values)
    return forward_batch, forward_chunk, backward_batch, backward_chunk


router = APIRouter(include_in_schema=False)
OFFERED = 12
GROUPS = get_args(Group)


@router.get("/plans/{plan_id}")
@slowly
def plan(request: Request, view: PlanOfPage, views: ViewsOfApp) -> HTMLResponse:
    """One plan: its pipeline, its groups on the nodes, and what could be otherwise."""
    ask_ahead(view, views, {})
    return _plan_page(request, view, views)


@router.get("/plans/{plan_id}/knobs")
@slowly
def knobs(request: Request, view: PlanOfPage, views: ViewsOfApp) -> Response:
    """Values of the what-if box that the target can't launch, each with the rules that it breaks."""
    lang, moe = language_of(request), bool(view.plan_set.search.spec["model"].get("n_routed_experts"))
    others = other_values(view.plan.strategy, moe=moe)
    spec = spec_of(view.plan_set.search)
    broken = views.services.rules_broken(spec, [strategy for _, _, strategy in others])
    values: dict[str, dict[str, str]] = {}
    for (name, value, _), rules in zip(others, broken, strict=True):
        if rules:
            values.setdefault(name, {})[value] = "; ".join(in_language(rule, lang) for rule in rules)
    return JSONResponse(values)


@router.get("/plans/{plan_id}/stages")
@slowly
def stages(request: Request, view: PlanOfPage, views: ViewsOfApp) -> HTMLResponse:
    """Time of each stage of the simulated pipeline."""
    shown_stages, lang = views.stages(view), language_of(request)
    if shown_stages is None:
        return unknown(request, texts(lang)["plan.no_timeline"])
    return render(
        request,
        "stages.html",
        plan=view.plan,
        lead=timeline_lead(shown_stages, lang),
        stage_rows=stage_rows(shown_stages),
    )


@router.get("/plans/{plan_id}/timeline")
@slowly
def timeline(request: Request, view: PlanOfPage, views: ViewsOfApp) -> Response:
    """The slots of the plan's simulated pipeline, for the page's picture of them."""
    drawn, lang = views.timeline(view), language_of(request)
    if drawn is None:
        return JSONResponse({"error": texts(lang)["plan.no_timeline"]}, 422)
    return data(request, timeline_picture(drawn, lang))


@router.get("/plans/{plan_id}/operators")
@slowly
def operators(request: Request, view: PlanOfPage, views: ViewsOfApp) -> HTMLResponse:
    """Time of a plan, down to the operators of each kind of layer."""
    lang, report = language_of(request), views.services.operators(view)
    tables = [
        (layer_title(layer, lang), beyond_line(layer, lang), [operator_table(layer, lang), exchange_table(layer, lang)])
        for layer in report.layers
    ]
    return render(request, "operators.html", plan=view.plan, lead=head(report, lang), tables=tables)


@router.get("/plans/{plan_id}/commissioning")
@slowly
def commissioning(request: Request, view: PlanOfPage, views: ViewsOfApp) -> HTMLResponse:
    """The launches before a plan's own, with their scripts, and what came back of them."""
    try:
        made = views.services.commission(view)
    except SpecError as error:
        return unknown(request, in_language(error.errors[0].message, language_of(request)))
    to = views.launch_format(view.plan, view.plan_set.search.spec)
    blocks, names = commissioning_blocks(made, language_of(request)), [launch.name for launch in made.launches]
    return render(request, "commissioning.html", plan=view.plan, blocks=blocks, names=names, launch_format=to)


@router.post("/plans/{plan_id}/search")
def search_from_here(request: Request, view: PlanOfPage, values: OwnForm, views: ViewsOfApp) -> HTMLResponse:
    """The form of a new search with the spec as the what-if box changed it."""
    try:
        document = searched_from(view, values)
    except SpecError as error:
        return _plan_page(request, view, views, "what-if", values, error)
    return form_page(request, views, pasted=spec_text(document))


@router.post("/plans/{plan_id}/save")
@slowly
def save(request: Request, view: PlanOfPage, values: OwnForm, views: ViewsOfApp) -> Response:
    """Stores the strategy as it was changed, and opens it as a plan of its own."""
    try:
        kept = kept_from(view, values, views)
    except SpecError as error:
        return _plan_page(request, view, views, "what-if", values, error)
    return see(request, f"/plans/{kept}")


@router.post("/plans/{plan_id}/script")
@slowly
def script(request: Request, view: PlanOfPage, values: OwnForm, views: ViewsOfApp) -> Response:
    """The launch file of the strategy as the what-if box changed it."""
    try:
        artefact = script_from(view, values, views)
    except SpecError as error:
        return _plan_page(request, view, views, "what-if", values, error)
    disposition = f'attachment; filename="{artefact.filename}"'
    return Response(artefact.text, media_type=artefact.media_type, headers={"Content-Disposition": disposition})


@router.post("/plans/{plan_id}/{box}")
@slowly
def ask(request: Request, view: PlanOfPage, box: str, values: OwnForm, views: ViewsOfApp) -> Response:
    """Answers one of the boxes of a plan's page: what-if, why-not or ablation; the first for scripts, too."""
    if box == "what-if" and request.headers.get("accept") == "application/json":
        answer = _changed(view, values, views, language_of(request))
        if request.headers.get("x-ahead"):
            return Response(status_code=204)  # kept until it is asked for
        if answer.status_code == 200:
            for turned in ({}, values):  # back from here, and on
                ask_ahead(view, views, turned)
        return answer
    if box not in {"what-if", "why-not", "ablation"}:
        return not_found(request, NotFoundError())
    return _plan_page(request, view, views, box, values)


def _changed(view: PlanView, values: dict[str, str], views: Views, lang: Language) -> JSONResponse:
    """The plan as the what-if box changed it, with its strategy in words, or what is wrong with the change."""
    try:
        plan = views.services.changed(view, *changed_by(view, values))
    except SpecError as error:
        faults = [{"detail": in_language(e.message, lang), "hint": in_language(e.hint, lang)} for e in error.errors]
        return JSONResponse({"errors": faults}, 422)
    rules = list(rule_lines(plan.broken_rules, lang))
    return JSONResponse(
        {"plan": plan.model_dump(mode="json"), "strategy": strategy_words(plan.strategy, lang), "rules": rules}
    )


@router.get("/compare")
@slowly
def compare(request: Request, views: ViewsOfApp, plans: Annotated[list[str] | None, Query()] = None) -> HTMLResponse:
    """Two to five plans, only where they differ, and one plan's training on other clusters."""
    return _compare_page(request, views, plans)


@router.get("/compare/clusters")
def compare_clusters_anew(request: Request) -> Response:
    """An answer that was left is asked for anew."""
    return see(request, "/compare")


@router.post("/compare/clusters")
@slowly
def compare_clusters(request: Request, values: OwnForm, views: ViewsOfApp) -> HTMLResponse:
    """The same page with what a plan's training takes and costs on several clusters."""
    comparison: ClusterComparison | None = None
    errors: Sequence[FieldError] = ()
    try:
        comparison = views.compare_clusters(values)
    except NotFoundError as error:
        return not_found(request, error)
    except SpecError as error:
        errors = error.errors
    return _compare_page(request, views, None, values, comparison, errors)


def _compare_page(
    request: Request,
    views: Views,
    plans: list[str] | None,
    values: dict[str, str] | None = None,
    clusters: ClusterComparison | None = None,
    errors: Sequence[FieldError] = (),
) -> HTMLResponse:
    given = [name.strip() for item in plans or () for name in item.split(",")]
    wanted = list(dict.fromkeys(name for name in given if name))
    comparison, problem, compared = None, "", []
    if wanted and not 2 <= len(wanted) <= MAX_COMPARED:
        problem = "compare.count"
    elif wanted:
        try:
            comparison = views.compare(wanted)
            compared = [views.plan(plan_id) for plan_id in wanted]
        except NotFoundError as error:
            return not_found(request, error)
    lang = language_of(request)
    shown = rows_in_words(comparison, lang) if comparison else []
    longest_s = max((view.plan.step_time_s for view in compared), default=0.0)
    bars = [
        (column, view.plan.step_time_s, step_shares(view.plan.breakdown, longest_s, lang))
        for column, view in zip(comparison.plans if comparison else (), compared, strict=True)
    ]
    newest = _newest_plans(views)
    return render(
        request,
        "compare.html",
        status=422 if errors else 200,
        comparison=comparison,
        problem=problem,
        wanted=wanted,
        offered=[] if comparison else newest,
        cluster_plans=newest,
        cluster_plan=(values or {}).get("plan", wanted[0] if wanted else ""),
        cluster_choices=cluster_choices(views.profiles()),
        cluster_errors=errors,
        offer_rows=form_rows(values or {}, views.profiles()),
        given=values or {},
        **clusters_context(clusters, lang),
        shown=shown,
        bars=bars,
        bar_parts=list(dict.fromkeys((share.key, share.name) for _, _, shares in bars for share in shares)),
        bar_colour=lambda share: share.key,
        checkpoints=checkpoint_lines(comparison, lang) if comparison else [],
        scripts=script_diffs(compared, views) if compared else [],
        groups=[(group, [row for row in shown if row[0].group == group]) for group in GROUPS],
        title_of=lambda row: row_title(row, lang),
    )


def _newest_plans(views: Views) -> list[SearchItem]:
    """Searches whose best plans may be chosen for a comparison, newest first, each plan once."""
    items = views.searches(SearchFilter(), None, NEWEST).items
    newest = {item.best_plan_id: item for item in reversed(items) if item.best_plan_id}
    return list(reversed(newest.values()))[:OFFERED]


@router.get("/searches/{search_id}/strategies")
@slowly
def strategies(request: Request, search_id: str, views: ViewsOfApp) -> Response:
    """The points of the picture of all strategies, made on demand: the plans, and others at their bounds."""
    try:
        plan_set = views.search(search_id).plan_set
        drawn = picture(plan_set, views.strategy_bounds(plan_set), language_of(request))
    except NotFoundError as error:
        return not_found(request, error)
    except (SpecError, ProfileError) as error:
        return JSONResponse({"error": in_language(str(error), language_of(request))}, 422)
    return data(request, drawn)


@router.post("/searches/{search_id}/notes")
def annotate(request: Request, search_id: str, values: OwnForm, views: ViewsOfApp) -> Response:
    """Replaces tags and note of a search."""
    tags = [tag.strip() for tag in values.get("tags", "").replace("，", ",").split(",") if tag.strip()]
    try:
        views.annotate(search_id, tags, values.get("note", "").replace("\r\n", "\n").strip())
    except NotFoundError as error:
        return not_found(request, error)
    except SpecError as error:
        return render(request, "error.html", status=422, title="422", message=str(error), hint=error.hint)
    return see(request, f"/searches/{search_id}")


@router.post("/new/read")
@slowly
def read_pasted(request: Request, values: OwnForm, views: ViewsOfApp) -> JSONResponse:
    """Reading of a pasted file, as it is typed: what was taken and what is wrong or missing. Nothing is stored."""
    lang = language_of(request)
    try:
        imported, doubtful = views.read_text(values.get("spec", ""), values)
    except SpecError as error:
        faults = [
            {"pointer": e.path, "message": in_language(e.message, lang), "hint": in_language(e.hint, lang)}
            for e in error.errors
        ]
        return JSONResponse({"kind": None, "errors": faults})
    notes = imported.diagnostics
    contradicted = frozenset(notes.contradictions)
    doubts = dict.fromkeys(text for text in (*notes.to_check, *doubtful) if text not in contradicted)
    return JSONResponse(
        {
            "kind": imported.kind,
            "errors": [],
            "taken": len(notes.taken),
            "defaulted": [f"{note.field} = {note.value}" for note in notes.defaulted],
            "doubts": [in_language(text, lang) for text in doubts],
            "contradicted": [in_language(text, lang) for text in notes.contradictions],
            "unknown": [flag.name for flag in imported.kept],
        }
    )


def _plan_page(
    request: Request,
    view: PlanView,
    views: Views,
    box: str = "",
    values: dict[str, str] | None = None,
    fault: SpecError | None = None,
) -> HTMLResponse:
    """The plan with the answer of the box that was asked; with a fault of what was asked, it says that instead."""
    lang = language_of(request)
    answers: dict[str, Any] = {"what_if": None, "why_not": None, "ablation": None, "errors": ()}
    answers["answered"] = ()
    given = values or {}
    try:
        if fault is not None:
            raise fault
        if box == "what-if":
            answers["what_if"] = views.services.changed(view, *changed_by(view, given))
        elif box == "why-not":
            changes = changes_of(given.get("strategy", ""))
            anew = given.get("others") == "best"
            strategy = stated_strategy(changes) if anew else changed_strategy(view.plan.strategy, changes)
            answer = answers["why_not"] = views.services.why_not_plan(view.plan_set, strategy)
            answers["answered"] = answer_lines(answer, lang)
        elif box == "ablation":
            answers["ablation"] = views.ablate(view)
    except SpecError as error:
        answers["errors"] = error.errors
    context = plan_context(view, lang)
    status = 422 if answers["errors"] else 200
    parts = [(name, part_names(lang)[name]) for name in PART_FIELDS]
    context["run"] = run_page(view.plan, lang, texts(lang))
    context["launch_format"] = views.launch_format(view.plan, view.plan_set.search.spec)
    context["rehearsals"] = views.rehearsals(view.plan_set, view.plan)
    changed = answers["what_if"]
    if changed is not None:  # both bars to one scale
        longest_s = max(changed.step_time_s, view.plan.step_time_s)
        context["plan_shares"] = step_shares(view.plan.breakdown, longest_s, lang)
        context["changed_shares"] = step_shares(changed.breakdown, longest_s, lang)
    context["bar_colour"] = lambda share: share.key
    return render(request, "plan.html", status=status, box=box, given=given, parts=parts, **context, **answers)
