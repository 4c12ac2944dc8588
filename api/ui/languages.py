"""Which language a page speaks, and its texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import LANGUAGES, Language, section_texts

if TYPE_CHECKING:
    from starlette.requests import Request

DEFAULT: Language = "en"


def texts(lang: Language) -> dict[str, str]:
    """All texts of a language by `section.key`."""
    return section_texts(lang, "page")


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
