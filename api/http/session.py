"""A browser's login: a random token in a cookie that no script can read; the server knows its hash and can end it."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from api.http.prefix import own_address
from autodeploy.service.requests.callers import SESSION

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


# How often an address may try to log in with keys that are none.
WINDOW_S = 60.0
# So many addresses are kept in mind; the one that failed longest ago is forgotten first.
REMEMBERED = 10_000


class LoginThrottle:
    """Counts failures by address in the last minute, in this process alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, client: str, now_s: float | None = None) -> float:
        """Seconds until that address may try again; 0 now."""
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            failures = self._recent(_network(client), now_s)
            return max(0.0, failures[0] + WINDOW_S - now_s) if len(failures) >= self._limit else 0.0

    def failed(self, client: str, now_s: float | None = None) -> None:
        """Notes an attempt with a key that is none."""
        now_s = time.monotonic() if now_s is None else now_s
        network = _network(client)
        with self._lock:
            failures = self._recent(network, now_s)
            failures.append(now_s)
            self._failures[network] = failures
            self._failures.move_to_end(network)
            if len(self._failures) > REMEMBERED:
                self._failures.popitem(last=False)

    def _recent(self, network: str, now_s: float) -> deque[float]:
        failures = self._failures.get(network) or deque(maxlen=self._limit)
        while failures and failures[0] <= now_s - WINDOW_S:
            failures.popleft()
        return failures


def _network(client: str) -> str:
    """The address; of IPv6 its /64, which one host has whole."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else client


COOKIE = "autodeploy_session"


def session_of(request: Request) -> str | None:
    """The token in the request's cookie; None without one, or of another form."""
    value = request.cookies.get(COOKIE, "")
    return value if SESSION.fullmatch(value) else None


def set_session(request: Request, response: Response, token: str, max_age_s: float) -> None:
    """Logs the browser in; the cookie never goes along with what another site asks for."""
    response.set_cookie(
        COOKIE,
        token,
        max_age=round(max_age_s),
        path=own_address(request, "") or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


def forget_session(request: Request, response: Response) -> None:
    """Logs the browser out."""
    response.delete_cookie(COOKIE, path=own_address(request, "") or "/", httponly=True, samesite="strict")


# Where a request comes from, as browsers say it.
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
