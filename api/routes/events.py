"""/v1/searches/{id}/events: progress as server-sent events."""

import time
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api.dependencies import SearchesDep, SearchId, ServicesDep
from api.problems import responses
from autodeploy.specs.planset import FINISHED
from autodeploy.store.events import STATUS, Event

LOOK_S = 0.25
IDLE_LOOK_S = 1.0

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
    pause_s = LOOK_S
    while time.monotonic() < end_s and not request.app.state.stopping.is_set():
        events = await run_in_threadpool(services.searches.events, search_id, seen)
        for event in events:
            seen = event.seq
            yield ServerSentEvent(data=event.data, event=event.kind, id=str(event.seq))
        if any(_is_last(event) for event in events):
            return
        if not events and await _is_over(services.searches, search_id):
            return
        pause_s = LOOK_S if events else min(1.5 * pause_s, IDLE_LOOK_S)
        await anyio.sleep(pause_s)


def _is_last(event: Event) -> bool:
    return event.kind == STATUS and event.data.get("status") in FINISHED


async def _is_over(searches: SearchesDep, search_id: str) -> bool:
    """Whether nothing more will come: the client resumed after the end, or the search was deleted."""
    status = await run_in_threadpool(searches.find_status, search_id)
    return status is None or status in FINISHED
