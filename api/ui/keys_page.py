"""The page of API keys: the one in use, and for scope admin all of them, with the forms that end them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response  # noqa: TC002 - FastAPI reads annotations while the program runs

from api.http.dependencies import KeyId  # noqa: TC001 - as above
from api.http.documents import MOST_KEY_DAYS
from api.ui.page_inputs import OWN_PAGE, OwnForm, ViewsOfApp, not_found, see
from api.ui.rendering import render
from autodeploy.kit.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

router = APIRouter(include_in_schema=False)
USUAL_DAYS = 30


@router.get("/keys")
def keys(request: Request, views: ViewsOfApp) -> HTMLResponse:
    """The keys that whoever asks may see."""
    services = views.services
    shown = services.access.list(services.principal)
    own = next((key for key in shown if key.own), None)
    most_searches = own.max_searches if own is not None else None
    page = render(
        request,
        "keys.html",
        own=own,
        most_searches=services.settings.key_searches if most_searches is None else most_searches,
        keys=shown if services.principal.may("admin") else (),
        usual_days=USUAL_DAYS,
        most_days=MOST_KEY_DAYS,
    )
    page.headers["Cache-Control"] = "no-store"
    return page


@router.post("/keys/{key_id}/expire")
def expire(request: Request, key_id: KeyId, values: OwnForm, views: ViewsOfApp) -> Response:
    """Ends a key in so many days; nothing changes where that is no number of days."""
    text = values.get("days", "")
    if not text.isdecimal() or int(text) > MOST_KEY_DAYS:
        return see(request, "/keys")
    access, caller = views.services.access, views.services.principal
    return _changed(request, lambda: access.expire(key_id, timedelta(days=int(text)), caller))


@router.post("/keys/{key_id}/revoke", dependencies=[OWN_PAGE])
def revoke(request: Request, key_id: KeyId, views: ViewsOfApp) -> Response:
    """Ends a key for good."""
    return _changed(request, lambda: views.services.access.revoke(key_id, views.services.principal))


def _changed(request: Request, change: Callable[[], None]) -> Response:
    try:
        change()
    except NotFoundError as error:
        return not_found(request, error, error.hint)
    return see(request, "/keys")
