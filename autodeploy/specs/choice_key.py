"""Which layers a memory choice is counted for, as documents name it."""

from __future__ import annotations

from typing import NamedTuple


class ChoiceKey(NamedTuple):
    """A memory choice of all layers or of one class of them; documents write `name` or `name@class`."""

    name: str
    layer_class: str | None = None

    @classmethod
    def of(cls, text: str) -> ChoiceKey:
        """As a document names it."""
        name, _, layer_class = text.partition("@")
        return cls(name, layer_class or None)

    def __str__(self) -> str:
        return self.name if self.layer_class is None else f"{self.name}@{self.layer_class}"
