"""Notes who changed what: one layer around all routes, so that none is forgotten."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from fastapi import Request
from starlette.datastructures import Headers

from api.access import principal_of
from api.changes import ACTIONS, NOTHING_STORED, READING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from autodeploy.service.session import Services

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:
            await self.app(scope, receive, send)
            return

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._note(scope, message)
            await send(message)

        await self.app(scope, receive, send_noted)

    async def _note(self, scope: Scope, start: Message) -> None:
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
