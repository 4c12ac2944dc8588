"""Errors as RFC 9457 problem documents: one shape for every status, a JSON pointer and a hint for each bad field."""

from __future__ import annotations

import http
import logging
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from api.http.languages import language_of
from api.http.prefix import own_address
from autodeploy.kit.errors import (
    AccessError,
    AutoDeployError,
    ConflictError,
    FieldError,
    LimitError,
    NotFoundError,
    OverloadError,
    ProfileError,
    SpecError,
    StorageFullError,
    UnknownCallerError,
    UnsupportedError,
)
from autodeploy.messages import Message, Section, in_language, joined, keyed
from autodeploy.messages.field_faults import fault_of, limits_of
from autodeploy.messages.message import ENGLISH
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.specs.field_errors import pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fastapi import FastAPI, Request, Response

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:autodeploy:problem:"
# The most specific class first.
_STATUS_OF: tuple[tuple[type[AutoDeployError], int, str], ...] = (
    (UnsupportedError, 422, "unsupported"),
    (ProfileError, 422, "invalid-profile"),
    (SpecError, 422, "invalid-spec"),
    (NotFoundError, 404, "not-found"),
    (ConflictError, 409, "conflict"),
    (UnknownCallerError, 401, "unauthorized"),
    (AccessError, 403, "forbidden"),
    (LimitError, 429, "limit-reached"),
    (OverloadError, 503, "overloaded"),
    (StorageFullError, 507, "storage-full"),
)
_title = Section("problem")
_SLUGS = {404: "not-found", 409: "conflict", 403: "forbidden", 413: "content-too-large"}

# Python 3.13 has other words for these; the document is the same from every Python.
_PHRASES = {413: "Request Entity Too Large", 422: "Unprocessable Entity"}

# What these answers have to say besides (RFC 9110, section 11.6.1; RFC 6585, section 4).
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}

log = logging.getLogger(__name__)


class FieldProblem(BaseModel):
    """One bad field."""

    pointer: str = Field(description="JSON pointer into the body; name of a query, path or header parameter")
    detail: str
    hint: str = ""
    key: str | None = Field(default=None, description="of `detail` in the catalogue of texts")
    values: dict[str, Any] = Field(default={}, description="what fills the blanks of `detail`")


class Problem(BaseModel):
    """Problem of a request (RFC 9457); `key` and `values` say what `detail` does, in no language."""

    type: str = Field(examples=[TYPE_PREFIX + "invalid-spec"])
    title: str
    status: int
    detail: str
    hint: str = ""
    instance: str
    request_id: str
    key: str | None = None
    values: dict[str, Any] = {}
    errors: list[FieldProblem] = []


def _keyed(text: str) -> dict[str, Any]:
    """Key and values of a message; nothing of plain text."""
    return {name: value for name, value in keyed(text).items() if name != ENGLISH} if isinstance(text, Message) else {}


def problem_response(
    request: Request,
    status: int,
    slug: str,
    detail: str,
    *,
    hint: str = "",
    errors: Sequence[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """A problem document about this request, `detail` and `hint` in the language that it asks for."""
    lang = language_of(request)
    title = _title(lang, slug) if slug in _title else _phrase(status)
    problem = Problem(
        type=TYPE_PREFIX + slug,
        title=title,
        status=status,
        detail=in_language(detail, lang),
        hint=in_language(hint, lang),
        instance=own_address(request, request.url.path),
        request_id=getattr(request.state, "request_id", ""),
        errors=[
            FieldProblem(
                pointer=e.path, detail=in_language(e.message, lang), hint=in_language(e.hint, lang), **_keyed(e.message)
            )
            for e in errors
        ],
        **_keyed(detail),
    )
    about = {"Content-Language": lang, "Vary": "Accept-Language", **(headers or {})}
    return JSONResponse(problem.model_dump(), status, about, media_type=MEDIA_TYPE)


def install(app: FastAPI, show: Callable[[Request, JSONResponse], Response]) -> None:
    """Makes every error of the app a problem document, which `show` may dress for who asked."""

    def handle(kind: type[Exception], problem_of: Callable[[Request, Exception], JSONResponse]) -> None:
        app.add_exception_handler(kind, lambda request, error: show(request, problem_of(request, error)))

    handle(AutoDeployError, on_autodeploy_error)
    handle(RequestValidationError, _on_validation_error)
    handle(HTTPException, _on_http_exception)
    for kind in set(DATABASE_ERRORS) - {StorageFullError}:
        handle(kind, on_database_error)
    handle(Exception, on_unexpected)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of these problems, for routes."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _phrase(status), "content": content} for status in statuses}


def _phrase(status: int) -> str:
    return _PHRASES.get(status) or http.HTTPStatus(status).phrase


def on_autodeploy_error(request: Request, error: Exception) -> JSONResponse:
    """The program's own errors: what the caller can act on."""
    assert isinstance(error, AutoDeployError)
    status, slug = next(
        ((s, name) for kind, s, name in _STATUS_OF if isinstance(error, kind)), (400, "invalid-request")
    )
    fields = error.errors if isinstance(error, SpecError) else ()
    headers = _HEADERS.get(status)
    if isinstance(error, LimitError):
        headers = {"Retry-After": str(error.retry_after_s)}
    return problem_response(request, status, slug, str(error), hint=error.hint, errors=fields, headers=headers)


def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = []
    for item in error.errors():
        where, *rest = item["loc"]
        path = pointer(rest) if where == "body" else "/".join(str(part) for part in rest)
        message, hint = fault_of(item)
        hint = hint or limits_of(item)
        if where != "body":
            place = Message("api.in_the", where=where)
            hint = joined((hint, place), "semicolon") if hint else place
        fields.append(FieldError(path, message, hint))
    detail = str(SpecError(errors=tuple(fields)))
    return problem_response(request, 422, "invalid-request", detail, errors=fields)


def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = error.status_code
    slug = _SLUGS.get(status) or _phrase(status).lower().replace(" ", "-")
    headers = {"Allow": ", ".join(_methods(request))} if status == 405 else error.headers
    return problem_response(request, status, slug, error.detail, headers=headers)


def _methods(request: Request) -> list[str]:
    """Every method that this address answers: each route knows its own alone."""
    routes = request.app.router.routes
    return [
        method
        for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def on_database_error(request: Request, error: Exception) -> JSONResponse:
    """The database is away: the same request may be answered later."""
    log.warning("the database does not answer: %s", error)
    hint = Message("api.try_again_readyz")
    return problem_response(
        request, 503, "unavailable", Message("problem.unavailable"), hint=hint, headers={"Retry-After": "2"}
    )


def on_unexpected(request: Request, error: Exception) -> JSONResponse:
    """A bug: the log has its trace under the request's id."""
    return problem_response(request, 500, "internal", Message("api.this_is_a_bug"))
