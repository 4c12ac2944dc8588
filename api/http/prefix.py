"""The service below a path of another site: `AUTODEPLOY_PATH_PREFIX`.

Inside, paths are as if there were no prefix, whether the proxy leaves it in its requests or takes it away. Everything
that goes out and names an address of this service gets it: pages by `own_address`, `Location` here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.resources import ListPage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send
    from starlette.types import Message as AsgiMessage


AnyPage = TypeVar("AnyPage", bound=ListPage[Any])


def own_address(request: Request, path: str) -> str:
    """The path as the client has to ask for it."""
    return str(request.scope.get("root_path", "")) + path


def with_next(request: Request, page: AnyPage) -> AnyPage:
    """A piece of a list with the address of what follows; None at the end."""
    if page.after is None:
        return page
    kept = [(key, value) for key, value in request.query_params.multi_items() if key != "after"]
    address = f"{own_address(request, request.url.path)}?{urlencode([*kept, ('after', page.after)])}"
    return page.model_copy(update={"next": address})


def refuse_own_paths(app: FastAPI, prefix: str) -> None:
    """Raises where a prefix begins as an address of the service does: nobody could say which of the two is meant.

    Raises SpecError naming the setting.
    """
    first = prefix.split("/")[1]
    if first in {path.split("/")[1] for path in _paths(app.routes)}:
        raise SpecError(
            Message("settings.address_of_service", address=f"/{first}"),
            path="AUTODEPLOY_PATH_PREFIX",
            hint="/autodeploy",
        )


def _paths(routes: Iterable[object]) -> Iterator[str]:
    for route in routes:
        path = getattr(route, "path", None)
        if path is None:  # a router as it was included
            yield from _paths(getattr(getattr(route, "original_router", None), "routes", ()))
        elif path:
            yield path


class PrefixedRequests:
    """Takes the prefix off the path of a request, and puts it before the address that an answer sends the client to."""

    def __init__(self, app: ASGIApp, *, prefix: str) -> None:
        self.app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        bare = {
            **scope,
            "path": self._without(scope["path"]),
            "raw_path": self._without(raw.decode("latin-1")).encode("latin-1"),
            "root_path": self._prefix,
        }
        host = Headers(scope=scope).get("host", "")

        async def send_with_prefix(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "location" in headers:
                    headers["location"] = self._with(headers["location"], host)
            await send(message)

        await self.app(bare, receive, send_with_prefix)

    def _without(self, path: str) -> str:
        if path == self._prefix:
            return "/"
        return path.removeprefix(self._prefix) if path.startswith(self._prefix + "/") else path

    def _with(self, location: str, host: str) -> str:
        """Locations of this service, which are paths or, of the router's own redirects, whole addresses."""
        parts = urlsplit(location)
        if parts.netloc not in {"", host} or not parts.path.startswith("/"):
            return location
        return parts._replace(path=self._prefix + parts.path).geturl()
