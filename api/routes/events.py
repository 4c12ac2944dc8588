"""/v1/searches/{id}/events: progress as server-sent events."""

import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api.http.dependencies import SearchesDep, SearchId, ServicesDep
from api.http.event_broadcast import broadcast_of
from api.http.problems import responses
from autodeploy.service.store.events import STATUS
from autodeploy.specs.planset import FINISHED

router = APIRouter(prefix="/v1/searches", tags=["searches"])


async def known_search(searches: SearchesDep, search_id: SearchId) -> str:
    """The id of a search that is there; checked before the stream begins."""
    await run_in_threadpool(searches.status, search_id)
    return search_id


@router.get(
    "/{search_id}/events",
    operation_id="stream_events",
    summary="Follow a search",
    response_class=EventSourceResponse,
    responses=responses(404, 422, 503),
)
async def stream_events(
    request: Request,
    services: ServicesDep,
    search_id: Annotated[str, Depends(known_search)],
    last_event_id: Annotated[int | None, Header(ge=0, le=2**31 - 1, description="resume after this event")] = None,
    after: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="the same as Last-Event-ID")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Events `status` ({status}) and `progress` (counts, best step time, bound, gap), numbered from 1.

    The stream ends after the status that finishes the search, or after ten minutes; a client that comes back with
    Last-Event-ID misses nothing.
    """
    seen = last_event_id if last_event_id is not None else after or 0
    end_s = time.monotonic() + services.settings.stream_limit_s
    with broadcast_of(request).follow(search_id, seen) as follower:
        while (left_s := end_s - time.monotonic()) > 0 and not follower.is_over:
            for event in await follower.news(left_s):
                yield ServerSentEvent(data=event.data, event=event.kind, id=str(event.seq))
                if event.kind == STATUS and event.data.get("status") in FINISHED:
                    return
