"""Calls of the API as values, with the reading of their answers, and what both clients send them by.

Calls are sent with httpx: again where repeating is safe; refusals become errors.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

import httpx
from httpx_sse import ServerSentEvent, SSEError, aconnect_sse, connect_sse
from pydantic import BaseModel

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
from autodeploy.specs.base import Document
from autodeploy.specs.commissioning import Commissioning
from autodeploy.specs.plan_details import Comparison, OperatorReport
from autodeploy.specs.planset import FINISHED, Plan
from autodeploy.specs.questions import COMPARE, CompareRequest
from autodeploy.specs.resources import RunList, RunOutcomeDocument, SearchList, plan_in
from autodeploy.specs.resources import SearchDocument as Search
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from autodeploy.specs.questions import Question


# What the service answers, as values.
@dataclass(frozen=True, slots=True)
class Event:
    """One event of a search: `kind` is "status" or "progress"; `seq` counts from 1."""

    seq: int
    kind: str
    data: dict[str, Any]

    @property
    def is_last(self) -> bool:
        return self.kind == "status" and self.data.get("status") in FINISHED


Answer = TypeVar("Answer", covariant=True)
Model = TypeVar("Model", bound=BaseModel)
Asked = TypeVar("Asked", bound=Document)
Shown = TypeVar("Shown", bound=BaseModel)
SpecLike = Spec | Mapping[str, Any]
Params = dict[str, str | int | float]

# The longest single wait; a longer one is made of several, so that no proxy loses patience.
WAIT_STEP_S = 25.0
# A run makes the service fit its cluster's overlay and predict the cluster's stored plans again.
RUN_FIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request. `repeatable`: sending it twice does what sending it once does."""

    method: str
    path: str
    read: Callable[[httpx.Response], Answer]
    params: Params = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    json: Any = None
    repeatable: bool = True
    extra_time_s: float = 0.0


def _search(response: httpx.Response) -> Search:
    return Search.read(response.json())


def _given(**params: str | float | None) -> Params:
    """Those of a query that are given."""
    return {name: value for name, value in params.items() if value is not None}


def _read_as(document: type[Model]) -> Callable[[httpx.Response], Model]:
    return lambda response: document.model_validate(response.json())


def _got(path: str, document: type[Model], **params: str | float | None) -> Call[Model]:
    return Call("GET", path, _read_as(document), params=_given(**params))


def _posted(path: str, document: type[Model], body: Mapping[str, Any], **more: Any) -> Call[Model]:
    return Call("POST", path, _read_as(document), json=dict(body), **more)


def _document(spec: SpecLike) -> Any:
    return spec.model_dump(mode="json") if isinstance(spec, Spec) else dict(spec)


def submit(
    spec: SpecLike, *, wait_s: float = 0.0, idempotency_key: str | None = None, reuse: bool = True
) -> Call[Search]:
    """Submits a spec; `reuse` permits the stored result of an equal search."""
    headers = {"Idempotency-Key": idempotency_key or uuid4().hex}  # a fresh one makes repeating safe
    if wait_s > 0:
        headers["Prefer"] = f"wait={round(min(wait_s, WAIT_STEP_S))}"
    if not reuse:
        headers["Cache-Control"] = "no-cache"
    return Call("POST", "/v1/searches", _search, headers=headers, json=_document(spec), extra_time_s=WAIT_STEP_S)


def get(search_id: str, *, wait_s: float = 0.0) -> Call[Search]:
    """The current state of a search; with `wait_s` the answer comes when it is finished."""
    params: Params = {"wait": min(wait_s, WAIT_STEP_S)} if wait_s > 0 else {}
    return Call("GET", f"/v1/searches/{search_id}", _search, params=params, extra_time_s=WAIT_STEP_S)


def list_searches(*, limit: int = 20, after: str | None = None, **filters: str | None) -> Call[SearchList]:
    """Searches newest first, or by `sort`. Filters: model, profile, status, tag, created_after, created_before."""
    return _got("/v1/searches", SearchList, limit=limit, **filters, after=after)


def annotate(search_id: str, *, tags: Sequence[str] | None = None, note: str | None = None) -> Call[Search]:
    """Replaces tags, note or both."""
    wanted = None if tags is None else [*tags]
    return Call("PATCH", f"/v1/searches/{search_id}", _search, json={"tags": wanted, "note": note})


