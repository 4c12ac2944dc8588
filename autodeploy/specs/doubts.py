"""What whoever plans should check, as it travels from an importer with the spec into every result."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

MAX_DOUBTS = 200


def one_line(text: str) -> str:
    """Printable and without line breaks: it is written into comments of scripts."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


Doubt = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(one_line)]
Doubts = Annotated[
    tuple[Doubt, ...],
    Field(
        max_length=MAX_DOUBTS,
        description="points to check after an import; repeated with every plan",
        exclude_if=lambda value: not value,
    ),
]
