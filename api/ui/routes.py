"""The addresses of the pages. None of them is part of the API's schema."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from api.http.dependencies import slowly
from api.http.languages import language_of, requested_language, texts
from api.ui import new_search_form
from api.ui.accuracy_page import accuracy_context
from api.ui.new_search_form import choices_of
from api.ui.page_inputs import OWN_PAGE, OwnForm, ViewsOfApp, not_found, see
from api.ui.plan_page import ask_ahead
from api.ui.rendering import asset, compressed, render
from api.ui.run_page import run_page
from api.ui.search_page import search_context
from api.ui.views import DoubtfulSpec, Views
from autodeploy.kit.errors import ConflictError, FieldError, NotFoundError, SpecError
from autodeploy.messages import Message, section_texts
from autodeploy.reports.figures.charts import MEMORY_FILE, shipped_points
from autodeploy.reports.operator_table import tier_name
from autodeploy.service.searches.views import PlanView
from autodeploy.service.store.search_list import NEWEST, SORTS, SearchFilter
from autodeploy.specs.field_errors import did_you_mean
from autodeploy.specs.planset import STATUSES
from autodeploy.stack.software import shipped_stacks

router = APIRouter(include_in_schema=False)

FILTERS = ("model", "profile", "status", "tag", "author", "team")
# The table of past searches: text of the title, what it sorts by, if anything, and whether it is a number.
COLUMNS = (
    ("model", "model", False),
    ("cluster", "profile", False),
    ("num_npus", "num_npus", True),
    ("seq_length", "seq_length", True),
    ("batch", "global_batch_size", True),
    ("status", "status", False),
    ("step", "best_step_time_s", True),
    ("layout", None, False),
    ("tokens_per_s_per_npu", "best_tokens_per_s_per_npu", True),
    ("mfu", "best_mfu", True),
    ("gap", "gap", True),
    ("author", None, False),
    ("team", None, False),
    ("created", "created_at", False),
)
FOR_EVER = "public, max-age=31536000, immutable"


@router.get("/")
def searches(request: Request, views: ViewsOfApp, after: str | None = None) -> HTMLResponse:
    """Past searches, newest first or sorted by a column of the whole history."""
    given = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    query = {name: text if text and text.isprintable() else None for name, text in given.items()}
    if query["status"] not in STATUSES:
        query["status"] = None
    if not views.sees_all_teams:
        query["team"] = None
    where = SearchFilter(
        query["model"], query["profile"], query["status"], query["tag"], author=query["author"], team=query["team"]
    )
    sort = request.query_params.get("sort", "")
    if sort.removeprefix("-") not in SORTS:
        sort = NEWEST
    try:
        page = views.searches(where, after or None, sort)
    except SpecError:  # the search to continue after is gone
        page = views.searches(where, None, sort)
    named = {"author"} if any(row.author for row in page.items) else set()
    if views.sees_all_teams:
        named.add("team")
    return render(
        request,
        "searches.html",
        rows=page.items,
        next=page.after,
        after=after,
        filter=query,
        filter_query=query | {"sort": None if sort == NEWEST else sort},
        plain_query=query,
        sort=sort,
        columns=[column for column in COLUMNS if column[0] not in {"author", "team"} or column[0] in named],
        named=named,
        filtered=any(query.values()),
        statuses=STATUSES,
        all_teams=views.sees_all_teams,
        model_names=[title for _, title in views.models()],
        profile_names=[profile.name for profile in views.profiles()],
        request_lang=requested_language(request),
        base_url=str(request.base_url).rstrip("/"),
    )


@router.get("/searches/{search_id}")
def search(request: Request, search_id: str, views: ViewsOfApp) -> HTMLResponse:
    """One search: its plans and pictures, or how far it is."""
    return _search_page(request, search_id, views)


@router.post("/searches/{search_id}/scaling", dependencies=[OWN_PAGE])
@slowly
def scaling(request: Request, search_id: str, views: ViewsOfApp) -> HTMLResponse:
    """The search with its scaling table, which takes a few short searches."""
    return _search_page(request, search_id, views, with_scaling=True)


def _search_page(request: Request, search_id: str, views: Views, *, with_scaling: bool = False) -> HTMLResponse:
    try:
        view = views.search(search_id)
    except NotFoundError as error:
        return not_found(request, error)
    lang = language_of(request)
    context = search_context(view.plan_set, lang)
    if view.plan_set.plans and view.plan_set.status in {"optimal", "feasible"}:
        ask_ahead(PlanView(view.plan_set.plans[0], view.plan_set), views, {})  # whose page is opened next
    return render(
        request,
        "search.html",
        **context,
        scaling=views.scale(view.plan_set) if with_scaling else None,
        run=run_page(context["best"], lang, texts(lang)),
        progress=view.progress or {},
        no_live_worker=view.no_live_worker,
        queue=view.queue and view.queue.model_dump(),
        tags=view.tags,
        note=view.note,
        note_by=view.note_by,
        author=view.author,
        team=view.team,
        stale=view.stale,
        reranked=views.services.runs.reranked_of_search(search_id),
        export_formats=lambda plan: views.export_formats(plan, view.plan_set.search.spec["cluster"]["profile"]),
        launch_format=views.launch_format(context["best"], view.plan_set.search.spec),
    )


@router.post("/searches/{search_id}/cancel", dependencies=[OWN_PAGE])
def cancel(request: Request, search_id: str, views: ViewsOfApp) -> Response:
    """Stops a search and shows it; one that has finished meanwhile is just shown."""
    try:
        views.cancel(search_id)
    except NotFoundError as error:
        return not_found(request, error)
    except ConflictError:
        pass
    return see(request, f"/searches/{search_id}")


@router.get("/new")
def new_search(request: Request, views: ViewsOfApp) -> HTMLResponse:
    """The form of a new search."""
    return form_page(request, views)


@router.post("/new")
@slowly
def start_search(request: Request, values: OwnForm, views: ViewsOfApp) -> Response:
    """Starts the search that a form or a pasted document asks for, or says what is wrong with it."""
    pasted, sure = values.get("spec", ""), values.get("sure") == "yes"
    try:
        if values.get("form") == "paste":
            search_id = views.submit_text(pasted, values, sure=sure)
        else:
            search_id = views.submit(new_search_form.spec_document(_sections(request, views), values), sure=sure)
    except SpecError as error:
        given = None if values.get("form") == "paste" else values
        beside = values if given is None else None
        ask = values.get("form") if isinstance(error, DoubtfulSpec) else None
        return form_page(
            request, views, values=given, pasted=pasted, values_of_paste=beside, errors=error.errors, ask=ask
        )
    return see(request, f"/searches/{search_id}")


@router.get("/profiles")
def profiles(request: Request, views: ViewsOfApp) -> HTMLResponse:
    """The hardware profiles."""
    return render(request, "profiles.html", profiles=views.profiles(), stacks=shipped_stacks().values())


@router.get("/hardware")
def hardware(request: Request) -> RedirectResponse:
    """Page of hardware, under that name too."""
    return see(request, "/profiles", status=308)


@router.get("/profiles/{name}")
def profile(request: Request, name: str, views: ViewsOfApp) -> HTMLResponse:
    """Every number of a hardware profile."""
    try:
        shown = views.profile(name)
    except NotFoundError as error:
        return not_found(request, error, error.hint)
    return render(request, "profile.html", profile=shown, tier_word=partial(tier_name, lang=language_of(request)))


@router.get("/software/{name}")
def software(request: Request, name: str) -> HTMLResponse:
    """Every fact of a software stack."""
    if name not in shipped_stacks():
        message = Message("common.there_is_no", what="stack", name=repr(name[:100]))
        return not_found(request, NotFoundError(message), did_you_mean(name[:100], shipped_stacks()))
    return render(request, "stack.html", stack=shipped_stacks()[name])


@router.get("/accuracy")
def accuracy(request: Request, views: ViewsOfApp, after: str | None = None, cluster: str | None = None) -> HTMLResponse:
    """Truth of predictions: on published runs, and on this installation's own."""
    ledger = views.runs(cluster or None, after or None)
    clusters = [view for view in views.services.runs.clusters() if cluster in {None, "", view.cluster}]
    moved = {view.cluster: views.services.runs.reranked(view.cluster) for view in clusters}
    context = accuracy_context(
        shipped_points(), shipped_points(MEMORY_FILE), ledger, clusters, moved, language_of(request)
    )
    return render(request, "accuracy.html", **context, after=after, cluster=cluster)


