"""Routes /v1/searches: submit, list, look at, annotate, cancel, delete."""

import re
import time
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BeforeValidator

from api.http.dependencies import (
    SearchesDep,
    SearchId,
    ServicesDep,
    WaitDep,
    WebhookDep,
    read_document,
    refuse_nul,
    run_submission,
)
from api.http.documents import Annotations, PlanList
from api.http.event_broadcast import broadcast_of
from api.http.openapi import spec_request_body
from api.http.prefix import with_next
from api.http.problems import responses
from autodeploy.analysis.intake import read_spec
from autodeploy.messages import Message
from autodeploy.service.searches.views import SearchView
from autodeploy.service.store.base import SEARCH_ID_PATTERN
from autodeploy.service.store.search_list import NEWEST, SORTS, SearchFilter
from autodeploy.specs.planset import Status
from autodeploy.specs.resources import SearchDocument, SearchList

_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[-+][0-9]{2}:[0-9]{2})", re.ASCII
)
LAST_YEAR = 9998  # what comes after a moment is still one


def _moment(value: Any) -> Any:
    if not isinstance(value, str) or _RFC_3339.fullmatch(value) is None:
        raise ValueError(Message("api.moment_with_time_zone", example="2026-11-20T12:00:00Z"))
    try:
        moment = datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment.year > LAST_YEAR:
        raise ValueError(Message("api.no_such_moment", last=LAST_YEAR))
    return moment


Moment = Annotated[datetime, BeforeValidator(_moment)]

SORT = f"^-?({'|'.join(SORTS)})$"
# How often a waiting client's connection is checked.
CLIENT_LOOK_S = 1.0

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
        **responses(400, 415, 422, 429, 503, 507),
    },
    openapi_extra=spec_request_body(),
)
async def create_search(
    services: ServicesDep,
    request: Request,
    document: Annotated[Any, Depends(read_document)],
    wait_s: WaitDep,
    webhook: WebhookDep,
    idempotency_key: Annotated[
        str | None, Header(min_length=1, max_length=255, description="the same key and spec give the same search")
    ] = None,
    cache_control: Annotated[str | None, Header(max_length=200, description="`no-cache`: plan anew")] = None,
) -> Response:
    """An infeasible spec is a result too: its `infeasible` names the binding rules and the nearest change that fits."""
    reuse = "no-cache" not in (cache_control or "").lower()

    def answer(view: SearchView) -> tuple[SearchView, Response]:
        headers = {"Location": f"/v1/searches/{view.id}"}
        return view, _answer(view, 200 if view.is_finished else 202, headers)

    def submit() -> tuple[SearchView, Response]:
        spec = read_spec(document)
        submission = services.searches.submit(spec, idempotency_key=idempotency_key, reuse=reuse, webhook=webhook)
        return answer(submission.search)

    view, response = await run_submission(request, submit)
    if not view.is_finished and wait_s > 0:
        await wait_until_finished(view.id, wait_s, request)
        view, response = await run_in_threadpool(lambda: answer(services.searches.get(view.id)))
        response.headers["Preference-Applied"] = "wait"
    return response


async def wait_until_finished(search_id: str, wait_s: float, request: Request) -> None:
    """Returns when the search is finished or gone, the time is over, the client gone or the server stopping."""
    end_s = time.monotonic() + wait_s
    with broadcast_of(request).follow(search_id) as follower:
        while (left_s := end_s - time.monotonic()) > 0 and not follower.is_over:
            await follower.news(min(left_s, CLIENT_LOOK_S))
            if await request.is_disconnected():
                break