def cancel(search_id: str) -> Call[Search]:
    """Cancels a search."""
    return Call("POST", f"/v1/searches/{search_id}/cancel", _search)


def delete(search_id: str) -> Call[None]:
    """Deletes a search with its plans."""
    return Call("DELETE", f"/v1/searches/{search_id}", lambda response: None, repeatable=False)


def get_plan(plan_id: str) -> Call[Plan]:
    """One plan."""
    return Call("GET", f"/v1/plans/{plan_id}", lambda response: plan_in(response.json()))


def add_run(plan_id: str, document: Mapping[str, Any], *, rehearse: str | None = None) -> Call[RunOutcomeDocument]:
    """Reports a measured run of a plan or of its rehearsal: numbers, or `file` with a log. Sent twice it is one run."""
    path, params = f"/v1/plans/{plan_id}/runs", _given(rehearse=rehearse)
    return _posted(path, RunOutcomeDocument, document, params=params, extra_time_s=RUN_FIT_S)


def runs(*, limit: int = 20, after: str | None = None, **filters: str | None) -> Call[RunList]:
    """Measured runs, newest first. Filters: plan_id, cluster."""
    return _got("/v1/runs", RunList, limit=limit, **filters, after=after)


def delete_run(run_id: str) -> Call[None]:
    """Deletes a run."""
    path = f"/v1/runs/{run_id}"
    return Call("DELETE", path, lambda response: None, repeatable=False, extra_time_s=RUN_FIT_S)


def export(plan_id: str | SpecLike, to: str, *, lang: str | None = None, rehearse: str | None = None) -> Call[str]:
    """A plan, or a spec's strategy, in another format; or a plan's rehearsal on `1node`, `8nodes` and so on."""
    params = _given(to=to, lang=lang, rehearse=rehearse)
    if isinstance(plan_id, str):
        return Call("GET", f"/v1/plans/{plan_id}/export", lambda response: response.text, params=params)
    return Call("POST", "/v1/exports", lambda response: response.text, params=params, json=_document(plan_id))


def commissioning(plan_id: str) -> Call[Commissioning]:
    """The launches before a plan's own, and what each decides."""
    return _got(f"/v1/plans/{plan_id}/commissioning", Commissioning)


def operators(plan_id: str) -> Call[OperatorReport]:
    """Time breakdown of a stored plan, down to the operators of each kind of layer."""
    return _got(f"/v1/plans/{plan_id}/operators", OperatorReport)


def estimate(spec: SpecLike) -> Call[Plan]:
    """Predicts the strategy in the spec."""
    return _posted("/v1/estimates", Plan, _document(spec))


def compare(plans: Sequence[str | Mapping[str, Any]] | CompareRequest) -> Call[Comparison]:
    """Differences between plans: ids of stored plans, or PlanSets, represented by their best plan."""
    return asked(COMPARE, plans if isinstance(plans, CompareRequest) else {"plans": list(plans)})


def asked(question: Question[Asked, Shown], request: Mapping[str, Any] | Asked) -> Call[Shown]:
    """A question about the fields of its request."""
    body = request
    if isinstance(body, Document):
        body = body.model_dump(mode="json", include=body.model_fields_set)
    return _posted(question.path, question.answer, body, extra_time_s=question.patience_s(body))


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
    """Options of both kinds of httpx client."""
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
        hint=Message("client.is_server_running"),
    )


def _read(call: Call[Answer], response: httpx.Response) -> Answer:
    if response.is_error:
        raise error_of(response)
    return call.read(response)


def send(client: httpx.Client, call: Call[Answer]) -> Answer:
    """Sends the call until it is answered, a few times at most.

    Raises SpecError, NotFoundError, ConflictError or AccessError as the service refuses it; ServiceError when the
    service fails or does not answer.
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
    address, headers = f"/v1/searches/{search_id}/events", {"Last-Event-ID": str(after)}
    try:
        with connect_sse(client, "GET", address, headers=headers, timeout=silence_s) as source:
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
    address, headers = f"/v1/searches/{search_id}/events", {"Last-Event-ID": str(after)}
    try:
        async with aconnect_sse(client, "GET", address, headers=headers, timeout=silence_s) as source:
            if source.response.is_error:
                await source.response.aread()
                raise error_of(source.response)
            async for sse in source.aiter_sse():
                if sse.data:
                    yield _event(sse)
    except (httpx.TransportError, SSEError) as error:
        raise _unreachable(client, error) from error
