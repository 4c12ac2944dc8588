"""Access: the sender of a request, whether it may be answered, how often it may ask, and the log of changes.

One layer around all routes decides, before bodies and everything else, so that none is forgotten.
"""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict
from functools import cache, partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from api.http.problems import on_autodeploy_error, on_database_error
from api.http.session import LoginThrottle, is_of_own_page, session_of
from autodeploy.kit.errors import AccessError, AutoDeployError, LimitError, UnknownCallerError
from autodeploy.messages import Message
from autodeploy.service.requests.callers import ANYONE, Principal, Scope
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.specs.questions import QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Send
    from starlette.types import Message as AsgiMessage
    from starlette.types import Scope as AsgiScope

    from autodeploy.kit.settings import Settings
    from autodeploy.service.session import Services


READING = frozenset({"GET", "HEAD", "OPTIONS"})
# What a change is called, by method and path of its route; of pages like that of the API.
ACTIONS = {
    "POST /v1/searches": "search.create",
    "PATCH /v1/searches/{search_id}": "search.annotate",
    "POST /v1/searches/{search_id}/cancel": "search.cancel",
    "DELETE /v1/searches/{search_id}": "search.delete",
    "POST /v1/plans/{plan_id}/runs": "run.create",
    "DELETE /v1/runs/{run_id}": "run.delete",
    "POST /v1/batches": "batch.create",
    "POST /v1/batches/{batch_id}/cancel": "batch.cancel",
    "PATCH /v1/keys/{key_id}": "key.expire",
    "DELETE /v1/keys/{key_id}": "key.revoke",
    "POST /keys/{key_id}/expire": "key.expire",
    "POST /keys/{key_id}/revoke": "key.revoke",
    "POST /new": "search.create",
    "POST /plans/{plan_id}/save": "search.create",
    "POST /searches/{search_id}/cancel": "search.cancel",
    "POST /searches/{search_id}/notes": "search.annotate",
    "POST /login": "session.begin",
    "POST /logout": "session.end",
}
# These store nothing, whatever their method.
NOTHING_STORED = frozenset(
    {
        *(f"POST {question.path}" for question in QUESTIONS.values()),
        *(
            "POST /v1/estimates",
            "POST /v1/exports",
            "POST /v1/ablations",
            "POST /compare/clusters",
            "POST /searches/{search_id}/scaling",
            "POST /plans/{plan_id}/{box}",
            "POST /plans/{plan_id}/search",
            "POST /plans/{plan_id}/script",
        ),
        "POST /new/read",
    }
)


def may_change(method: str, path: str) -> bool:
    """Whether a request may store, change or delete anything; one that no route is known for may."""
    if method in READING:
        return False
    asked = f"{method} {path}"
    return _fits(frozenset(ACTIONS), asked) or not _fits(NOTHING_STORED, asked)


def _fits(routes: frozenset[str], asked: str) -> bool:
    return _pattern(routes).fullmatch(asked) is not None


@cache
def _pattern(routes: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route)) for route in sorted(routes)))


# How often a key may ask this process.
# A page asks for several things at once; whoever asks evenly never notices.
BURST_S = 10.0
# Tracked keys; evicting one refills its bucket.
MOST_KEYS = 10_000


class RequestRate:
    """Used by the event loop alone, so nothing is locked.

    per_s : requests of a key a second, in the long run; BURST_S seconds' worth may come at once.
    clock : seconds.
    """

    def __init__(self, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key_id: str) -> None:
        """Counts a request.

        Raises LimitError when the bucket is empty, with the seconds until there is a token again.
        """
        now_s = self._clock()
        tokens, then_s = self._buckets.pop(key_id, (self._most, now_s))
        tokens = min(self._most, tokens + (now_s - then_s) * self._per_s)
        allowed = tokens >= 1.0
        self._buckets[key_id] = (tokens - 1.0 if allowed else tokens, now_s)
        if len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise LimitError(
                Message("api.rate_limit", count=self._per_s),
                hint=Message("api.ask_less_often"),
                retry_after_s=math.ceil((1.0 - tokens) / self._per_s),
            )


# Health is for whoever watches the process; the rest is what it takes to log in.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/login", "/logout"})
OPEN_FOLDER = "/static/"
API_FOLDER = "/v1/"


def scope_for(method: str, path: str) -> Scope:
    """Least rights that a request needs: whoever reads may also predict, check and compare, which stores nothing."""
    return "write" if may_change(method, path) else "read"


def principal_of(request: Request) -> Principal:
    """The sender of the request; anyone where no keys are asked for."""
    principal: Principal = getattr(request.state, "principal", ANYONE)
    return principal


