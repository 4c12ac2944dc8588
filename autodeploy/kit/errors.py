"""Every error that AutoDeploy raises on purpose.

AutoDeployError
├── SpecError            a document the user sent is wrong: one or many FieldErrors
├── UnsupportedError     the document is right, but asks for something that is not modelled
├── ProfileError         a hardware profile is missing or wrong
├── NotFoundError        no such search, plan, preset, profile or schema
├── ConflictError        the request contradicts the state of what it addresses
├── AccessError          the caller may not do this
│   └── UnknownCallerError   the caller has no key, or one that is not valid
├── LimitError           the caller does as much at once, or asks as often, as its key allows
├── OverloadError        the service has no time for this now
├── StorageFullError     the database has no room for a write; reads go on
├── MemoryLimitError     a search needs more memory than it may take
└── SearchCancelled      the user stopped the search (its incumbent is kept)

An infeasible spec is a result with its binding rules, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.messages import Message, joined

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class FieldError:
    """One bad field: its JSON pointer, what is wrong and what to do about it."""

    path: str
    message: str
    hint: str = ""


MOST_LISTED = 1_000
"""Errors of one document that are told one by one."""
_REST = "common.more"


class AutoDeployError(Exception):
    """Something went wrong that the user can act on."""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip())
        self.hint = hint

    def __str__(self) -> str:
        """The message itself, which keeps its key."""
        text: str = self.args[0]
        return text


def _listed(errors: tuple[FieldError, ...]) -> tuple[FieldError, ...]:
    """The first of many errors, and how many more there are."""
    if len(errors) <= MOST_LISTED:
        return errors
    rest = [e.message for e in errors if not e.path and isinstance(e.message, Message) and e.message.key == _REST]
    named = [e for e in errors if e.message not in rest]
    count = len(named) - MOST_LISTED + sum(int(message.values["count"]) for message in rest)
    return (*named[:MOST_LISTED], FieldError("", Message(_REST, count=count)))


def _all_of(errors: Iterable[FieldError]) -> str:
    sentences = (Message("common.place", place=e.path, message=e.message) if e.path else e.message for e in errors)
    return joined(sentences, "semicolon")


class SpecError(AutoDeployError):
    """The document has fields that are not valid."""

    def __init__(
        self, message: str = "", *, path: str = "", hint: str = "", errors: tuple[FieldError, ...] | None = None
    ) -> None:
        self.errors = _listed(errors) if errors is not None else (FieldError(path, message, hint),)
        super().__init__(message or _all_of(self.errors), hint=hint)


class UnsupportedError(SpecError):
    """The document asks for something that AutoDeploy does not model."""


class ProfileError(SpecError):
    """The hardware profile is missing or not valid."""


class NotFoundError(AutoDeployError):
    """There is nothing under this name."""


class ConflictError(AutoDeployError):
    """The request contradicts the state of the thing it addresses."""


class AccessError(AutoDeployError):
    """The caller is not allowed to do this."""


class UnknownCallerError(AccessError):
    """An API key is needed."""


class MemoryLimitError(AutoDeployError):
    """The search needs more memory than it may take."""


class LimitError(AutoDeployError):
    """As much is under way as the key allows."""

    def __init__(self, message: str = "", *, hint: str = "", retry_after_s: int = 10) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class OverloadError(AutoDeployError):
    """The service has no time for this now."""


class StorageFullError(AutoDeployError):
    """The disk of the database is full: nothing was written, and what is stored can still be read."""


class SearchCancelled(AutoDeployError):
    """The search was cancelled before it found a plan."""
