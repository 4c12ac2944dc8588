"""The catalogues of texts, `en.json` and `zh.json`.

Nested JSON, as translation tools such as Weblate, Crowdin or Lokalise open it: a text's key is its path with dots
(`report.best`), its blanks are Python's (`{count}`), its plural forms are two keys that end in `_one` and `_other`
(i18next, version 4), of which the value `count` chooses.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)


@cache
def catalogue(lang: Language) -> dict[str, str]:
    """Every text of a language by its key."""
    return dict(_flat(json.loads(files("autodeploy.messages").joinpath(f"{lang}.json").read_text(encoding="utf-8"))))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@cache
def renamed_keys() -> dict[str, str]:
    """Today's key by the key that documents stored by an earlier release have."""
    text = files("autodeploy.messages").joinpath("renamed.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def is_text(lang: Language, key: str) -> bool:
    """Whether the catalogue has a text of that key."""
    return key in catalogue(lang) or f"{key}_other" in catalogue(lang)


def text_of(lang: Language, key: str, /, **values: object) -> str:
    """The text in that language with its blanks filled in.

    Raises KeyError when the catalogue has no such key, or a blank has no value.
    """
    texts = catalogue(lang)
    template = texts.get(key)
    if template is None:
        template = texts[f"{key}_{'one' if values.get('count') in {1, '1'} and lang == 'en' else 'other'}"]
    return template.format_map(values)


@cache
def section_texts(lang: Language, section: str) -> dict[str, str]:
    """The texts of a section by the rest of their keys."""
    prefix = f"{section}."
    return {key.removeprefix(prefix): text for key, text in catalogue(lang).items() if key.startswith(prefix)}


def label(lang: Language, key: str) -> str:
    """The label of a field or column; where a key has dots, of its last name."""
    return catalogue(lang)[f"label.{key.rpartition('.')[2]}"]


@dataclass(frozen=True, slots=True)
class Section:
    """Texts of one section: `Section("report")(lang, "best")` is the text `report.best`.

    What a section does not say itself is a label (i18next: fallback namespace): `Section("report")(lang, "days")` is
    the text `label.days`.
    """

    name: str

    def __call__(self, lang: Language, key: str, /, **values: object) -> str:
        """As `text_of`."""
        own = f"{self.name}.{key}"
        return text_of(lang, own, **values) if is_text(lang, own) else label(lang, key)

    def each(self, lang: Language, *keys: str) -> list[str]:
        """Texts of several keys, as of the columns of a table."""
        return [self(lang, key) for key in keys]

    def __contains__(self, key: str) -> bool:
        """Whether the section has that text, or there is a label of that name."""
        return is_text("en", f"{self.name}.{key}") or is_text("en", f"label.{key.rpartition('.')[2]}")
