"""Exit codes, and how mistakes are told: on stderr, every bad field with its place and a hint."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.specs.planset import Status

DONE = 0
GATE_FAILED = 1
BAD_INPUT = 2
INFEASIBLE = 3
SERVICE_ERROR = 4


def exit_code(status: Status) -> int:
    """The exit code of a finished search."""
    return {"optimal": DONE, "feasible": DONE, "infeasible": INFEASIBLE}.get(status, SERVICE_ERROR)


def report_error(error: Exception) -> int:
    """Tells the error on stderr and returns the exit code."""
    from autodeploy.errors import AutoDeployError, ConflictError, NotFoundError, SearchCancelled, SpecError
    from hardware_profiles.errors import ProfileError

    if isinstance(error, SpecError):
        _tell_fields([(e.path, e.message, e.hint) for e in error.errors])
        return BAD_INPUT
    if isinstance(error, ProfileError):
        named = [(problem.path, problem.message, problem.hint) for problem in error.problems]
        _tell_fields(named or [(error.path, str(error), error.hint)])
        return BAD_INPUT
    if isinstance(error, SearchCancelled):
        _tell(f"cancelled: {error}", error.hint)
        return SERVICE_ERROR
    if isinstance(error, AutoDeployError):
        _tell(f"error: {error}", error.hint)
        return BAD_INPUT if isinstance(error, NotFoundError | ConflictError) else SERVICE_ERROR
    _tell(f"error: {type(error).__name__}: {error}", "")
    return SERVICE_ERROR


def _tell_fields(fields: list[tuple[str, str, str]]) -> None:
    if len(fields) > 1:
        _tell(f"error: {len(fields)} fields are not valid", "")
    for path, message, hint in fields:
        prefix = "  " if len(fields) > 1 else "error: "
        _tell(prefix + (f"{path}: " if path else "") + message, hint)


def _tell(message: str, hint: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201 - this is the one place that talks of errors
    if hint:
        print(f"      hint: {hint}", file=sys.stderr)  # noqa: T201
