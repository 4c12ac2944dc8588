"""Dependencies of routes: services, documents in bodies, and threads for what takes long.

Threads of Python take turns: more of them than this answer no more requests a second, each only waits for more others,
and so does the event loop that answers /livez. Dependencies that ask neither the database nor another process are
coroutines: FastAPI gives every other one a thread, for which a request waits behind all that others ask.
"""

import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, Any, ParamSpec, TypeVar, cast

import anyio
import anyio.to_thread
from fastapi import Depends, Header, HTTPException, Path, Query, Request
from fastapi.concurrency import run_in_threadpool

from api.http.access import principal_of
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import quoted
from autodeploy.service.clusters.overlays import measured_of_document
from autodeploy.service.requests.callers import Principal
from autodeploy.service.searches.service import SearchService
from autodeploy.service.session import Services
from autodeploy.service.store.base import BATCH_ID_PATTERN, PLAN_ID_PATTERN, RUN_ID_PATTERN, SEARCH_ID_PATTERN
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.text_files import load_json, load_yaml

Answer = TypeVar("Answer")
Parameters = ParamSpec("Parameters")
THREADS = 4
SLOW_THREADS = 16
# Submissions wait for each other in the database anyway; there they would hold the threads that readers need.
SUBMIT_THREADS = 2
# Bodies that wait for the process that reads them; fewer than a key's places there, so that none is refused.
READ_THREADS = 4
# How long a computing thread keeps the event loop waiting; Python's own 5 ms times THREADS would be felt.
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Places:
    """Threads beside those of quick requests."""

    slow: anyio.CapacityLimiter
    submit: anyio.CapacityLimiter
    read: anyio.CapacityLimiter


def prepare_threads() -> Places:
    """Bounds the threads of this event loop."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    return Places(*map(anyio.CapacityLimiter, (SLOW_THREADS, SUBMIT_THREADS, READ_THREADS)))


async def run_slowly(request: Request, function: Callable[..., Answer], *args: object, **kwargs: object) -> Answer:
    """Calls that take a second or wait for another process, where no quick request waits behind them."""
    places: Places = request.app.state.places
    return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), limiter=places.slow)


def slowly(page: Callable[Parameters, Answer]) -> Callable[Parameters, Awaitable[Answer]]:
    """An endpoint of pages that `run_slowly` runs; it takes the request as its argument of that name."""

    @wraps(page)
    async def answer(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer:
        request = cast("Request", kwargs["request"])
        return await run_slowly(request, partial(page, *args, **kwargs))

    return answer


async def run_submission(request: Request, function: Callable[[], Answer]) -> Answer:
    """A submission runs where readers do not wait behind it."""
    places: Places = request.app.state.places
    return await anyio.to_thread.run_sync(function, limiter=places.submit)


async def run_reading(request: Request, function: Callable[..., Answer], *args: object) -> Answer:
    """Calls that wait for the process that reads documents, where no quick request waits behind them."""
    places: Places = request.app.state.places
    return await anyio.to_thread.run_sync(partial(function, *args), limiter=places.read)


_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})")


def services_of(request: Request) -> Services:
    """The services of this process as whoever sent the request may use them."""
    services: Services = request.app.state.services
    return services.for_caller(principal_of(request))


async def get_services(request: Request) -> Services:
    """The same, for routes."""
    return services_of(request)


async def get_searches(services: Annotated[Services, Depends(get_services)]) -> SearchService:
    """The service of searches."""
    return services.searches


async def get_principal(request: Request) -> Principal:
    """The sender of the request."""
    return principal_of(request)


async def wanted_wait_s(
    services: Annotated[Services, Depends(get_services)],
    prefer: Annotated[
        str | None, Header(description="`wait=30`: answer when the search is finished", max_length=200)
    ] = None,
    wait: Annotated[float | None, Query(ge=0, le=3600, description="the same as `Prefer: wait`, in seconds")] = None,
) -> float:
    """Seconds that the caller will wait; bounded by `wait_limit_s`. An unknown preference is ignored."""
    match = _WAIT.search(prefer or "")
    asked = wait if wait is not None else float(match[1]) if match else 0.0
    return min(asked, services.settings.wait_limit_s)


async def wanted_webhook(
    services: Annotated[Services, Depends(get_services)],
    webhook: Annotated[
        str | None,
        Query(max_length=2000, description="an http(s) address to tell of the end; only where the operator allows it"),
    ] = None,
    x_autodeploy_webhook: Annotated[
        str | None, Header(max_length=2000, description="the same, where addresses of requests are logged")
    ] = None,
) -> str | None:
    """The receiver that the caller asks for; refused here where it may not be called."""
    asked = x_autodeploy_webhook if webhook is None else webhook
    return None if asked is None else services.webhooks.checked(asked)


SearchesDep = Annotated[SearchService, Depends(get_searches)]
ServicesDep = Annotated[Services, Depends(get_services)]
PrincipalDep = Annotated[Principal, Depends(get_principal)]
WaitDep = Annotated[float, Depends(wanted_wait_s)]
WebhookDep = Annotated[str | None, Depends(wanted_webhook)]
KeyId = Annotated[str, Path(max_length=64, pattern=r"^key_[0-9a-z]+$", examples=["key_01m3xk7pq2w9a4fh"])]
SearchId = Annotated[str, Path(pattern=SEARCH_ID_PATTERN, examples=["srch_01m3xk7pq2w9a4fh"])]
PlanId = Annotated[str, Path(pattern=PLAN_ID_PATTERN, examples=["p_7kq2mzt4"])]
RunId = Annotated[str, Path(pattern=RUN_ID_PATTERN, examples=["run_01m3xk7pq2w9a4fh"])]
BatchId = Annotated[str, Path(pattern=BATCH_ID_PATTERN, examples=["bat_01m3xk7pq2w9a4fh"])]

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
# Logs, tables and JSON lines are text; a JSON document is a document.
FILE_TYPES = frozenset(
    {"text/plain", "text/csv", "application/x-ndjson", "application/jsonl", "application/octet-stream"}
)


class MalformedBody(HTTPException):
    """The body is not JSON or YAML."""

    def __init__(self, detail: str) -> None:
        super().__init__(400, detail)


def refuse_nul(**texts: str | None) -> None:
    """Refuses parameters of a query with a character that no database stores."""
    for name, text in texts.items():
        if text is not None and "\0" in text:
            raise SpecError(Message("api.unstorable_text"), path=name)


async def read_measurement(request: Request) -> MeasuredRun:
    """The measurement in the body: JSON or YAML, or as text the file itself.

    Raises HTTPException: 400 when it is not well formed, 413 when it is too large, 415 when it is another type;
    SpecError with the bad fields, or the line of the text.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type in FILE_TYPES:
        document: Any = {"file": _decoded(await request.body()), **_query(request)}
    else:
        document = await read_document(request)
    return await run_reading(request, services_of(request).read, measured_of_document, document)


