"""The form that a browser logs in with: an API key, kept in a cookie that no script can read."""

import math
from typing import TYPE_CHECKING, Annotated

import structlog
from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from api.http.session import forget_session, is_foreign, session_of, set_session
from api.ui.page_inputs import FormValues
from api.ui.rendering import render
from autodeploy.kit.errors import UnknownCallerError
from autodeploy.service.session import Services

if TYPE_CHECKING:
    from api.http.session import LoginThrottle

log = structlog.get_logger("api")

router = APIRouter(include_in_schema=False)


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def login_page(request: Request, *, wanted: str | None = None, refused: bool = False, wait_s: float = 0.0) -> Response:
    """The form, with status 401, or 429 where the browser has to wait; afterwards it goes where it wanted to go."""
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    wanted = address if wanted is None else wanted
    seconds = math.ceil(wait_s)
    status = 429 if seconds else 401
    response = render(request, "login.html", status=status, wanted=_own_path(wanted), refused=refused, seconds=seconds)
    if seconds:
        response.headers["Retry-After"] = str(seconds)
    else:
        response.headers["WWW-Authenticate"] = "Bearer"
    response.headers["Cache-Control"] = "no-store"
    return response


@router.get("/login")
def show(request: Request) -> Response:
    """The form, for whoever wants another key."""
    response = render(request, "login.html", wanted="/", refused=False, seconds=0)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.post("/login")
async def log_in(request: Request, values: FormValues, services: Annotated[Services, Depends(_services)]) -> Response:
    """Begins a session when the key is valid; an address that tried many that are not has to wait."""
    wanted = _own_path(values.get("wanted", "/"))
    key = values.get("key", "").strip()
    if is_foreign(request):
        return login_page(request, wanted="/")
    throttle: LoginThrottle = request.app.state.login_throttle
    client = request.client.host if request.client else ""
    wait_s = throttle.wait_s(client)
    if wait_s > 0:
        log.warning("login_throttled", client=client)
        return login_page(request, wanted=wanted, wait_s=wait_s)
    try:
        token, request.state.principal = await run_in_threadpool(services.access.begin_session, key)
    except UnknownCallerError:
        throttle.failed(client)
        log.warning("login_refused", client=client)
        return login_page(request, wanted=wanted, refused=True)
    response = RedirectResponse(wanted, status_code=303)
    set_session(request, response, token, services.settings.session_s)
    return response


@router.post("/logout")
async def log_out(request: Request, services: Annotated[Services, Depends(_services)]) -> Response:
    """Ends the session, also for whoever has a copy of its cookie."""
    response = RedirectResponse("/", status_code=303)
    if not is_foreign(request):
        token = session_of(request)
        if token is not None:
            await run_in_threadpool(services.access.end_session, token)
        forget_session(request, response)
    return response


def _own_path(wanted: str) -> str:
    """A path of this site, and of no other: nobody is sent elsewhere by a prepared form."""
    is_own = wanted.startswith("/") and not wanted.startswith(("//", "/\\", "/login", "/logout"))
    return wanted if is_own and wanted.isprintable() else "/"
