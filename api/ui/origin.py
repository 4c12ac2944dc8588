"""Where a request comes from, as browsers say it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.requests import Request


def is_foreign(request: Request) -> bool:
    """Whether a form was sent from a page of another site; only browsers say where a form comes from."""
    return _stated(request) is False


def is_of_own_page(request: Request) -> bool:
    """Whether the browser says that a page of this site sent it; every browser says so with a change."""
    return _stated(request) is True


def _stated(request: Request) -> bool | None:
    """True: from this site; False: from another; None: not said."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    origin = request.headers.get("origin")
    return None if origin is None else urlsplit(origin).netloc == request.headers.get("host")
