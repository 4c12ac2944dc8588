"""Who sent a request, and whether it may be answered: before routes, bodies and everything else."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from api.changes import READING, may_change
from api.problems import on_autodeploy_error, on_database_error
from api.session import LoginThrottle, session_of
from api.ui.login import login_page
from api.ui.page_inputs import is_of_own_page
from autodeploy.kit.errors import AccessError, AutoDeployError, LimitError, UnknownCallerError
from autodeploy.messages import Message
from autodeploy.service.callers.access import ANYONE, Principal, Scope
from autodeploy.service.store.database import DATABASE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Send
    from starlette.types import Scope as AsgiScope

    from autodeploy.kit.settings import Settings
    from autodeploy.service.session import Services


# How often a key may ask this process.
# A page asks for several things at once; whoever asks evenly never notices.
BURST_S = 10.0
# Keys whose bucket is remembered; a bucket that is forgotten is full again.
MOST_KEYS = 10_000


class RequestRate:
    """Used by the event loop alone, so nothing is locked.

    Parameters
    ----------
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

        Raises
        ------
        LimitError
            when the bucket is empty, with the seconds until there is a token again.
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
                Message("api.more_than_requests_second_of_this_key", count=self._per_s),
                hint=Message("api.ask_less_often_prefer_wait_and_events_tell"),
                retry_after_s=math.ceil((1.0 - tokens) / self._per_s),
            )


# Health is for whoever watches the process; the rest is what it takes to log in.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/login", "/logout"})
OPEN_FOLDER = "/static/"
API_FOLDER = "/v1/"


def scope_for(method: str, path: str) -> Scope:
    """What a request needs at least: whoever reads may also predict, check and compare, which stores nothing."""
    return "write" if may_change(method, path) else "read"


def principal_of(request: Request) -> Principal:
    """Who sent the request; anyone where no keys are asked for."""
    principal: Principal = getattr(request.state, "principal", ANYONE)
    return principal


class RecognisedRequests:
    """Lets requests through whose key allows them; in a browser a refusal is the form to log in with."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self.app = app
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
            await _refusal(request, error)(scope, receive, send)
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
            raise AccessError(Message("api.only_own_pages_may_change"))
        return principal

    async def _recognised(self, request: Request, ask: Callable[[], Principal], known: bool = False) -> Principal:
        """Asks the database, unless that address guessed too often; what was valid lately is always asked for."""
        client = request.client.host if request.client else ""
        wait_s = self._guesses.wait_s(client)
        if wait_s > 0 and not known:
            raise LimitError(Message("api.too_many_keys_were_wrong"), retry_after_s=math.ceil(wait_s))
        try:
            return await run_in_threadpool(ask)
        except UnknownCallerError:
            self._guesses.failed(client)
            raise


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def _refusal(request: Request, error: AutoDeployError) -> Response:
    is_page = not request.url.path.startswith(API_FOLDER) and "text/html" in request.headers.get("accept", "")
    if isinstance(error, UnknownCallerError) and is_page:
        return login_page(request)
    return on_autodeploy_error(request, error)
