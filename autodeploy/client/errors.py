"""What goes wrong between client and service. Problems of the request itself are the errors of `autodeploy.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.errors import (
    AccessError,
    AutoDeployError,
    ConflictError,
    FieldError,
    LimitError,
    NotFoundError,
    ProfileError,
    SpecError,
    UnknownCallerError,
    UnsupportedError,
)

if TYPE_CHECKING:
    import httpx

_BY_TYPE: dict[str, type[SpecError]] = {
    "urn:autodeploy:problem:unsupported": UnsupportedError,
    "urn:autodeploy:problem:invalid-profile": ProfileError,
}
_BY_STATUS: dict[int, type[AutoDeployError]] = {
    401: UnknownCallerError,
    403: AccessError,
    404: NotFoundError,
    409: ConflictError,
    429: LimitError,
}


class ServiceError(AutoDeployError):
    """The service cannot be reached, or it failed. `status` is 0 where there was no answer."""

    def __init__(self, message: str, *, status: int = 0, request_id: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.request_id = request_id


class WaitTimeout(AutoDeployError):
    """The search was not finished in time; it goes on. `search_id` finds it again."""

    def __init__(self, message: str, *, search_id: str) -> None:
        super().__init__(message, hint=f"GET /v1/searches/{search_id}")
        self.search_id = search_id


def error_of(response: httpx.Response) -> AutoDeployError:
    """The error that a problem document stands for."""
    problem = _problem(response)
    message = str(problem.get("detail") or f"{response.status_code} {response.reason_phrase}")
    hint = str(problem.get("hint") or "")
    status = response.status_code
    if status in {400, 413, 415, 422}:
        kind = _BY_TYPE.get(str(problem.get("type")), SpecError)
        fields = tuple(
            FieldError(str(e.get("pointer", "")), str(e.get("detail", "")), str(e.get("hint", "")))
            for e in problem.get("errors") or ()
        )
        return kind(message, hint=hint, errors=fields or None)
    if status in _BY_STATUS:
        return _BY_STATUS[status](message, hint=hint)
    return ServiceError(message, status=status, request_id=str(problem.get("request_id") or ""), hint=hint)


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
