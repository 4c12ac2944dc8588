"""What pages ask for; where it can't be had the request ends with the page that says so."""

from typing import Annotated

from fastapi import Depends, Request

from api.ui.answers import Refusal, not_found, refused
from api.ui.forms import FormValues
from api.ui.origin import is_foreign
from api.ui.views import Views
from autodeploy.errors import NotFoundError
from autodeploy.services.views import PlanView

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
