"""A rule of a launch target that a strategy breaks."""

from __future__ import annotations

from autodeploy.specs.base import Document
from autodeploy.specs.message_table import Text


class BrokenRule(Document):
    """A rule that a launch breaks: its name, what is wrong with the numbers filled in, and the numbers.

    `allowed`: it was named in `limits.allow_rules`, and fails nothing.
    """

    rule: str
    text: Text
    values: dict[str, bool | int | float | str] = {}
    allowed: bool = False
