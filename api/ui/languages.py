"""Which language a page speaks, and its texts."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, get_args

from autodeploy.figures.labels import Language

if TYPE_CHECKING:
    from starlette.requests import Request

LANGUAGES: tuple[Language, ...] = get_args(Language)
DEFAULT: Language = "en"


@cache
def texts(lang: Language) -> dict[str, str]:
    """All texts of a language by `section.key`."""
    sections = tomllib.loads((files("api.ui") / "texts" / f"{lang}.toml").read_text(encoding="utf-8"))
    return {f"{section}.{key}": text for section, keys in sections.items() for key, text in keys.items()}


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
