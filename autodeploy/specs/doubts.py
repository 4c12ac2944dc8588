"""What whoever plans should check, as it travels from an importer with the spec into every result."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from autodeploy.messages import Message

MAX_DOUBTS = 200


def one_line(text: str) -> str:
    """Printable and without line breaks: it is written into comments of scripts."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return text if line == text else line  # a message stays one


Doubt = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(one_line)]


def _told(description: str) -> Any:
    return Field(max_length=MAX_DOUBTS, description=description, exclude_if=lambda value: not value)


Doubts = Annotated[tuple[Doubt, ...], _told("points to check after an import; told with every plan")]
Unmodelled = Annotated[
    tuple[Doubt, ...],
    _told("settings of an imported file that change the result and are not modelled; told with every plan"),
]


def changes_the_result(setting: str) -> str:
    """What is said of a setting that changes the result and that no prediction knows."""
    return Message("common.place", place=Message("command.unmodelled"), message=setting)
