"""Inputs of pages, and the answers that several pages give: another address, what is missing or refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse

from api.http.languages import language_of, requested_language, texts
from api.http.session import is_foreign
from api.ui.formats import sentence
from api.ui.rendering import render
from api.ui.views import Views
from autodeploy.kit.errors import NotFoundError
from autodeploy.service.searches.views import PlanView

if TYPE_CHECKING:
    from fastapi import Response
    from fastapi.responses import HTMLResponse, JSONResponse


class Refusal(Exception):
    """Ends a request, wherever it is handled, with a page."""

    def __init__(self, page: Response) -> None:
        super().__init__(page.status_code)
        self.page = page


async def give_up(_: Request, refusal: Exception) -> Response:
    """The page of a `Refusal`."""
    assert isinstance(refusal, Refusal)
    return refusal.page


def see(request: Request, path: str, *, status: int = 303) -> RedirectResponse:
    """Sends the browser to another page, in the language that it asked for."""
    kept = requested_language(request)
    return RedirectResponse(path + (f"?lang={kept}" if kept else ""), status_code=status)


def not_found(request: Request, error: NotFoundError, hint: str = "") -> HTMLResponse:
    """The page that says so; by default with what may have become of searches and plans."""
    words = texts(language_of(request))
    message, hint = str(error), hint or words["error.not_found_hint"]
    return _error(request, 404, words["problem.not-found"], message or hint, hint if message else "")


def unknown(request: Request, message: str) -> HTMLResponse:
    """The page that says why something of a plan or a search can't be worked out."""
    return _error(request, 422, texts(language_of(request))["plan.errors"], message)


def refused(request: Request) -> HTMLResponse:
    """The page that says that a form came from another site."""
    words = texts(language_of(request))
    return _error(request, 403, words["problem.forbidden"], sentence(words["api.own_pages_only"]))


def _error(request: Request, status: int, title: str, message: str, hint: str = "") -> HTMLResponse:
    return render(request, "error.html", status=status, title=title, message=message, hint=hint)


# Problems as pages, for people who came with a browser.
KEPT_HEADERS = ("retry-after", "allow")


def as_page(request: Request, problem: JSONResponse) -> Response:
    """The problem as a page where a browser asked for one; programs, and scripts of pages, get it as it is."""
    if "text/html" not in request.headers.get("accept", "") or "/v1/" in request.url.path:
        return problem
    document = json.loads(bytes(problem.body))

    missing = problem.status_code == 404
    page = render(
        request,
        "error.html",
        status=problem.status_code,
        title=document["title"],
        message=texts(language_of(request))["error.not_found_hint"] if missing else document["detail"],
        hint="" if missing else document["hint"],
    )
    page.headers.update({name: problem.headers[name] for name in KEPT_HEADERS if name in problem.headers})
    return page


# What a posted form says.
MAX_PASTED_BYTES = 1_000_000


async def form_values(request: Request) -> dict[str, str]:
    """The text fields of a posted form."""
    form = await request.form(max_files=0, max_fields=100, max_part_size=MAX_PASTED_BYTES)
    return {name: value for name, value in form.items() if isinstance(value, str)}


FormValues = Annotated[dict[str, str], Depends(form_values)]


async def _views(request: Request) -> Views:
    return Views.of(request)


ViewsOfApp = Annotated[Views, Depends(_views)]


async def from_own_page(request: Request) -> None:
    """Refuses what a page of another site sent."""
    if is_foreign(request):
        raise Refusal(refused(request))


async def _own_form(values: FormValues, _: Annotated[None, Depends(from_own_page)]) -> dict[str, str]:
    return values


def _plan(request: Request, plan_id: str, views: ViewsOfApp) -> PlanView:
    try:
        return views.plan(plan_id)
    except NotFoundError as error:
        raise Refusal(not_found(request, error)) from error


OWN_PAGE = Depends(from_own_page)
OwnForm = Annotated[dict[str, str], Depends(_own_form)]
PlanOfPage = Annotated[PlanView, Depends(_plan)]
