"""Texts of the reports, in English and Chinese."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.messages import Language

__all__ = ["memory_name", "part_name", "reference_name", "say"]

say = Section("report")
part_name = Section("part")
memory_name = Section("figure.memory")
_reference = Section("reference")

# Plans for comparison by their label.
_REFERENCES: Mapping[str | None, str] = {
    "public recipe": "public_recipe",
    "your script": "your_script",
    "1F1B": "1f1b",
    "the usual starting point": "usual",
    None: "usual",
}


def reference_name(label: str | None, lang: Language, *, in_sentence: bool = False) -> str:
    """A plan for comparison by its label; a label that is no known one stays."""
    key = _REFERENCES.get(label)
    return str(label) if key is None else _reference(lang, key + "_in_sentence" * in_sentence)
