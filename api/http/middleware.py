"""Around every request: an id, a bounded body, safe headers, one log line and the metrics."""

from __future__ import annotations

import re
import time
from asyncio import CancelledError
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog
from fastapi import HTTPException, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from api.http.access import principal_of
from api.http.problems import on_autodeploy_error, on_unexpected, problem_response
from autodeploy.kit.errors import OverloadError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send
    from starlette.types import Message as AsgiMessage

_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    # Pages say their own; nothing else that is answered may be run or framed.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

CLIENT_GONE = 499  # in logs and metrics only, as proxies write it

log = structlog.get_logger("api")


class ObservedRequests:
    """Gives a request its id and sees how it ends."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _GIVEN_ID.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started_s = time.perf_counter()
        status = 0

        async def send_with_headers(message: AsgiMessage) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self.app(scope, receive, send_with_headers)
            except ClientDisconnect:
                status = status or CLIENT_GONE  # nobody is there to be answered
            except CancelledError:
                if status:
                    raise
                # The server stops, and its grace for open requests is over.
                answer = on_autodeploy_error(
                    Request(scope), OverloadError(Message("api.server_stops"), hint=Message("common.try_again"))
                )
                await answer(scope, receive, send_with_headers)
            except Exception as error:
                log.exception("request_failed", method=scope["method"], path=scope["path"])
                if not status:
                    request = Request(scope)
                    await on_unexpected(request, error)(scope, receive, send_with_headers)
            finally:
                duration_s = time.perf_counter() - started_s
                route = _route_template(scope)
                scope["app"].state.metrics.observe(_known_method(scope["method"]), route, status, duration_s)
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    key_id=principal_of(Request(scope)).key_id,
                    client=(scope.get("client") or ("",))[0],
                    status=status,
                    duration_ms=round(1000 * duration_s, 2),
                )


class GuardedRequests:
    """Refuses bodies above the limit, and changes that another site's page asks for."""

    def __init__(self, app: ASGIApp, *, body_limit_bytes: int) -> None:
        self.app = app
        self.body_limit_bytes = body_limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        if scope["method"] not in SAFE_METHODS and request.headers.get("sec-fetch-site") == "cross-site":
            response = problem_response(
                request, 403, "forbidden", "a page of another site may not change anything here"
            )
            await response(scope, receive, send)
            return
        limit_bytes = self._limit_bytes(request)
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit_bytes:
            await problem_response(request, 413, "content-too-large", _too_large(limit_bytes))(scope, receive, send)
            return
        received = 0

        async def bounded_receive() -> AsgiMessage:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit_bytes:
                raise HTTPException(413, _too_large(limit_bytes))
            return message

        await self.app(scope, bounded_receive, send)

    def _limit_bytes(self, request: Request) -> int:
        """The server's limit, or the key's where that is less."""
        of_key = principal_of(request).max_spec_bytes
        return self.body_limit_bytes if of_key is None else min(of_key, self.body_limit_bytes)


def _too_large(limit_bytes: int) -> str:
    return Message("api.body_too_large", limit=limit_bytes)


def _route_template(scope: Scope) -> str:
    """The path of the route that answered, or that would have: its parameters are unfilled, so that labels stay few."""
    template = getattr(scope.get("route"), "path", "")
    if template:
        return str(template)
    # Refused before a route was looked for: without a key, too large, asked for by a foreign page.
    fitting = (path for match, path in _matches(scope["app"].router.routes, scope) if match is not Match.NONE)
    return next(fitting, "unmatched")


def _matches(routes: Iterable[Any], scope: Scope) -> Iterator[tuple[Match, str]]:
    """Matches of each route, those of included routers one by one."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from _matches(inner.routes, scope)
        elif getattr(route, "path", ""):
            yield route.matches(scope)[0], route.path


def _known_method(method: str) -> str:
    return method if method in SAFE_METHODS | {"POST", "PUT", "PATCH", "DELETE"} else "other"
