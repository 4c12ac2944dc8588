"""The pages of one plan and of several side by side, and the small forms of searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from api.threads import slowly
from api.ui.answers import not_found, see, unknown
from api.ui.clusters import choices as cluster_choices
from api.ui.clusters import clusters_context, form_rows
from api.ui.from_here import changed_by, kept_from, script_from, searched_from
from api.ui.languages import language_of, texts
from api.ui.page_inputs import OwnForm, PlanOfPage, ViewsOfApp  # noqa: TC001 - FastAPI reads annotations
from api.ui.plan_page import (
    changed_strategy,
    changes_of,
    other_values,
    plan_context,
    stated_strategy,
    strategy_words,
)
from api.ui.rendering import data, render
from api.ui.routes import form_page
from api.ui.run_page import run_page
from api.ui.script_diff import script_diffs
from api.ui.search_page import spec_text, step_shares
from api.ui.strategy_picture import picture
from api.ui.timeline_picture import stage_rows, timeline_lead, timeline_picture
from autodeploy.errors import NotFoundError, SpecError
from autodeploy.figures.labels import part_names
from autodeploy.messages import in_language
from autodeploy.reports.best_plan import rule_lines
from autodeploy.reports.comparison import checkpoint_lines, row_title, rows_in_words
from autodeploy.reports.operator_table import beyond_line, exchange_table, head, layer_title, operator_table
from autodeploy.reports.why_not import answer_lines
from autodeploy.services.comparisons import MAX_COMPARED
from autodeploy.services.searches import NEWEST
from autodeploy.specs.planset import PARTS as PART_FIELDS
from autodeploy.specs.spec import Spec
from autodeploy.store.searches import SearchFilter
from hardware_profiles import ProfileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from api.ui.views import SearchRow, Views
    from autodeploy.errors import FieldError
    from autodeploy.messages import Language
    from autodeploy.services.views import PlanView
    from autodeploy.specs.clusters import ClusterComparison

router = APIRouter(include_in_schema=False)
OFFERED = 12
GROUPS = ("search", "strategy", "time", "breakdown", "stages")


@router.get("/plans/{plan_id}")
@slowly
def plan(request: Request, view: PlanOfPage, views: ViewsOfApp) -> HTMLResponse:
    """One plan: its pipeline, its groups on the nodes, and what could be otherwise."""
    return _plan_page(request, view, views)


@router.get("/plans/{plan_id}/knobs")
@slowly
def knobs(request: Request, view: PlanOfPage, views: ViewsOfApp) -> Response:
    """Values of the what-if box that the target can't launch, each with the rules that it breaks."""
    lang, moe = language_of(request), bool(view.plan_set.search.spec["model"].get("n_routed_experts"))
    others = other_values(view.plan.strategy, moe=moe)
    spec = Spec.model_validate(view.plan_set.search.spec)
    broken = views.rules_broken(spec, [strategy for _, _, strategy in others])
    values: dict[str, dict[str, str]] = {}
    for (name, value, _), rules in zip(others, broken, strict=True):
        if rules:
            values.setdefault(name, {})[value] = "; ".join(in_language(rule, lang) for rule in rules)
    return JSONResponse(values)


@router.get("/plans/{plan_id}/stages")
@slowly
def stages(request: Request, view: PlanOfPage, views: ViewsOfApp) -> HTMLResponse:
    """What each stage of the simulated pipeline does with its time."""
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
    """Where the time of a plan goes, down to the operators of each kind of layer."""
    lang, report = language_of(request), views.operators(view)
    tables = [
        (
            layer_title(layer, lang),
            beyond_line(layer, lang),
            [operator_table(layer, lang), exchange_table(layer, lang)],
        )
        for layer in report.layers
    ]
    return render(request, "operators.html", plan=view.plan, lead=head(report, lang), tables=tables)


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
        return _changed(view, values, views, language_of(request))
    if box not in {"what-if", "why-not", "ablation"}:
        return not_found(request, NotFoundError())
    return _plan_page(request, view, views, box, values)


def _changed(view: PlanView, values: dict[str, str], views: Views, lang: Language) -> JSONResponse:
    """The plan as the what-if box changed it, with its strategy in words, or what is wrong with the change."""
    try:
        plan = views.changed(view, *changed_by(view, values))
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


def _newest_plans(views: Views) -> list[SearchRow]:
    """Searches whose best plans may be chosen for a comparison, newest first, each plan once."""
    rows, _ = views.searches(SearchFilter(), None, NEWEST)
    newest = {row.best_plan_id: row for row in reversed(rows) if row.best_plan_id}
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
    """What a pasted file says, as it is typed: what was taken and what is wrong or missing. Nothing is stored."""
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
            answers["what_if"] = views.changed(view, *changed_by(view, given))
        elif box == "why-not":
            changes = changes_of(given.get("strategy", ""))
            anew = given.get("others") == "best"
            strategy = stated_strategy(changes) if anew else changed_strategy(view.plan.strategy, changes)
            answer = answers["why_not"] = views.why_not(view, strategy)
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