class RecognisedRequests:
    """Lets requests through whose key allows them.

    login_page : the answer to a browser whose key is not known.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings, login_page: Callable[[Request], Response]) -> None:
        self.app = app
        self._login_page = login_page
        self._settings = settings
        self._rate = RequestRate(settings.key_requests_per_s)
        self._guesses = LoginThrottle(settings.key_guesses)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._settings.auth != "keys" or _is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            principal = await self._principal(request)
            scope.setdefault("state", {})["principal"] = principal
            self._rate.take(principal.key_id)
            principal.require(scope_for(scope["method"], scope["path"]))
        except AutoDeployError as error:
            await self._refusal(request, error)(scope, receive, send)
            return
        except DATABASE_ERRORS as error:
            await on_database_error(request, error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _principal(self, request: Request) -> Principal:
        """Raises UnknownCallerError, or AccessError for a change that a foreign page asks a logged-in browser for."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        services: Services = request.app.state.services
        access = services.access
        if scheme:
            if scheme.lower() != "bearer":
                raise UnknownCallerError(Message("api.only_bearer"), hint="Authorization: Bearer adk_...")
            return await self._recognised(request, partial(access.recognise, key.strip()), access.knows(key.strip()))
        session = session_of(request)
        if session is None:
            raise UnknownCallerError(Message("problem.unauthorized"), hint="Authorization: Bearer adk_...")
        principal = await self._recognised(request, partial(access.of_session, session, self._settings.session_s))
        if request.method not in READING and not is_of_own_page(request):
            raise AccessError(Message("api.own_pages_only"))
        return principal

    async def _recognised(self, request: Request, ask: Callable[[], Principal], known: bool = False) -> Principal:
        """Asks the database, unless that address guessed too often; what was valid lately is always asked for."""
        client = request.client.host if request.client else ""
        wait_s = self._guesses.wait_s(client)
        if wait_s > 0 and not known:
            raise LimitError(Message("api.too_many_wrong_keys"), retry_after_s=math.ceil(wait_s))
        try:
            return await run_in_threadpool(ask)
        except UnknownCallerError:
            self._guesses.failed(client)
            raise

    def _refusal(self, request: Request, error: AutoDeployError) -> Response:
        is_page = not request.url.path.startswith(API_FOLDER) and "text/html" in request.headers.get("accept", "")
        if isinstance(error, UnknownCallerError) and is_page:
            return self._login_page(request)
        return on_autodeploy_error(request, error)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


# A change that was refused for what it touches is noted; what was no valid request is in the log of requests.
NOTED_REFUSALS = frozenset({403, 404, 409})
# The id at the end of an address.
_ID = re.compile(r"/([a-z]{1,8}_[0-9a-z]{1,40})(?:\?[^/]*)?$")
WRITERS = 2


class AuditedRequests:
    """Notes every change before it is answered: whoever was told that it is done finds it in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._writers: anyio.CapacityLimiter | None = None

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:
            await self.app(scope, receive, send)
            return

        async def send_noted(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                await self._note(scope, message)
            await send(message)

        await self.app(scope, receive, send_noted)

    async def _note(self, scope: AsgiScope, start: AsgiMessage) -> None:
        status: int = start["status"]
        template = getattr(scope.get("route"), "path", "")
        route = f"{scope['method']} {template}"
        if route in NOTHING_STORED or not (status < 400 or status in NOTED_REFUSALS):
            return
        request = Request(scope)
        principal = principal_of(request)
        services: Services = scope["app"].state.services
        if not principal.key_id and (services.settings.auth == "keys" or not template):
            return  # nobody known asked, or for nothing that is there
        action = ACTIONS.get(route, route) if template else f"refused {scope['method']}"
        ids = {name: value for name, value in scope.get("path_params", {}).items() if isinstance(value, str)}
        made = _ID.search(Headers(raw=start["headers"]).get("location", ""))
        object_id = made[1] if made else next(iter(ids.values()), "" if template else scope["path"])
        detail = {"request_id": scope.get("state", {}).get("request_id", "")}
        detail |= {name: value[:100] for name, value in ids.items() if value != object_id and value.isprintable()}
        client = scope.get("client") or ("", 0)
        if self._writers is None:
            self._writers = anyio.CapacityLimiter(WRITERS)
        note = partial(services.audit.note, principal, client=str(client[0]), action=action, object_id=object_id)
        await anyio.to_thread.run_sync(partial(note, status=status, detail=detail), limiter=self._writers)