@router.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """A style sheet or script; its address changes with its content, so it may be kept for ever."""
    served = asset(name)
    if served is None:
        return not_found(request, NotFoundError())
    headers = {"Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff", "ETag": f'"{served.digest}"'}
    headers["Cache-Control"] = FOR_EVER if request.query_params.get("v") == served.digest else "no-cache"
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(compressed(name), media_type=served.media_type, headers=headers)
    return Response(served.content, media_type=served.media_type, headers=headers)


def _sections(request: Request, views: Views) -> tuple[new_search_form.Section, ...]:
    profiles = views.profiles()
    devices = [("", texts(language_of(request))["new.usual_grade"])]
    devices += [(device, f"{device} · {profile.title}") for profile in profiles for device in profile.devices]
    return new_search_form.sections(views.models(), [(p.name, p.title) for p in profiles], devices)


def form_page(
    request: Request,
    views: Views,
    *,
    values: dict[str, str] | None = None,
    pasted: str = "",
    values_of_paste: dict[str, str] | None = None,
    errors: tuple[FieldError, ...] = (),
    ask: str | None = None,
) -> HTMLResponse:
    """The form as it was filled in; ask: which of the two asks whether the user is sure of it."""
    sections = _sections(request, views)
    # A fault of pasted text is not a fault of the fields beside it.
    at_fields = () if values is None else errors
    placed, others = new_search_form.errors_by_field(sections, at_fields)
    return render(
        request,
        "new.html",
        status=422 if errors else 200,
        sections=sections,
        values=new_search_form.start_values(sections, values),
        field_errors=placed,
        wrong_fields=[(f.id, f.label) for _, fields in sections for f in fields if f.pointer in placed],
        errors=errors,
        other_errors=errors if values is None else others,
        ask=ask,
        pasted=pasted,
        given=values_of_paste or {},
        profile_names=[profile.name for profile in views.profiles()],
        profile_data={row.name: choices_of(row, texts(language_of(request))) for row in views.profiles()},
        ways=new_search_form.WAYS,
        option_words=section_texts(language_of(request), "page.option"),
    )
