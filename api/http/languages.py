"""Language of a page, and its texts."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from autodeploy.messages import LANGUAGES, Language, label, section_texts
from autodeploy.messages.catalogue import catalogue

if TYPE_CHECKING:
    from starlette.requests import Request

DEFAULT: Language = "en"


class Texts(dict[str, str]):
    """Texts of pages by `section.key`.

    Any other key is one of the whole catalogue (`report.counts`), or a label, which begins with a capital as titles do.
    """

    def __init__(self, lang: Language) -> None:
        super().__init__(section_texts(lang, "page"))
        self.lang = lang

    def __missing__(self, key: str) -> str:
        """Raises KeyError where no text has that key."""
        whole = catalogue(self.lang).get(key)
        if whole is not None:
            return whole
        return title(label(self.lang, key))


def title(text: str) -> str:
    """The text with a capital at its begin."""
    return text[:1].upper() + text[1:]


@cache
def texts(lang: Language) -> Texts:
    """All texts of a language for pages."""
    return Texts(lang)


def requested_language(request: Request) -> Language | None:
    """The language that the address asks for with `?lang=`, if it is one of ours."""
    return _known(request.query_params.get("lang", ""))


def language_of(request: Request) -> Language:
    """`?lang=` first, then the best of Accept-Language (RFC 9110, section 12.5.4), then English."""
    return requested_language(request) or best_accepted(request.headers.get("accept-language", ""))


def best_accepted(header: str) -> Language:
    """The accepted language with the highest weight that we speak."""
    weighted: list[tuple[float, int, Language]] = []
    for position, item in enumerate(header.split(",")):
        tag, _, parameters = item.partition(";")
        lang = _known(tag)
        weight = _weight(parameters)
        if lang is not None and weight > 0:
            weighted.append((-weight, position, lang))
    return min(weighted)[2] if weighted else DEFAULT


def _known(tag: str) -> Language | None:
    primary = tag.strip().lower().split("-")[0]
    return next((lang for lang in LANGUAGES if lang == primary), None)


def _weight(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
