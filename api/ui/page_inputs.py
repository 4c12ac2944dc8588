"""What pages ask for; where it can't be had the request ends with the page that says so."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from api.ui.answers import Refusal, not_found, refused
from api.ui.views import Views
from autodeploy.kit.errors import NotFoundError
from autodeploy.service.searches.views import PlanView


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


# What a posted form says.
MAX_PASTED_BYTES = 1_000_000


async def form_values(request: Request) -> dict[str, str]:
    """The text fields of a posted form."""
    form = await request.form(max_files=0, max_fields=100, max_part_size=MAX_PASTED_BYTES)
    return {name: value for name, value in form.items() if isinstance(value, str)}


FormValues = Annotated[dict[str, str], Depends(form_values)]


ViewsOfApp = Annotated[Views, Depends(Views.of)]


def from_own_page(request: Request) -> None:
    """Refuses what a page of another site sent."""
    if is_foreign(request):
        raise Refusal(refused(request))


def _own_form(values: FormValues, _: Annotated[None, Depends(from_own_page)]) -> dict[str, str]:
    return values


def _plan(request: Request, plan_id: str, views: ViewsOfApp) -> PlanView:
    try:
        return views.plan(plan_id)
    except NotFoundError as error:
        raise Refusal(not_found(request, error)) from error


OWN_PAGE = Depends(from_own_page)
OwnForm = Annotated[dict[str, str], Depends(_own_form)]
PlanOfPage = Annotated[PlanView, Depends(_plan)]
