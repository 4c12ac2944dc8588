"""A browser's login: the API key in a cookie that no script can read, signed with its moment.

The key signs itself, so that the server keeps no secret of its own: nobody without the key can make or lengthen a
session, and whoever reads the database, where only hashes are, gains nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from itsdangerous import BadSignature, TimestampSigner

from api.prefix import own_address
from autodeploy.services.access import KEY

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

COOKIE = "autodeploy_session"


def _signer(key: str) -> TimestampSigner:
    return TimestampSigner(key, salt=COOKIE)


def key_of_session(request: Request, max_age_s: float) -> str | None:
    """The key in the request's cookie; None without one, or when it is forged or too old."""
    value = request.cookies.get(COOKIE, "")
    key = value.partition(".")[0]
    if KEY.fullmatch(key) is None:
        return None
    try:
        return _signer(key).unsign(value, max_age=round(max_age_s)).decode()
    except BadSignature:
        return None


def begin_session(request: Request, response: Response, key: str, max_age_s: float) -> None:
    """Logs the browser in; the cookie never goes along with what another site asks for."""
    response.set_cookie(
        COOKIE,
        _signer(key).sign(key).decode(),
        max_age=round(max_age_s),
        path=own_address(request, "") or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


def end_session(request: Request, response: Response) -> None:
    """Logs the browser out."""
    response.delete_cookie(COOKIE, path=own_address(request, "") or "/", httponly=True, samesite="strict")