def _query(request: Request) -> dict[str, Any]:
    """Words of the address on a text: operation and ranks of a collective benchmark."""
    query: dict[str, Any] = {name: request.query_params[name] for name in ("op",) if name in request.query_params}
    ranks = request.query_params.get("ranks")
    if ranks is not None:
        if not (ranks.isascii() and ranks.isdigit() and len(ranks) <= 6):
            raise SpecError(Message("field_fault.is_no_whole_number", value=repr(ranks[:40])), path="ranks")
        query["ranks"] = int(ranks)
    return query


def _decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedBody(Message("api.not_utf_8_byte", place=error.start)) from error


async def read_document(request: Request) -> Any:
    """The value in the body.

    Raises HTTPException: 400 when it is not well formed, 413 when it is too large, 415 when it is neither JSON nor
    YAML.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json and media_type not in YAML_TYPES:
        raise HTTPException(415, f"{media_type[:100] or 'no content type'}: send application/json or application/yaml")
    text = _decoded(await request.body())
    try:
        if is_json:  # quick, once it is known not to be deep; YAML is read by Python
            return await run_in_threadpool(lambda: _storable(load_json(text)))
        value = await run_reading(request, services_of(request).read, load_yaml, text)
        return await run_in_threadpool(_storable, value)
    except SpecError as error:
        raise MalformedBody(str(error)) from error


def _storable(value: Any) -> Any:
    """The value, unless it has text that no database keeps (NUL, half a surrogate pair) or numbers beyond double
    precision.
    """
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            rest += item
        elif isinstance(item, str):
            if _UNSTORABLE.search(item):
                raise SpecError(Message("api.unstorable_text"))
        elif isinstance(item, int | float) and not abs(item) < 1e300:
            key = "field_fault.is_too_big" if item == item else "field_fault.is_not_finite"
            raise SpecError(Message(key, value=quoted(item)))
    return value