def _answer(view: SearchView, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(view.text(), status, headers, media_type="application/json")


@router.get(
    "",
    operation_id="list_searches",
    summary="List searches, newest first or sorted",
    response_model=SearchList,
    responses=responses(422, 503),
)
def list_searches(
    request: Request,
    searches: SearchesDep,
    model: Annotated[str | None, Query(max_length=200, description="the model's name")] = None,
    profile: Annotated[str | None, Query(max_length=200)] = None,
    status: Annotated[Status | None, Query()] = None,
    tag: Annotated[str | None, Query(max_length=64)] = None,
    author: Annotated[str | None, Query(max_length=100, description="name of the key that asked for it")] = None,
    team: Annotated[str | None, Query(max_length=64, description="other teams' take a key with scope admin")] = None,
    created_after: Annotated[Moment | None, Query(description="at or after; RFC 3339 with a time zone")] = None,
    created_before: Annotated[Moment | None, Query(description="before; RFC 3339 with a time zone")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern=SEARCH_ID_PATTERN, description="the last id of the page before")] = None,
    sort: Annotated[
        str, Query(pattern=SORT, description="a field of the items; `-` before it: largest first")
    ] = NEWEST,
) -> Response:
    """Pages are stable while searches are added: `next` continues after the last one shown. No value comes last. A key
    sees its team's searches, one with scope admin everybody's."""
    refuse_nul(model=model, profile=profile, tag=tag, author=author, team=team)
    where = SearchFilter(model, profile, status, tag, created_after, created_before, author, team)
    page = searches.list(where, limit=limit, after=after, sort=sort)
    return Response(with_next(request, page).model_dump_json(), media_type="application/json")


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
    search_id: SearchId,
    wait_s: WaitDep,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """With `Prefer: wait` the answer comes when the search is finished."""

    def look() -> tuple[SearchView, Response]:
        view = services.searches.get(search_id)
        return view, _unless_known(view, if_none_match)

    view, response = await run_in_threadpool(look)
    if not view.is_finished and wait_s > 0:
        await wait_until_finished(search_id, wait_s, request)
        view, response = await run_in_threadpool(look)
        response.headers["Preference-Applied"] = "wait"
    return response


_FRESHNESS = {False: "", True: ".stale", None: ".unread"}


def _unless_known(view: SearchView, if_none_match: str | None) -> Response:
    """The search; 304 for a finished one that the caller has as it is."""
    if not view.is_finished:
        return _answer(view)
    etag = f'"{view.id}.{view.updated_at.timestamp():.6f}{_FRESHNESS[view.stale]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if if_none_match is not None and etag in {tag.strip() for tag in if_none_match.split(",")}:
        return Response(status_code=304, headers=headers)
    return _answer(view, headers=headers)


@router.patch(
    "/{search_id}",
    operation_id="annotate_search",
    summary="Set tags and note",
    response_model=SearchDocument,
    responses=responses(400, 404, 422, 503, 507),
)
def annotate_search(
    searches: SearchesDep, search_id: SearchId, annotations: Annotated[Annotations, Body()]
) -> Response:
    """Tags replace the ones before."""
    return _answer(searches.annotate(search_id, tags=annotations.tags, note=annotations.note))


@router.post(
    "/{search_id}/cancel",
    operation_id="cancel_search",
    summary="Stop a search",
    status_code=202,
    response_model=SearchDocument,
    responses=responses(404, 409, 422, 503, 507),
)
def cancel_search(searches: SearchesDep, search_id: SearchId) -> Response:
    """A queued search stops at once, a running one soon; cancelling twice is no error."""
    return _answer(searches.cancel(search_id), 202)


@router.delete(
    "/{search_id}",
    operation_id="delete_search",
    summary="Delete a search with its plans",
    status_code=204,
    responses=responses(404, 409, 422, 503, 507),
)
def delete_search(searches: SearchesDep, search_id: SearchId) -> None:
    """A running search has to be cancelled first; what another key of the team made takes scope admin."""
    searches.delete(search_id)


@router.get(
    "/{search_id}/plans",
    operation_id="list_plans",
    summary="The ranked plans of a search",
    response_model=PlanList,
    responses=responses(404, 422, 503),
)
def list_plans(searches: SearchesDep, search_id: SearchId) -> Response:
    """Empty while the search is not finished, and when nothing fits."""
    return Response(PlanList.json_of(searches.plan_texts(search_id)), media_type="application/json")
