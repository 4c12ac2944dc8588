"""Problems as pages, for people who came with a browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from api.ui.languages import language_of, texts
from api.ui.rendering import render

if TYPE_CHECKING:
    from fastapi import Request
    from fastapi.responses import JSONResponse, Response

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
