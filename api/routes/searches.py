"""/v1/searches: submit, list, look at, annotate, cancel, delete."""

import time
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import anyio
from fastapi import APIRouter, Body, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.bodies import read_document
from api.dependencies import PrincipalDep, SearchesDep, SearchId, ServicesDep, WaitDep
from api.documents import Annotations, PlanList, SearchDocument, SearchList
from api.openapi import spec_request_body
from api.problems import responses
from api.threads import run_submission
from autodeploy.errors import SpecError
from autodeploy.services import SearchService, SearchView
from autodeploy.services.intake import read_network_spec
from autodeploy.services.searches import NEWEST
from autodeploy.specs.planset import FINISHED, Status
from autodeploy.store.clock import SEARCH_ID_PATTERN
from autodeploy.store.searches import SearchFilter
from autodeploy.store.sorted_searches import SORTS

SORT = f"^-?({'|'.join(SORTS)})$"
FIRST_LOOK_S = 0.02
LAST_LOOK_S = 0.25

router = APIRouter(prefix="/v1/searches", tags=["searches"])


@router.post(
    "",
    operation_id="create_search",
    summary="Search for the best plans of a spec",
    status_code=202,
    response_model=SearchDocument,
    response_description="Accepted: the search is queued or running",
    responses={
        200: {"model": SearchDocument, "description": "The finished PlanSet: waited for, or planned before"},
        **responses(400, 413, 415, 422, 429, 503),
    },
    openapi_extra=spec_request_body(),
)
async def create_search(
    services: ServicesDep,
    principal: PrincipalDep,
    request: Request,
    response: Response,
    document: Annotated[Any, Depends(read_document)],
    wait_s: WaitDep,
    idempotency_key: Annotated[
        str | None, Header(min_length=1, max_length=255, description="the same key and spec give the same search")
    ] = None,
    cache_control: Annotated[str | None, Header(max_length=200, description="`no-cache`: plan anew")] = None,
) -> SearchDocument:
    """An infeasible spec is a result too: its `infeasible` names the binding rules and the nearest change that fits."""
    reuse = "no-cache" not in (cache_control or "").lower()

    def submit() -> SearchView:
        spec = read_network_spec(document, services.planner)
        return services.searches.submit(spec, idempotency_key=idempotency_key, principal=principal, reuse=reuse).search

    view = await run_submission(request, submit)
    if not view.is_finished and wait_s > 0:
        response.headers["Preference-Applied"] = "wait"
        view = await wait_until_finished(services.searches, view.id, wait_s, request)
    response.headers["Location"] = f"/v1/searches/{view.id}"
    response.status_code = 200 if view.is_finished else 202
    return SearchDocument.of(view)


async def wait_until_finished(searches: SearchService, search_id: str, wait_s: float, request: Request) -> SearchView:
    """The search when it is finished, or when the time is over, the client gone or the server stopping."""
    deadline_s = time.monotonic() + wait_s
    pause_s = FIRST_LOOK_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        if await run_in_threadpool(searches.status, search_id) in FINISHED:
            break
        if request.app.state.stopping.is_set() or await request.is_disconnected():
            break
        await anyio.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LAST_LOOK_S)
    return await run_in_threadpool(searches.get, search_id)


