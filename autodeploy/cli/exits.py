"""Exit codes, and how mistakes are told: on stderr, every bad field with its place and a hint."""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING

from autodeploy.messages import Message, in_language, text_of
from autodeploy.messages.field_faults import os_fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.messages import Language
    from autodeploy.specs.planset import Status

DONE = 0
GATE_FAILED = 1
BAD_INPUT = 2
INFEASIBLE = 3
SERVICE_ERROR = 4

_DATABASE_HINT = "AUTODEPLOY_DATABASE_URL"


def exit_code(status: Status) -> int:
    """The exit code of a finished search."""
    return {"optimal": DONE, "feasible": DONE, "infeasible": INFEASIBLE}.get(status, SERVICE_ERROR)


def report_error(error: Exception, lang: Language = "en") -> int:
    """Tells the error on stderr and returns the exit code."""
    from autodeploy.kit.errors import AutoDeployError, ConflictError, NotFoundError, SearchCancelled, SpecError
    from autodeploy.reports.wording import report_text
    from hardware_profiles.errors import ProfileError

    if isinstance(error, SpecError):
        _tell_fields([(e.path, e.message, e.hint) for e in error.errors], lang)
        return BAD_INPUT
    if isinstance(error, ProfileError):
        named = [(problem.path, problem.message, problem.hint) for problem in error.problems]
        _tell_fields(named or [(error.path, str(error), error.hint)], lang)
        return BAD_INPUT
    if isinstance(error, SearchCancelled):
        _tell(report_text(lang, "unfinished", status=text_of(lang, "page.status.cancelled")), error.hint, lang)
        return SERVICE_ERROR
    if isinstance(error, OSError) and error.filename is not None:
        message = Message("common.cannot_be_read", file=error.filename, reason=os_fault(error))
        _tell_fields([("", message, Message("common.check_path"))], lang)
        return BAD_INPUT
    if isinstance(error, AutoDeployError):
        _tell(report_text(lang, "error") + in_language(str(error), lang), error.hint, lang)
        return BAD_INPUT if isinstance(error, NotFoundError | ConflictError) else SERVICE_ERROR
    if type(error).__module__.startswith("sqlalchemy."):
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        _tell(
            report_text(lang, "error") + in_language(Message("cli.database_cannot_be_used", reason=reason), lang),
            _DATABASE_HINT,
            lang,
        )
        return SERVICE_ERROR
    bug, hint = (text_of(lang, f"cli.{key}") for key in ("this_is_a_bug", "verbose_shows_trace"))
    _tell(report_text(lang, "error") + bug, hint, lang)
    return SERVICE_ERROR


def asked_language(arguments: Sequence[str]) -> Language:
    """The language that a command line asks for, also one that could not be read otherwise."""
    given = [after for name, after in itertools.pairwise(arguments) if name == "--lang"]
    given += [name.removeprefix("--lang=") for name in arguments if name.startswith("--lang=")]
    return "zh" if (given or [os.environ.get("AUTODEPLOY_LANG", "en")])[-1] == "zh" else "en"


def _tell_fields(fields: list[tuple[str, str, str]], lang: Language) -> None:
    from autodeploy.reports.wording import report_text

    if len(fields) > 1:
        _tell(report_text(lang, "error_fields", count=len(fields)), "", lang)
    for path, message, hint in fields:
        prefix = "  " if len(fields) > 1 else report_text(lang, "error")
        placed = Message("common.place", place=path, message=message) if path else message
        _tell(prefix + in_language(placed, lang), hint, lang)


def _tell(message: str, hint: str, lang: Language) -> None:
    from autodeploy.reports.wording import report_text

    print(message, file=sys.stderr)  # noqa: T201 - this is the one place that talks of errors
    if hint:
        print(report_text(lang, "hint", hint=in_language(hint, lang)), file=sys.stderr)  # noqa: T201
