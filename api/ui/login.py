"""The form that a browser logs in with: an API key, kept in a cookie that no script can read."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from api.session import begin_session, end_session
from api.ui.forms import FormValues
from api.ui.origin import is_foreign
from api.ui.rendering import render
from autodeploy.errors import UnknownCallerError
from autodeploy.services import Services

router = APIRouter(include_in_schema=False)


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def login_page(request: Request, *, wanted: str | None = None, refused: bool = False) -> Response:
    """The form, with status 401; afterwards the browser goes where it wanted to go."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    wanted = here if wanted is None else wanted
    response = render(request, "login.html", status=401, wanted=_own_path(wanted), refused=refused)
    response.headers["WWW-Authenticate"] = "Bearer"
    response.headers["Cache-Control"] = "no-store"
    return response


@router.get("/login")
def show(request: Request) -> Response:
    """The form, for whoever wants another key."""
    response = render(request, "login.html", wanted="/", refused=False)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.post("/login")
async def log_in(request: Request, values: FormValues, services: Annotated[Services, Depends(_services)]) -> Response:
    """Begins a session when the key is valid."""
    wanted = _own_path(values.get("wanted", "/"))
    key = values.get("key", "").strip()
    if is_foreign(request):
        return login_page(request, wanted="/")
    try:
        await run_in_threadpool(services.access.recognise, key)
    except UnknownCallerError:
        return login_page(request, wanted=wanted, refused=True)
    response = RedirectResponse(wanted, status_code=303)
    begin_session(request, response, key, services.settings.session_s)
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """Ends the session."""
    response = RedirectResponse("/", status_code=303)
    if not is_foreign(request):
        end_session(request, response)
    return response


def _own_path(wanted: str) -> str:
    """A path of this site, and of no other: nobody is sent elsewhere by a prepared form."""
    is_own = wanted.startswith("/") and not wanted.startswith(("//", "/\\", "/login", "/logout"))
    return wanted if is_own and wanted.isprintable() else "/"