@router.get(
    "", operation_id="list_searches", summary="List searches, newest first or sorted", responses=responses(422, 503)
)
def list_searches(
    request: Request,
    searches: SearchesDep,
    model: Annotated[str | None, Query(max_length=200, description="the model's name")] = None,
    profile: Annotated[str | None, Query(max_length=200)] = None,
    status: Annotated[Status | None, Query()] = None,
    tag: Annotated[str | None, Query(max_length=64)] = None,
    created_after: Annotated[datetime | None, Query(description="at or after; RFC 3339 with a time zone")] = None,
    created_before: Annotated[datetime | None, Query(description="before; RFC 3339 with a time zone")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern=SEARCH_ID_PATTERN, description="the last id of the page before")] = None,
    sort: Annotated[
        str, Query(pattern=SORT, description="a field of the items; `-` before it: largest first")
    ] = NEWEST,
) -> SearchList:
    """Pages are stable while searches are added: `next` continues after the last one shown. No value comes last."""
    for name, text in (("model", model), ("profile", profile), ("tag", tag)):
        if text is not None and "\0" in text:
            raise SpecError("no such text", path=name)
    for name, moment in (("created_after", created_after), ("created_before", created_before)):
        if moment is not None and moment.tzinfo is None:
            raise SpecError("a time zone is missing", path=name, hint="2026-11-20T12:00:00Z")
    where = SearchFilter(model, profile, status, tag, created_after, created_before)
    page = searches.list(where, limit=limit, after=after, sort=sort)
    next_url = None
    if page.next_after is not None:
        kept = [(key, value) for key, value in request.query_params.multi_items() if key != "after"]
        next_url = f"{request.url.path}?{urlencode([*kept, ('after', page.next_after)])}"
    return SearchList.of(page, next_url)


@router.get(
    "/{search_id}",
    operation_id="get_search",
    summary="One search: its PlanSet when it is finished, its progress before",
    response_model=SearchDocument,
    responses={304: {"description": "Not changed since that ETag"}, **responses(404, 422, 503)},
)
async def get_search(
    services: ServicesDep,
    request: Request,
    response: Response,
    search_id: SearchId,
    wait_s: WaitDep,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> SearchDocument | Response:
    """With `Prefer: wait` the answer comes when the search is finished."""
    view = await run_in_threadpool(services.searches.get, search_id)
    if not view.is_finished and wait_s > 0:
        response.headers["Preference-Applied"] = "wait"
        view = await wait_until_finished(services.searches, search_id, wait_s, request)
    if view.is_finished:
        etag = f'"{search_id}.{view.updated_at.timestamp():.6f}"'
        headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
        if if_none_match is not None and etag in {tag.strip() for tag in if_none_match.split(",")}:
            return Response(status_code=304, headers=headers)
        response.headers.update(headers)
    return SearchDocument.of(view)


@router.patch(
    "/{search_id}",
    operation_id="annotate_search",
    summary="Set tags and note",
    response_model=SearchDocument,
    responses=responses(400, 404, 413, 422, 503),
)
def annotate_search(
    searches: SearchesDep, search_id: SearchId, annotations: Annotated[Annotations, Body()]
) -> SearchDocument:
    """Tags replace the ones before."""
    return SearchDocument.of(searches.annotate(search_id, tags=annotations.tags, note=annotations.note))


@router.post(
    "/{search_id}/cancel",
    operation_id="cancel_search",
    summary="Stop a search",
    status_code=202,
    response_model=SearchDocument,
    responses=responses(404, 409, 422, 503),
)
def cancel_search(searches: SearchesDep, search_id: SearchId) -> SearchDocument:
    """A queued search stops at once, a running one soon; cancelling twice is no error."""
    return SearchDocument.of(searches.cancel(search_id))


@router.delete(
    "/{search_id}",
    operation_id="delete_search",
    summary="Delete a search with its plans",
    status_code=204,
    responses=responses(404, 409, 422, 503),
)
def delete_search(searches: SearchesDep, principal: PrincipalDep, search_id: SearchId) -> None:
    """A running search has to be cancelled first; what another key made takes scope admin."""
    searches.delete(search_id, principal=principal)


@router.get(
    "/{search_id}/plans",
    operation_id="list_plans",
    summary="The ranked plans of a search",
    responses=responses(404, 422, 503),
)
def list_plans(searches: SearchesDep, search_id: SearchId) -> PlanList:
    """Empty while the search is not finished, and when nothing fits."""
    return PlanList.model_construct(items=searches.plans(search_id))
