"""Sends calls with httpx: retries where repeating is safe, and turns refusals into errors.

The one place that knows httpx's clients; the rest of the room knows calls and answers.
"""

from __future__ import annotations

import asyncio
import json
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import httpx
from httpx_sse import ServerSentEvent, SSEError, aconnect_sse, connect_sse

from autodeploy.client.calls import Answer, Call, Event, events_path
from autodeploy.kit.errors import (
    AccessError,
    AutoDeployError,
    ConflictError,
    FieldError,
    LimitError,
    NotFoundError,
    ProfileError,
    SpecError,
    UnknownCallerError,
    UnsupportedError,
)
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator


# What goes wrong between client and service.
_BY_TYPE: dict[str, type[SpecError]] = {
    "urn:autodeploy:problem:unsupported": UnsupportedError,
    "urn:autodeploy:problem:invalid-profile": ProfileError,
}
_BY_STATUS: dict[int, type[AutoDeployError]] = {
    401: UnknownCallerError,
    403: AccessError,
    404: NotFoundError,
    409: ConflictError,
    429: LimitError,
}


class ServiceError(AutoDeployError):
    """The service cannot be reached, or it failed. `status` is 0 where there was no answer."""

    def __init__(self, message: str, *, status: int = 0, request_id: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.request_id = request_id


class WaitTimeout(AutoDeployError):
    """The search was not finished in time; it goes on. `search_id` finds it again."""

    def __init__(self, message: str, *, search_id: str) -> None:
        super().__init__(message, hint=f"GET /v1/searches/{search_id}")
        self.search_id = search_id


def error_of(response: httpx.Response) -> AutoDeployError:
    """The error that a problem document stands for."""
    problem = _problem(response)
    message = str(problem.get("detail") or f"{response.status_code} {response.reason_phrase}")
    hint = str(problem.get("hint") or "")
    status = response.status_code
    if status in {400, 413, 415, 422}:
        kind = _BY_TYPE.get(str(problem.get("type")), SpecError)
        fields = tuple(
            FieldError(str(e.get("pointer", "")), str(e.get("detail", "")), str(e.get("hint", "")))
            for e in problem.get("errors") or ()
        )
        return kind(message, hint=hint, errors=fields or None)
    if status in _BY_STATUS:
        return _BY_STATUS[status](message, hint=hint)
    return ServiceError(message, status=status, request_id=str(problem.get("request_id") or ""), hint=hint)


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


ATTEMPTS = 4
FIRST_PAUSE_S = 0.2
PASSING = frozenset({502, 503, 504})
# The server sends a sign of life every 15 s.
STREAM_TIMEOUT_S = 45.0
# Who waits with a deadline asks instead after so long a silence; less than the sign of life, which would hide the time.
WAIT_SILENCE_S = 10.0


def client_options(base_url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """What both kinds of httpx client are made with."""
    headers = {"User-Agent": f"autodeploy/{version('autodeploy')}", "Accept": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    # Authorities' certificates take longer to read than most requests; plain HTTP, not redirected, needs none.
    is_plain = base_url.lower().startswith("http://")
    return {"base_url": base_url.rstrip("/"), "headers": headers, "timeout": timeout_s, "verify": not is_plain}


def _request(client: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    timeout = httpx.Timeout(client.timeout)
    if timeout.read is not None:
        timeout.read += call.extra_time_s
    return client.build_request(
        call.method, call.path, params=call.params, headers=call.headers, json=call.json, timeout=timeout
    )


def _pause_s(attempt: int, response: httpx.Response | None) -> float:
    after = response.headers.get("Retry-After", "") if response is not None else ""
    return min(float(after), 10.0) if after.isdigit() else FIRST_PAUSE_S * 2**attempt


def _is_last_attempt(call: Call[Any], attempt: int) -> bool:
    return not call.repeatable or attempt + 1 == ATTEMPTS


def _unreachable(client: httpx.Client | httpx.AsyncClient, error: Exception) -> ServiceError:
    reason = str(error) or type(error).__name__
    return ServiceError(
        Message("client.does_not_answer", address=client.base_url, reason=reason),
        hint=Message("client.is_autodeploy_serve_running_there"),
    )


def _read(call: Call[Answer], response: httpx.Response) -> Answer:
    if response.is_error:
        raise error_of(response)
    return call.read(response)


def send(client: httpx.Client, call: Call[Answer]) -> Answer:
    """Sends the call until it is answered, a few times at most.

    Raises
    ------
    SpecError, NotFoundError, ConflictError, AccessError
        as the service refuses it.
    ServiceError
        when the service fails or does not answer.
    """
    for attempt in range(ATTEMPTS):
        response: httpx.Response | None = None
        try:
            response = client.send(_request(client, call))
        except httpx.TransportError as error:
            if _is_last_attempt(call, attempt):
                raise _unreachable(client, error) from error
        if response is not None and (response.status_code not in PASSING or _is_last_attempt(call, attempt)):
            return _read(call, response)
        time.sleep(_pause_s(attempt, response))
    raise AssertionError("the loop returns or raises")


async def send_async(client: httpx.AsyncClient, call: Call[Answer]) -> Answer:
    """As `send`."""
    for attempt in range(ATTEMPTS):
        response: httpx.Response | None = None
        try:
            response = await client.send(_request(client, call))
        except httpx.TransportError as error:
            if _is_last_attempt(call, attempt):
                raise _unreachable(client, error) from error
        if response is not None and (response.status_code not in PASSING or _is_last_attempt(call, attempt)):
            return _read(call, response)
        await asyncio.sleep(_pause_s(attempt, response))
    raise AssertionError("the loop returns or raises")


def _event(sse: ServerSentEvent) -> Event:
    return Event(int(sse.id), sse.event, json.loads(sse.data))


def stream(
    client: httpx.Client, search_id: str, after: int, *, silence_s: float = STREAM_TIMEOUT_S
) -> Generator[Event, None, None]:
    """The events of one connection; it may end before the search does."""
    headers = {"Last-Event-ID": str(after)}
    try:
        with connect_sse(client, "GET", events_path(search_id), headers=headers, timeout=silence_s) as source:
            if source.response.is_error:
                source.response.read()
                raise error_of(source.response)
            for sse in source.iter_sse():
                if sse.data:  # none: the connection was cut before it, and such an event does not count
                    yield _event(sse)
    except (httpx.TransportError, SSEError) as error:
        raise _unreachable(client, error) from error


async def stream_async(
    client: httpx.AsyncClient, search_id: str, after: int, *, silence_s: float = STREAM_TIMEOUT_S
) -> AsyncGenerator[Event, None]:
    """As `stream`."""
    headers = {"Last-Event-ID": str(after)}
    try:
        async with aconnect_sse(client, "GET", events_path(search_id), headers=headers, timeout=silence_s) as source:
            if source.response.is_error:
                await source.response.aread()
                raise error_of(source.response)
            async for sse in source.aiter_sse():
                if sse.data:
                    yield _event(sse)
    except (httpx.TransportError, SSEError) as error:
        raise _unreachable(client, error) from error
